"""What may be a callback, what is refused at registration, in which order they hear, and whose
error it was."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

import loopwright.callbacks
from loopwright import Callback, Trainer, callbacks
from loopwright.callbacks import Checkpoints, NonFiniteGuard, ProgressDisplay

from ..mistakes import raises
from .runs import build_trainer, train


def test_every_public_name_can_be_imported_and_they_are_sorted():
    names = loopwright.callbacks.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(callable(getattr(loopwright.callbacks, name)) for name in names)
    assert dir(loopwright.callbacks) == sorted(names)


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(
        AttributeError, match="no attribute 'Nothing'; available: AdditionalOutputs, BestCheckpoint"
    ):
        loopwright.callbacks.Nothing


def test_checkpoints_come_after_what_they_save_and_defaults_only_where_the_user_brought_none(
    tmp_path, points
):
    mine = [Checkpoints(), NonFiniteGuard("skip"), ProgressDisplay("silent")]
    trainer = train(build_trainer(mine, run_dir=tmp_path), points, num_epochs=1)
    kinds = [type(callback).__name__ for callback in trainer.run.callbacks]
    kinds.remove("NonFiniteGuard")
    assert kinds == ["RunRecorder", "BestModel", "Checkpoints", "ProgressDisplay"]


class Failing(Callback):
    def on_update_end(self, trainer: Trainer) -> None:
        raise ZeroDivisionError("broken")


def test_callbacks_hear_of_an_exception_which_is_raised_all_the_same(points):
    heard = []

    class Listening(Callback):
        def on_exception(self, trainer: Trainer, error: BaseException) -> None:
            heard.append(error)

    with pytest.raises(ZeroDivisionError) as caught:
        train(build_trainer([Failing, Listening]), points)
    assert heard == [caught.value]


@pytest.mark.parametrize("package", ["callbacks", "schedules", "initializers"])
def test_arguments_have_types_that_a_config_can_be_checked_against(package):
    module = importlib.import_module(f"loopwright.{package}")
    kinds = [kind for name in module.__all__ if isinstance(kind := getattr(module, name), type)]
    for kind in kinds:
        arguments = (
            inspect.signature(kind).parameters.keys()
            if kind.__init__ is not object.__init__
            else set()
        )
        hints = get_type_hints(kind.__init__)
        assert all(name in hints for name in arguments), kind
    assert len(kinds) >= 3


def test_every_callback_is_in_the_document():
    text = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    missing = [name for name in loopwright.callbacks.__all__ if f"`{name}" not in text]
    assert missing == ["Interval"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: callbacks.BestCheckpoint(tolerances=[1.5]),
        lambda: callbacks.EarlyStopping(patience=0),
        lambda: callbacks.LimitBatches(train=0),
        lambda: callbacks.OnlineLoss(every_n_updates=True),
        lambda: callbacks.Rewind(spike=1.0),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_at_once(build):
    with raises("number"):
        build()

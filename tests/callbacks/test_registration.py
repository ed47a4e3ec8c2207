"""What may be a callback, what is refused at registration, in which order they hear, and whose
error it was."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch.nn.functional import cross_entropy

import loopwright.callbacks
from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import Checkpoints, NonFiniteGuard, ProgressDisplay

from ..loops import build_net
from .runs import UPDATES_PER_EPOCH, build_trainer, train


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


def test_a_misspelt_hook_is_refused_with_the_right_spelling():
    class Misspelt(Callback):
        def on_train_stop_end(self, trainer: Trainer, batch: Any, result: Any) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"Misspelt.on_train_stop_end is not an event.*did you mean on_train_step_end",
    ):
        build_trainer([Misspelt()])


def test_a_hook_nobody_calls_is_refused_with_the_events_there_are():
    class Odd(Callback):
        def on_quiz_xyz(self) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"Odd.on_quiz_xyz.*the events are: on_train_start, on_epoch_start"
    ):
        build_trainer([Odd])


@pytest.mark.parametrize("hook", ["on_train_step_end", "on_epoch_end", "on_optimizer_start"])
def test_a_hook_with_other_arguments_is_refused(hook):
    wrong = type("Wrong", (Callback,), {hook: lambda self, trainer: None})
    with pytest.raises(ConfigurationError, match=f"Wrong.{hook} does not take the arguments"):
        build_trainer([wrong()])


def test_a_hook_may_name_its_arguments_as_it_likes(points):
    class Renamed(Callback):
        def on_epoch_end(self, t: Trainer, *rest: Any) -> None:
            t.stop("seen")

    assert train(build_trainer([Renamed]), points).stop_reason == "seen"


@pytest.mark.parametrize("given", [3, "EarlyStopping", None])
def test_what_is_no_callback_is_refused(given):
    with pytest.raises(
        ConfigurationError, match=r"is not a callback: pass a loopwright.Callback, or a function"
    ):
        build_trainer([given])


def test_a_plain_function_hears_the_metrics_of_every_epoch(points):
    rows = []

    def note(trainer: Trainer, metrics: Any) -> None:
        rows.append((trainer.progress.epoch, dict(metrics)))

    trainer = train(build_trainer([note]), points, num_epochs=2)
    assert rows == [(1, trainer.history.epochs[0]), (2, trainer.history.epochs[1])]


def test_a_function_of_other_arguments_is_refused():
    def wrong(trainer: Trainer) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"Callback function wrong does not take .*trainer, metrics"
    ):
        build_trainer([wrong])


class Noted(Callback):
    """Writes down every event it hears."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.label, self.events = name, events


def _note(hook: str) -> Any:
    return lambda self, *args: self.events.append(f"{self.label}.{hook}")


for _hook in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(Noted, _hook, _note(_hook))


class NotedTrainer(Trainer):
    """A trainer whose own hooks write down the events too."""

    events: list[str] = []

    def on_epoch_start(self) -> None:
        self.events.append("trainer.on_epoch_start")

    def on_update_end(self) -> None:
        self.events.append("trainer.on_update_end")


def test_the_events_of_an_epoch_come_in_their_order(points, rare_log_points):
    events: list[str] = []
    trainer = build_trainer([Noted("a", events)], accumulate=2)
    trainer.train(points, 1, eval_data=points, batch_size=16)
    step = ["on_train_step_start", "on_train_step_end"]
    update = ["on_train_step_start", "on_optimizer_start", "on_train_step_end", "on_update_end"]
    expected = [
        *(
            "on_train_start",
            "on_epoch_start",
            *step,
            *update,
            *update,
            "on_log",
            "on_train_epoch_end",
        ),
        *("on_eval_start", *["on_eval_step_end"] * 3, "on_eval_end", "on_eval_log"),
        *("on_epoch_end", "on_loop_end", "on_train_end"),
    ]
    assert [event.removeprefix("a.") for event in events] == expected


def test_the_trainers_own_hook_runs_first_then_callbacks_in_their_order(points):
    events: list[str] = []
    NotedTrainer.events = events
    callbacks = [Noted("a", events), Noted("b", events)]
    trainer = NotedTrainer(
        build_net(), torch.optim.Adam, cross_entropy, callbacks=callbacks, progress="silent"
    )
    trainer.train(points, 1, batch_size=8)
    for hook in ("on_epoch_start", "on_update_end"):
        heard = [event for event in events if event.endswith(hook)]
        assert heard[:3] == [f"trainer.{hook}", f"a.{hook}", f"b.{hook}"]
    assert events.count("b.on_update_end") == UPDATES_PER_EPOCH


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


def test_a_failing_callback_is_named_with_its_hook(points):
    with pytest.raises(ZeroDivisionError, match="broken") as caught:
        train(build_trainer([Failing()]), points)
    assert caught.value.__notes__ == ["raised in Failing.on_update_end"]


def test_a_failing_function_is_named(points):
    def broken(trainer: Trainer, metrics: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        train(build_trainer([broken]), points)
    assert caught.value.__notes__ == ["raised in broken.on_epoch_end"]


def test_callbacks_hear_of_an_exception_which_is_raised_all_the_same(points):
    heard = []

    class Listening(Callback):
        def on_exception(self, trainer: Trainer, error: BaseException) -> None:
            heard.append(error)

    with pytest.raises(ZeroDivisionError) as caught:
        train(build_trainer([Failing, Listening]), points)
    assert heard == [caught.value]


def test_an_error_while_hearing_of_an_exception_is_added_to_it_and_hides_nothing(points):
    class Worse(Callback):
        def on_exception(self, trainer: Trainer, error: BaseException) -> None:
            raise KeyError("worse")

    with pytest.raises(ZeroDivisionError, match="broken") as caught:
        train(build_trainer([Worse, Failing]), points)
    assert caught.value.__notes__[-1] == "on_exception failed as well: KeyError('worse')"


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
    assert len(kinds) >= 4


def test_every_callback_is_in_the_document():
    text = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    missing = [name for name in loopwright.callbacks.__all__ if f"`{name}" not in text]
    assert missing == ["Interval", "freeze", "summarize", "unfreeze"]

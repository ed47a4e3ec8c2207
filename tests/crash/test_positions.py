"""Runs on sources that know their position, ended by SIGKILL: the same command goes on by position,
bit for bit."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loopwright import Callback, DataError, Trainer
from loopwright.callbacks import Checkpoints
from tests.mistakes import raises

from ..data.sources import INSTALLED, LENGTH, SOURCES, Opening, hugging_face
from ..forked import call_forked
from ..loops import assert_same_model

ALL = SOURCES | INSTALLED
KILLED_AT: list[int] = []  # not an attribute, which would be another setting of the run
# by torchdata's StatefulDataLoader
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


class Killed(Callback):
    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.progress.step in KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def loss_of(outputs: Tensor, targets: Any) -> Tensor:
    return nn.functional.mse_loss(outputs, targets.float())


class Rows(Trainer):
    """Takes pairs, and dicts of lists of numbers, as `datasets` gives them."""

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        x, y = (batch["x"][0], batch["y"][0]) if isinstance(batch, dict) else batch
        return x.float().reshape(-1, 1), y.float().reshape(-1, 1)


def train(data: Any, run_dir: Path | None, *killed_at: int, progress: str = "silent") -> Trainer:
    KILLED_AT[:] = killed_at
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    callbacks = [Checkpoints(every_updates=1), Killed()] if run_dir else []
    trainer = Rows(
        model,
        partial(torch.optim.Adam, lr=0.01),
        loss_of,
        seed=4,
        run_dir=run_dir,
        callbacks=callbacks,
        progress=progress,
    )
    trainer.train(data, 3)
    return trainer


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_a_killed_run_goes_on_by_position(build: Any, tmp_path: Path) -> None:
    whole = train(build(), None)
    assert whole.progress.step == 3 * LENGTH
    for step in (2, LENGTH, LENGTH + 4):
        ended = call_forked(partial(_train_again, build, tmp_path / "run", step), tmp_path)
        assert ended.code == -signal.SIGKILL, ended.err
    data = build()
    last = train(data, tmp_path / "run")
    assert_same_model(last.model, whole.model)
    assert last.history.epochs == whole.history.epochs
    source = getattr(data, "dataset", data)
    if hasattr(source, "drawn"):
        # the rest of two epochs; a resume point may be a step or two old
        assert source.drawn < 2 * LENGTH - 1


def _train_again(build: Any, run_dir: Path, step: int) -> None:
    import warnings

    warnings.filterwarnings("ignore", message="'set_vital'")
    train(build(), run_dir, step)


def test_a_killed_run_with_a_shuffle_buffer_reads_its_epoch_again_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    build = partial(hugging_face, buffer_size=4)
    whole = train(build(), None)
    assert (
        call_forked(partial(_train_again, build, tmp_path / "run", LENGTH + 4), tmp_path).code
        == -signal.SIGKILL
    )
    last = train(build(), tmp_path / "run", progress="lines")
    assert_same_model(last.model, whole.model)
    assert (
        "items of IterableDataset were read again to return to the saved position"
        in capsys.readouterr().out
    )


# Mistakes


def test_a_generator_function_that_was_not_called() -> None:
    def batches() -> Any:
        yield torch.ones(2, 1), torch.ones(2, 1)

    with raises("not-iterable", "function"):
        train(batches, None)


def test_an_iterator_that_is_used_for_a_second_epoch(mistake: Any) -> None:
    batches = iter([(torch.ones(2, 1), torch.ones(2, 1))])
    with mistake(
        "Data",
        "An iterator for several epochs",
        DataError,
        match="an iterator can be used only once",
    ):
        train(batches, None)


def test_a_source_that_fails_to_give_its_state_ends_the_run_with_its_first_batch(
    tmp_path: Path,
) -> None:
    class Failing(SOURCES["a node"]):  # type: ignore[misc]
        def state_dict(self) -> Any:
            raise RuntimeError("not now")

    with pytest.raises(DataError, match=r"Failing.state_dict\(\) failed \(RuntimeError: not now\)"):
        train(Failing(), tmp_path / "run")


def test_a_source_without_a_position_is_refused_with_a_run_directory(tmp_path: Path) -> None:
    from ..data.sources import Counter

    with pytest.raises(DataError, match="`get_state` and `set_state`"):
        train(Opening(Counter), tmp_path / "run")

"""Signals and kills between the last update of a call and the end of `train`: the run is finished,
and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.run import MetricsStore
from loopwright.run.reading import Run
from tests.runs import epochs_of, steps_of

from ..forked import Ended, call_forked
from ..loops import build_net
from ..runs import adam, cross_entropy


class SignalAt(Callback):
    """Sends this process a signal when the last checkpoint is saved, or in the event after that,
    before all others."""

    def __init__(self, event: str, number: int) -> None:
        self.precedence = {"on_loop_end": 2, "on_train_end": -1}[event]
        setattr(self, event, self._send)
        self.number = number

    def _send(self, trainer: Trainer) -> None:
        os.kill(os.getpid(), self.number)


class Evaluating(Callback):
    """Measures in the last event; an evaluation that a signal ends has no result."""

    def on_train_end(self, trainer: Trainer) -> None:
        Path("measured").write_text(str(trainer.evaluate(trainer.run.data.given)["loss"]))


def program(points: TensorDataset, *callbacks: Callback) -> Callable[[], None]:
    def run() -> None:
        own = [Evaluating(), Checkpoints(every_epochs=1), *callbacks]
        trainer = Trainer(
            build_net(), adam, cross_entropy, run_dir="run", callbacks=own, progress="silent"
        )
        trainer.train(points, batch_size=8, num_updates=7)  # in the second epoch of five updates
        print("after train")

    return run


def recorded(run: Path) -> tuple[list[object], list[object]]:
    store = MetricsStore(run / "metrics.sqlite")
    try:
        return list(steps_of(store)), list(epochs_of(store))
    finally:
        store.close()


def run_in(folder: Path, points: TensorDataset, *callbacks: Callback) -> Ended:
    folder.mkdir(exist_ok=True)
    return call_forked(program(points, *callbacks), folder)


@pytest.fixture
def whole(tmp_path: Path, points: TensorDataset) -> Path:
    assert run_in(tmp_path / "whole", points).code == 0
    return tmp_path / "whole"


@pytest.mark.parametrize("event", ["on_loop_end", "on_train_end"])
def test_a_signal_after_the_last_update_leaves_a_finished_run(tmp_path, points, whole, event):
    ended = run_in(tmp_path / "late", points, SignalAt(event, signal.SIGTERM))
    assert (ended.code, "after train" in ended.out) == (143, False)
    assert (tmp_path / "late" / "measured").read_text() == (whole / "measured").read_text()
    view = Run(tmp_path / "late" / "run")
    assert (view.state, view.progress.update) == ("finished", 7)
    assert recorded(tmp_path / "late" / "run") == recorded(whole / "run")
    again = run_in(tmp_path / "late", points)
    assert (again.code, "after train" in again.out) == (0, True)
    assert Run(tmp_path / "late" / "run").state == "finished"


@pytest.mark.parametrize("event", ["on_loop_end", "on_train_end"])
def test_a_run_that_was_killed_after_its_last_update_is_finished_once_it_is_started_again(
    tmp_path, points, whole, event
):
    assert (
        run_in(tmp_path / "killed", points, SignalAt(event, signal.SIGKILL)).code == -signal.SIGKILL
    )
    assert Run(tmp_path / "killed" / "run").state == "crashed"
    assert run_in(tmp_path / "killed", points).code == 0
    view = Run(tmp_path / "killed" / "run")
    assert (view.state, view.progress.update) == ("finished", 7)
    assert recorded(tmp_path / "killed" / "run") == recorded(whole / "run")
    kinds = [found.kind for found in view.metrics.events()]
    assert (kinds.count("finished"), kinds[-1]) == (1, "finished")


def test_a_finished_run_without_its_manifest_is_still_finished(tmp_path, points, whole):
    (whole / "run" / "run.json").unlink()
    again = run_in(whole, points)
    assert (again.code, "after train" in again.out) == (0, True)
    assert not (whole / "run" / "run.json").exists()

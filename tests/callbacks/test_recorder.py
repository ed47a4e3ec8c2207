"""The record of a run in its directory: metrics of steps and epochs, and how it ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.callbacks.recorder import RunRecorder
from loopwright.checkpoint import list_checkpoints
from loopwright.run import MetricsStore, RunDirectory, RunManifest
from tests.forked import call_forked
from tests.runs import epochs_of, steps_of

from .runs import Crash, build_trainer, train


def metrics(run_dir: Path) -> MetricsStore:
    return MetricsStore(RunDirectory(run_dir).metrics_path)


def manifest(run_dir: Path) -> RunManifest:
    return RunManifest.read(RunDirectory(run_dir).manifest_path)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("flush_seconds", [-1.0, 1e9])
def test_every_step_is_recorded_once_with_its_update(
    tmp_path, points, monkeypatch, accumulate, flush_seconds
):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", flush_seconds)
    trainer = train(build_trainer(run_dir=tmp_path, accumulate=accumulate), points, num_epochs=2)
    updates = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] if accumulate == 1 else [1, 1, 2, 2, 3, 4, 4, 5, 5, 6]
    losses = list(trainer.history.steps["loss"])
    expected = [
        (update, step, "loss", losses[step - 1]) for step, update in enumerate(updates, start=1)
    ]
    assert steps_of(metrics(tmp_path)) == expected


def test_an_epoch_that_was_cut_short_is_recorded_and_then_replaced(tmp_path, points):
    trainer = build_trainer(run_dir=tmp_path)
    trainer.train(points, num_updates=3, batch_size=8)
    assert [row[:3] for row in epochs_of(metrics(tmp_path))] == [(1, 3, "loss")]
    trainer.train(points, 1, batch_size=8)
    assert epochs_of(metrics(tmp_path)) == [(1, 5, "loss", trainer.history.last("loss"))]


def test_a_run_goes_on_exactly_where_its_metrics_were_lost(tmp_path, points):
    """The history is that of the run that was left alone: it is in the resume point, not in the
    file."""
    straight = train(build_trainer(run_dir=tmp_path / "straight"), points)
    train(build_trainer(run_dir=tmp_path / "run"), points, num_epochs=2)
    store = MetricsStore(tmp_path / "run" / "metrics.sqlite")
    store.truncate(step=7, epoch=1)
    store.close()
    again = train(build_trainer(run_dir=tmp_path / "run"), points)
    assert again.history.epochs == straight.history.epochs
    assert list(again.history.steps["loss"]) == list(straight.history.steps["loss"])
    (tmp_path / "run" / "metrics.sqlite").unlink()
    train(build_trainer(run_dir=tmp_path / "run"), points, num_epochs=4)
    assert [row[1] for row in steps_of(metrics(tmp_path / "run"), "loss")] == [16, 17, 18, 19, 20]


def test_a_finished_run_says_so_with_its_progress(tmp_path, points):
    train(build_trainer(run_dir=tmp_path, seed=3), points, num_epochs=2)
    found = manifest(tmp_path)
    assert (found.state, found.reason, found.seed, found.device) == ("finished", None, 3, "cpu")
    assert {name: found.progress[name] for name in ("epoch", "step", "update", "sample")} == {
        "epoch": 2,
        "step": 10,
        "update": 10,
        "sample": 74,
    }


def test_a_failed_run_names_the_error_and_a_restart_clears_it(tmp_path, points):
    with pytest.raises(ZeroDivisionError):
        train(build_trainer([Crash(2)], run_dir=tmp_path), points)
    assert (manifest(tmp_path).state, manifest(tmp_path).reason) == (
        "failed",
        "ZeroDivisionError: crash",
    )
    train(build_trainer(run_dir=tmp_path), points)
    assert (manifest(tmp_path).state, manifest(tmp_path).reason) == ("finished", None)


def test_an_interrupt_from_the_keyboard_is_no_failure(tmp_path, points):
    class Interrupt(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(build_trainer([Interrupt], run_dir=tmp_path), points)
    assert manifest(tmp_path).state == "interrupted"


class KillBeforeSaving(Callback):
    """Ends the process for good after an update, before its resume point: that of the update before
    is the last."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_has_all_metrics_up_to_its_last_resume_point_and_once_resumed_each_once(
    tmp_path, points, caplog
):
    def run(name: str, *others: Callback) -> None:
        callbacks = [Checkpoints(every_updates=1, asynchronous=False), *others]
        train(build_trainer(callbacks, run_dir=tmp_path / name), points)

    run("straight")
    for update in (3, 7, 8, 12):
        ended = call_forked(lambda update=update: run("killed", KillBeforeSaving(update)), tmp_path)
        assert ended.code == -signal.SIGKILL, ended.err
        newest = [info for info in list_checkpoints(tmp_path / "killed") if info.kind != "kept"][-1]
        assert steps_of(metrics(tmp_path / "killed"))[-1][1] == newest.meta["step"] == update - 1
    run("killed")
    straight, killed = metrics(tmp_path / "straight"), metrics(tmp_path / "killed")
    assert steps_of(straight) == steps_of(killed)
    assert epochs_of(straight) == epochs_of(killed)
    assert "has no metrics of steps" not in caplog.text


def test_metrics_that_are_removed_while_the_run_writes_them_are_missed_and_not_silently_lost(
    tmp_path, points, caplog
):
    class Removes(Callback):
        def on_epoch_end(self, trainer: Trainer, row: dict[str, float]) -> None:
            if trainer.progress.epoch == 1:
                recorder = next(c for c in trainer.run.callbacks if isinstance(c, RunRecorder))
                assert recorder._metrics is not None
                recorder._metrics.flush()
                for path in tmp_path.glob("metrics.sqlite*"):
                    path.unlink()

    trainer = train(build_trainer([Removes()], run_dir=tmp_path), points, num_epochs=2)
    said = [line for line in caplog.messages if "was removed while the run was writing it" in line]
    assert len(said) == 1
    losses = list(trainer.history.steps["loss"])
    assert [value for _, step, _, value in steps_of(metrics(tmp_path), "loss")] == losses[5:]


@pytest.mark.parametrize("flush_seconds", [-1.0, 1e9])
def test_the_steps_of_an_epoch_that_an_exception_ended_are_there_once_the_trainer_trains_on(
    tmp_path, points, monkeypatch, flush_seconds
):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", flush_seconds)
    crash = Crash(8)
    trainer = build_trainer([crash], run_dir=tmp_path)
    with pytest.raises(ZeroDivisionError):
        train(trainer, points, num_epochs=3)
    crash.after_update = None
    # other data: the rest of the second epoch is left out
    train(trainer, TensorDataset(*points[:24]), num_epochs=1)
    losses = list(trainer.history.steps["loss"])
    assert [step for _, step, _, _ in steps_of(metrics(tmp_path), "loss")] == list(range(1, 12))
    assert [value for *_, value in steps_of(metrics(tmp_path), "loss")] == losses
    assert len(trainer.history.epochs) == trainer.progress.epoch == 3
    assert trainer.history["loss"][1] == sum(losses[5:8]) / 3
    assert [epoch for epoch, *_ in epochs_of(metrics(tmp_path), "eval_loss")] == [1, 3]


def test_what_git_says_after_the_first_step_is_still_recorded(tmp_path, points, monkeypatch):
    """This git answers once a step was taken: whoever waits for it before that never hears it."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("a" * 40)
    program = tmp_path / "git"
    program.write_text(
        f"#!/bin/sh\nwhile [ ! -e {tmp_path}/stepped ]; do sleep 0.02; done\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    class Stepped(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            (tmp_path / "stepped").touch()

    train(build_trainer([Stepped()], run_dir=tmp_path / "run"), points)
    found = manifest(tmp_path / "run")
    assert (found.git_commit, found.git_dirty, found.state) == ("a" * 40, True, "finished")


def test_a_stopped_run_says_why(tmp_path, points):
    def stop(trainer: Trainer, metrics: Any) -> None:
        trainer.stop("enough")

    train(build_trainer([stop], run_dir=tmp_path), points)
    assert (manifest(tmp_path).state, manifest(tmp_path).reason) == ("stopped", "enough")

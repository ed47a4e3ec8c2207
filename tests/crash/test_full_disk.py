"""A disk that fills up while training: it stops or goes on, as asked; what was saved before stays
as it was."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, CheckpointError, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.checkpoint import list_checkpoints, update_name
from loopwright.run import MetricsStore, RunManifest
from tests.runs import steps_of

from ..loops import build_net
from ..metrics.step_rows import rows_of
from ..runs import adam, assert_same_run, cross_entropy, rows


class Filling(Callback):
    """Takes up what is free of a disk after one update, and may give it back after another.

    While this goes on a resume point may be on its way. It must not be followed by the removal of
    an old one, which would make room for all that follow: tests keep them all.
    """

    def __init__(self, disk: Path, update: int, until: int | None = None) -> None:
        self.file, self.update, self.until = disk / "filler", update, until

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            fill(self.file)
        if trainer.progress.update == self.until:
            self.file.unlink()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def build(run_dir: Path, callbacks: list[Callback], saving: Checkpoints) -> Trainer:
    return Trainer(
        build_net(),
        adam,
        cross_entropy,
        run_dir=run_dir,
        callbacks=[*callbacks, saving],
        progress="silent",
    )


def test_training_stops_at_the_next_step_and_goes_on_when_there_is_room(
    points: TensorDataset, small_disk: Path, tmp_path: Path
) -> None:
    whole = build(tmp_path / "whole", [], Checkpoints(every_updates=1))
    whole.train(points, 4, batch_size=8)
    run_dir = small_disk / "run"
    first = build(run_dir, [Filling(small_disk, update=7)], Checkpoints(every_updates=1, keep=20))
    with pytest.raises(
        CheckpointError, match=r"(could not|cannot) be written: .*(No space left|is full)"
    ):
        first.train(points, 4, batch_size=8)
    assert first.progress.update <= 8
    saved = list_checkpoints(run_dir, verify=True)
    assert all(info.is_sound for info in saved)
    # which may still have been on its way
    assert saved[-1].name in (
        update_name(5),
        update_name(6),
    )
    (small_disk / "filler").unlink()
    second = build(run_dir, [Filling(small_disk, update=-1)], Checkpoints(every_updates=1))
    second.train(points, 4, batch_size=8)
    assert_same_run(second, whole)
    assert rows(second) == rows(whole)


@pytest.mark.parametrize("flushes", [False, True])
def test_training_goes_on_where_asked_and_catches_up_when_there_is_room(
    flushes: bool,
    points: TensorDataset,
    small_disk: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = build(tmp_path / "whole", [], Checkpoints(every_updates=1))
    whole.train(points, 4, eval_data=points, batch_size=8)
    filling = Filling(small_disk, update=7, until=16)
    saving = Checkpoints(
        every_updates=1 if flushes else 15, every_epochs=None, keep=20, on_error="warn"
    )
    trainer = build(small_disk / "run", [filling], saving)
    with caplog.at_level(logging.WARNING, "loopwright"):
        trainer.train(points, 4, eval_data=points, batch_size=8)
    assert "No space left" in caplog.text
    assert_same_run(trainer, whole)
    assert rows(trainer) == rows(whole)
    assert all(info.is_sound for info in list_checkpoints(small_disk / "run", verify=True))
    assert RunManifest.read(small_disk / "run" / "run.json").state == "finished"


def test_metrics_that_found_no_room_are_kept_and_written_when_there_is_some(
    small_disk: Path,
) -> None:
    store = MetricsStore(small_disk / "metrics.sqlite")
    store.add_steps(rows_of([(1, 1, "loss", 1.0)]))
    store.flush()
    fill(small_disk / "filler")
    many = [(step, step, "loss", 1 / step) for step in range(2, 30_000)]
    store.add_steps(rows_of(many))
    with pytest.raises(
        CheckpointError, match=r"cannot be written: .*full.*check the free disk space"
    ):
        store.flush()
    with pytest.raises(CheckpointError, match="cannot be written"):
        store.truncate(step=20_000, epoch=0)
    (small_disk / "filler").unlink()
    assert steps_of(store) == [(1, 1, "loss", 1.0), *many[:19_999]]
    store.close()

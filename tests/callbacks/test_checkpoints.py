"""Resume points by updates and epochs, and kept models by a metric."""

from __future__ import annotations

import os
import sys
from copy import deepcopy
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import BestModel, Checkpoints, EarlyStopping
from loopwright.checkpoint import CheckpointStore, KeepPolicy, KeptModels, read_checkpoint

from ..loops import assert_same_model, build_net
from ..mistakes import raises
from .runs import Crash, assert_same_after_crash, build_trainer, train


def saved(run_dir: Path) -> list[str]:
    return [entry.name for entry in CheckpointStore(run_dir / "checkpoints").entries()]


class Epochs(Callback):
    """Copies the model at every epoch's end and logs a given value as `score`."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.models: list[nn.Module] = []

    def metric_names(self, known: set[str]) -> set[str]:
        return {"score"}

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log({"score": self.scores[trainer.progress.epoch]})

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        self.models.append(deepcopy(trainer.model))


class Clock:
    """Time as these tests want it: it stands still but for what is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        for module in ("checkpoints", "best"):
            monkeypatch.setattr(f"loopwright.callbacks.{module}.monotonic", lambda: self.now)


class Evaluations(Callback):
    """Lets every evaluation take so many seconds, and notes what is saved when an epoch begins."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.seen: list[list[str]] = []

    def on_epoch_start(self, trainer: Trainer) -> None:
        assert trainer.run.files.directory is not None
        self.seen.append(
            [
                name[-2:]
                for name in sorted(os.listdir(trainer.run.files.directory.checkpoints))
                if name[0] != "."
            ]
        )

    def on_eval_end(self, trainer: Trainer, data: Any) -> None:
        self.clock.now += self.seconds


@pytest.mark.parametrize(
    ("options", "seconds", "expected"),
    [
        (
            {},
            6.0,
            [[], ["05"], ["05", "10"]],
        ),  # longer epochs than the floor: one at each end, evaluations counted
        ({}, 2.6, [[], [], ["10"]]),  # shorter ones: five seconds at least in between
        ({}, 0.0, [[], [], []]),
        ({"every_epochs": 1}, 0.0, [[], ["05"], ["05", "10"]]),  # what is asked for is obeyed
        ({"every_updates": 4, "keep": 9}, 0.0, [[], ["04"], ["04", "08"]]),
    ],
)
def test_resume_points_have_a_floor_in_seconds_unless_a_cadence_was_asked_for(
    tmp_path, points, monkeypatch, options, seconds, expected
):
    clock = Clock(monkeypatch)
    evaluations = Evaluations(clock, seconds)
    saving = Checkpoints(**options, asynchronous=False)
    train(build_trainer([evaluations, saving], run_dir=tmp_path), points)
    assert evaluations.seen == expected
    assert saved(tmp_path)[-1] == "update-00000015"  # the end is saved in any case


def test_an_epoch_of_one_update_costs_as_many_files_and_bytes_late_in_a_run_as_early(
    tmp_path, points, monkeypatch
):
    """Opened files and written bytes of 50 epochs, with a resume point and a kept model after every
    tenth of them."""
    clock, counts = Clock(monkeypatch), []

    class Counting(Callback):
        def on_epoch_start(self, trainer: Trainer) -> None:
            clock.now += 0.5
            # or a model that is still being written counts in the next 50
            for callback in trainer.run.callbacks:
                if isinstance(callback, Checkpoints) and callback._store is not None:
                    callback._store.writer.wait()
                for kept in callback.kept if isinstance(callback, BestModel) else ():
                    kept.writer.wait()
            if trainer.progress.epoch % 50 == 0:
                counts.append((len(opened), written_bytes()))

    def written_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])

    opened: list[str] = []
    watch_opening(str(tmp_path), opened)
    trainer = build_trainer([Counting(), EarlyStopping(patience=1000)], run_dir=tmp_path)
    trainer.train(points, 301, batch_size=37, eval_data=points)
    files, bytes_ = ([b - a for a, b in pairwise(column)] for column in zip(*counts, strict=True))
    assert len(files) == 6
    assert max(files[1:]) <= 1.5 * min(files[1:])
    assert max(bytes_[1:]) <= 2 * min(bytes_[1:])


def watch_opening(folder: str, opened: list[str]) -> None:
    """Note every file below a folder that is opened from now on; hooks cannot be taken away, so it
    ends by its list."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder):
            opened.append(arguments[0])

    sys.addaudithook(hook)


def test_the_end_of_training_is_always_saved(tmp_path, points):
    callback = Checkpoints(every_epochs=None, every_minutes=None)
    build_trainer([callback], run_dir=tmp_path).train(points, num_updates=7, batch_size=8)
    assert saved(tmp_path) == ["update-00000007"]


def test_after_an_exception_what_was_saved_before_is_complete(tmp_path, points):
    trainer = build_trainer([Checkpoints(every_updates=1, keep=1), Crash(4)], run_dir=tmp_path)
    with pytest.raises(ZeroDivisionError):
        train(trainer, points)
    assert saved(tmp_path) == ["update-00000004"]


def test_checkpoints_without_a_place_to_write_to_are_refused(points):
    with raises("no-run-dir", "`run_dir=`"):
        train(build_trainer([Checkpoints()]), points)


@pytest.mark.parametrize("after_update", [2, 5, 8])
def test_a_crash_after_any_update_changes_nothing(tmp_path, points, after_update):
    assert_same_after_crash(tmp_path, points, list, after_update, num_epochs=2)


SCORES = [0.2, 0.9, nan, 0.5]


def kept(run_dir: Path, keep: int) -> KeptModels:
    return KeptModels(run_dir / "kept", KeepPolicy("score", "max", keep))


def test_the_best_models_are_kept_with_their_metric(tmp_path, points):
    epochs = Epochs(SCORES)
    train(
        build_trainer([epochs, BestModel("score", keep=2)], run_dir=tmp_path), points, num_epochs=4
    )
    models = kept(tmp_path, 2).models()
    assert [(model.update, model.value) for model in models] == [(10, 0.9), (20, 0.5)]
    loaded = build_net(seed=9)
    loaded.load_state_dict(read_checkpoint(models[0].path).tree["models"]["model"])
    assert_same_model(loaded, epochs.models[1])


@pytest.mark.parametrize("has_run_dir", [False, True])
def test_the_best_weights_are_put_back_when_asked_for(tmp_path, points, has_run_dir):
    epochs = Epochs(SCORES)
    callbacks = [epochs, BestModel("score", restore=True)]
    trainer = train(
        build_trainer(callbacks, run_dir=tmp_path if has_run_dir else None), points, num_epochs=4
    )
    assert_same_model(trainer.model, epochs.models[1])


def test_putting_the_best_back_does_not_reach_the_resume_point(tmp_path, points):
    epochs = Epochs(SCORES)
    train(
        build_trainer([epochs, BestModel("score", restore=True)], run_dir=tmp_path),
        points,
        num_epochs=4,
    )
    newest = CheckpointStore(tmp_path / "checkpoints").newest()
    assert newest is not None
    loaded = build_net(seed=9)
    loaded.load_state_dict(newest.tree["models"]["model"])
    assert_same_model(loaded, epochs.models[3])

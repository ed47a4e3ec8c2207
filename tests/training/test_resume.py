"""The same run whatever happens to it: stopped, killed, started again with fresh objects, one
process."""

from __future__ import annotations

import os
import random
import signal
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import CatMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision, MulticlassRecall

from loopwright import Callback, Trainer
from loopwright.callbacks.checkpoints import Checkpoints
from tests.forked import call_forked
from tests.loops import assert_same_model, build_net
from tests.runs import KillAt, Killed, adam, assert_same_run, build_trainer, cross_entropy, rows

# Stopped by a limit, continued by raising it


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Runs that nothing happened to, each trained once."""
    inputs = torch.randn(37, 6, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())

    @cache
    def train(num_epochs: int, accumulate: int) -> Trainer:
        trainer = build_trainer(tmp_path_factory.mktemp("whole") / "run", accumulate=accumulate)
        trainer.train(data, num_epochs, eval_data=data, batch_size=8)
        return trainer

    return train


@pytest.mark.parametrize(
    ("stop_at", "accumulate"),
    [*((n, 1) for n in (1, 4, 5, 6, 9, 10, 11, 14)), *((n, 2) for n in (1, 3, 5, 8))],
)
def test_a_run_stopped_anywhere_and_continued_with_fresh_objects_is_the_same_run(
    points, tmp_path, whole_run, stop_at, accumulate
):
    whole = whole_run(3, accumulate)
    assert stop_at < whole.progress.update
    first = build_trainer(tmp_path / "cut", accumulate=accumulate)
    first.train(points, num_updates=stop_at, eval_data=points, batch_size=8)
    torch.manual_seed(99)
    second = build_trainer(tmp_path / "cut", accumulate=accumulate)
    second.train(points, 3, eval_data=points, batch_size=8)
    assert_same_run(second, whole)
    assert rows(second) == rows(whole)
    assert torch.equal(
        second.run.generators.state()["torch"], whole.run.generators.state()["torch"]
    )


@pytest.mark.parametrize("kill_at", [1, 3, 5, 7, 10, 13])
def test_a_run_killed_anywhere_is_the_same_run(points, tmp_path, whole_run, kill_at):
    whole = whole_run(5, 2)
    with pytest.raises(Killed):
        build_trainer(tmp_path / "cut", [KillAt(kill_at)], accumulate=2).train(
            points, 5, eval_data=points, batch_size=8
        )
    second = build_trainer(tmp_path / "cut", [KillAt(-1)], accumulate=2)
    second.train(points, 5, eval_data=points, batch_size=8)
    assert_same_run(second, whole)
    assert rows(second) == rows(whole)


class Augmented(Dataset):
    """Every sample with noise from all three generators."""

    def __init__(self, points: TensorDataset) -> None:
        self.points = points

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        return x + torch.randn(6) * 0.1 + random.gauss(0, 0.1) + float(np.random.normal(0, 0.1)), y


def test_augmentation_goes_on_as_if_nothing_had_happened(points, tmp_path):
    whole = build_trainer(None)
    whole.train(Augmented(points), 2, batch_size=8)
    with pytest.raises(Killed):
        build_trainer(tmp_path, [KillAt(7)]).train(Augmented(points), 2, batch_size=8)
    second = build_trainer(tmp_path, [KillAt(-1)])
    second.train(Augmented(points), 2, batch_size=8)
    assert_same_model(second.model, whole.model)


@pytest.mark.parametrize(("precision", "clip_norm"), [("bf16", 0.5), ("fp16", None)])
def test_mixed_precision_goes_on_exactly_scaler_included(points, tmp_path, precision, clip_norm):
    options = {"precision": precision, "clip_norm": clip_norm, "scheduler": None}
    whole = build_trainer(None, **options)
    whole.train(points, 3, batch_size=8)
    with pytest.raises(Killed):
        build_trainer(tmp_path, [KillAt(8)], **options).train(points, 3, batch_size=8)
    second = build_trainer(tmp_path, [KillAt(-1)], **options)
    second.train(points, 3, batch_size=8)
    assert_same_run(second, whole)
    update, other = second.run.updates.by_name["optimizer"], whole.run.updates.by_name["optimizer"]
    assert update.state_dict() == other.state_dict()


def test_a_plateau_schedule_goes_on_exactly(points, tmp_path):
    plateau = partial(ReduceLROnPlateau, patience=0, threshold=0.5)
    whole = build_trainer(None, scheduler=plateau)
    whole.train(points, 4, eval_data=points, batch_size=8)
    with pytest.raises(Killed):
        build_trainer(tmp_path, [KillAt(12)], scheduler=plateau).train(
            points, 4, eval_data=points, batch_size=8
        )
    second = build_trainer(tmp_path, [KillAt(-1)], scheduler=plateau)
    second.train(points, 4, eval_data=points, batch_size=8)
    assert_same_run(second, whole)


class KillAfterUpdate(Callback):
    """Ends the program when an evaluation is about to begin, after the resume point of the last
    update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_eval_start(self, trainer, data):
        if trainer.progress.update == self.update:
            raise Killed


@pytest.mark.parametrize("limit", [{"num_updates": 7}, {"num_updates": 10}, {"num_epochs": 2}])
def test_a_run_killed_between_its_last_update_and_its_evaluation_is_evaluated_when_resumed(
    points, tmp_path, limit
):
    whole = build_trainer(tmp_path / "whole")
    whole.train(points, eval_data=points, batch_size=8, **limit)
    last = whole.progress.update
    with pytest.raises(Killed):
        build_trainer(tmp_path / "cut", [KillAfterUpdate(last)]).train(
            points, eval_data=points, batch_size=8, **limit
        )
    second = build_trainer(tmp_path / "cut", [KillAfterUpdate(-1)])
    second.train(points, eval_data=points, batch_size=8, **limit)
    assert_same_run(second, whole)
    assert rows(second) == rows(whole)


class Measured(Trainer):
    """Metrics with a state of their own, of every kind, returned from the steps."""

    def configure_models(self):
        super().configure_models()
        self.accuracy = MulticlassAccuracy(3)
        self.labels = CatMetric()
        self.several = MetricCollection({"p": MulticlassPrecision(3), "r": MulticlassRecall(3)})

    def train_step(self, batch):
        result = super().train_step(batch)
        self.accuracy.update(result.outputs, batch[1])
        self.several.update(result.outputs, batch[1])
        self.labels.update(batch[1])
        return {"loss": result.loss, "accuracy": self.accuracy, "several": self.several}

    def on_train_epoch_end(self):
        values = self.labels.compute()
        self.log({"checksum": (values * torch.arange(len(values))).sum()})
        self.labels.reset()


@pytest.mark.parametrize("kill_at", [3, 5, 8])
def test_metrics_that_keep_their_own_state_go_on_exactly(points, tmp_path, kill_at):
    def build(run_dir: Path | None, callbacks=()) -> Trainer:
        saving = [Checkpoints(every_updates=1, asynchronous=False)] if run_dir else []
        return Measured(
            build_net(),
            adam,
            cross_entropy,
            run_dir=run_dir,
            callbacks=[*callbacks, *saving],
            progress="silent",
        )

    whole = build(None)
    whole.train(points, 2, batch_size=8)
    with pytest.raises(Killed):
        build(tmp_path, [KillAt(kill_at)]).train(points, 2, batch_size=8)
    second = build(tmp_path, [KillAt(-1)])
    second.train(points, 2, batch_size=8)
    assert set(whole.history.names) == {"loss", "accuracy", "p", "r", "checksum"}
    assert_same_run(second, whole)


def test_a_run_killed_in_its_second_call_goes_on_in_that_call(points, tmp_path):
    """A program of two phases, on two data sets."""
    small = TensorDataset(*(tensor[:20] for tensor in points.tensors))

    def program(run_dir: Path | None, callbacks=()) -> Trainer:
        trainer = build_trainer(run_dir, callbacks)
        trainer.train(points, 2, batch_size=8)
        torch.randn(100)  # what a program draws between its phases does not matter to the second
        trainer.train(small, 3, eval_data=points, batch_size=8)
        return trainer

    whole = program(tmp_path / "whole")
    for kill_at in (10, 12, 16):
        with pytest.raises(Killed):
            program(tmp_path / f"cut-{kill_at}", [KillAt(kill_at)])
        second = program(tmp_path / f"cut-{kill_at}", [KillAt(-1)])
        assert_same_run(second, whole)
        assert rows(second) == rows(whole)


# Really killed


class Kill(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_end(self, trainer, batch, result):
        if trainer.progress.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_program(run_dir: Path | str, callback: Callback) -> Trainer:
    """Saves in the background, every second update; the same program for every process."""
    inputs = torch.randn(37, 6, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    callbacks = [callback, Checkpoints(every_updates=2)]
    trainer = Trainer(
        build_net(),
        adam,
        cross_entropy,
        run_dir=run_dir,
        accumulate=2,
        progress="silent",
        callbacks=callbacks,
    )
    trainer.train(data, 4, eval_data=data, batch_size=8)
    return trainer


@pytest.mark.parametrize("kill_at", [1, 14])
def test_a_process_killed_for_real_leaves_the_same_run_in_the_end(tmp_path, kill_at):
    killed = call_forked(lambda: run_program(tmp_path / "cut", Kill(kill_at)), tmp_path)
    assert killed.code == -signal.SIGKILL, killed.err
    whole = run_program(tmp_path / "whole", Callback())
    cut = run_program(tmp_path / "cut", Callback())
    assert_same_run(cut, whole)
    assert rows(cut) == rows(whole)
    for name in ("torch", "numpy", "python"):
        assert str(cut.run.generators.state()[name]) == str(whole.run.generators.state()[name])

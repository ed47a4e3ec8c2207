"""The attributes that are compared, and the library's own attributes, which are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import (
    EMA,
    BestModel,
    Checkpoints,
    DatasetStatistics,
    EarlyStopping,
    Freeze,
    ParameterCount,
    Rewind,
    ScheduleLearningRate,
)
from loopwright.debug import check_resume
from loopwright.debug.unsaved_state import unsaved_state
from loopwright.schedules import Cosine

from ..loops import build_net


class Counting(Callback):
    """Counts steps and saves nothing; mixed into a shipped callback."""

    steps = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        super().on_train_step_end(trainer, batch, result)
        self.steps += 1


def counting(base: type[Callback], *args: Any, **options: Any) -> Callback:
    built: Callback = type(f"Counting{base.__name__}", (Counting, base), {"__module__": __name__})(
        *args, **options
    )
    return built


def callbacks() -> list[Callback]:
    return [
        counting(EMA, 0.9),
        counting(Rewind),
        counting(EarlyStopping, patience=5),
        counting(Checkpoints, every_updates=1),
        counting(BestModel),
        counting(DatasetStatistics),
        counting(Freeze, "0"),
        counting(ParameterCount),
        counting(ScheduleLearningRate, Cosine()),
    ]


def build(kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    net = build_net()
    return kind(
        net, torch.optim.Adam(net.parameters(), 0.01), nn.functional.cross_entropy, **options
    )


def test_of_subclasses_of_shipped_callbacks_only_the_users_attribute_is_reported(
    points: TensorDataset, tmp_path: Path
) -> None:
    report = check_resume(
        lambda: build(callbacks=callbacks(), run_dir=tmp_path / "run"), points, points, batch_size=8
    )
    assert report.differing == ()
    assert {difference.path.rpartition("/")[2] for difference in report.unsaved} == {"steps"}
    assert len(report.unsaved) == len(callbacks())


def test_a_trainer_that_has_trained_has_no_attributes_of_its_own(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = build(callbacks=[EMA(0.9)], run_dir=tmp_path, progress="silent")
    trainer.train(points, 1, eval_data=points, batch_size=8)
    assert unsaved_state(trainer, points)["trainer"] == {"loss_fn": None, "optimizer": None}

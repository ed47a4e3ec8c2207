"""The direction of metrics: a lower loss is better, whatever it is called."""

from __future__ import annotations

import pytest

from loopwright.callbacks import EarlyStopping, OfflineLoss
from loopwright.interfaces.configured import TrainerResult
from loopwright.run import Run

from .parts import CustomTrainer, Points, build_trainer


class Named(CustomTrainer):
    """One name is in no table, one in that of what is to rise."""

    def loss_compute(self, forward_output, targets):
        error = forward_output - targets["labels"]
        return {"fit": (error**2).mean(), "score": error.abs().mean()}


class OwnStep(Named):
    """The same in a step of the user's own."""

    def train_step(self, batch, model) -> TrainerResult:
        return super().train_step(batch, model)


@pytest.mark.parametrize(("kind", "metric"), [(Named, "test_fit"), (OwnStep, "test_score")])
def test_a_named_loss_on_a_data_set_is_to_fall(tmp_path, kind, metric):
    stopping = EarlyStopping(metric, patience=9)
    data = {"train": Points(16), "test": Points(8, seed=1)}
    callbacks = [OfflineLoss("test", every_n_epochs=1), stopping]
    trainer = build_trainer(
        kind, max_epochs=2, callbacks=callbacks, datasets=data, run_dir=tmp_path
    )
    trainer.train()
    assert (stopping.mode, stopping.best) == ("min", min(trainer.history[metric]))
    run = Run(tmp_path)
    assert {
        run.mode_of(name)
        for name in ("fit", "score", "test_fit", "test_score", "test_loss", "loss")
    } == {"min"}
    assert run.best(metric).value == stopping.best

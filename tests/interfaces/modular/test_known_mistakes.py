"""The mistakes of other trainers that the design names for this interface, and similar ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright.callbacks import EMA
from loopwright.interfaces.modular import Callback

from ...loops import build_net
from .programs import Config, MyTrainer, assert_same


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ema_is_updated_once_an_update_and_not_once_a_batch(accumulate: int) -> None:
    averages: list[torch.Tensor] = []

    class Own(Callback):
        """An average as one writes it, beside the shipped one."""

        def on_train_start(self, trainer: MyTrainer) -> None:
            averages[:] = [param.detach().clone() for param in trainer.model.parameters()]

        def on_update_end(self, trainer: MyTrainer) -> None:
            for average, param in zip(averages, trainer.model.parameters(), strict=True):
                average.lerp_(param.detach(), 1 - 0.9)

    ema = EMA(0.9)
    trainer = MyTrainer(
        Config(n_epochs=2, gradient_accumulation_steps=accumulate, callbacks=[ema, Own])
    )
    trainer.fit()
    assert ema.num_updates == trainer.global_step == 2 * math.ceil(5 / accumulate)
    state = ema.state["model"]
    for average, (name, _) in zip(averages, trainer.model.named_parameters(), strict=True):
        assert torch.equal(average, state[name])


def test_a_checkpoint_is_there_when_save_checkpoint_returns(tmp_path: Path) -> None:
    """A load right after its save, again and again, never sees an older or half-written one."""

    class Racing(MyTrainer):
        count = 0

        def on_update_end(self) -> None:
            self.save_checkpoint(tmp_path / "same")
            other = MyTrainer(Config(), build_net(seed=5))
            other.load_checkpoint(tmp_path / "same")
            assert other.global_step == self.global_step
            assert_same(other.model, self.model)
            Racing.count += 1

    Racing(Config(n_epochs=2)).fit()
    assert Racing.count == 10


@pytest.mark.parametrize("worst", [-math.inf, math.nan])
def test_negative_and_nan_metrics_keep_the_best_model(tmp_path: Path, worst: float) -> None:
    scores = [-3.0, worst, -1.5, -2.0]

    class Scoring(MyTrainer):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"score": scores[self.current_epoch]}

    config = Config(n_epochs=4, run_dir=tmp_path, monitor="val_score")
    Scoring(config).fit()
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir() if path.is_dir())
    # the update, no metric
    assert [name[-2:] for name in kept] == ["15"]


def test_a_scheduler_that_watches_a_metric_gets_the_validation_loss() -> None:
    class Watching(MyTrainer):
        def configure_schedulers(self) -> None:
            self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                self.optimizer, patience=0, threshold=1e9, threshold_mode="abs"
            )

    trainer = Watching(Config(n_epochs=3))
    history = trainer.fit()
    assert trainer.plateau.best == history["val_loss"][0]
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)

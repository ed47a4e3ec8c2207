"""Training and validation loops of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...loops import build_net
from .programs import Config, KillAt, Killed, MyTrainer, OwnLoop, assert_same


def test_a_validation_loop_of_ones_own_is_averaged_over_samples() -> None:
    class OwnValidation(OwnLoop):
        def validation_loop(self) -> None:
            for batch_idx, batch in enumerate(self.val_loader):
                self.log_metrics(self.validation_step(batch, batch_idx))

    config = Config(n_epochs=2)
    own, usual = OwnValidation(config, build_net()), MyTrainer(config, build_net())
    assert own.fit().to_dict() == usual.fit().to_dict()
    assert_same(own.model, usual.model)
    assert own.model.training


def test_a_loop_may_leave_an_epoch_early() -> None:
    class Short(OwnLoop):
        def training_loop(self) -> None:
            for _ in range(self.current_epoch, self.config.n_epochs):
                for batch_idx, batch in enumerate(self.train_loader):
                    self.log_metrics(self.training_step(batch, batch_idx))
                    if batch_idx == 2:
                        break
                self.validation_loop()

    trainer = Short(Config(n_epochs=2, gradient_accumulation_steps=2))
    history = trainer.fit()
    assert (trainer.current_epoch, trainer.global_step, trainer._core.progress.step) == (2, 2, 6)
    assert len(history["val_loss"]) == 2
    assert all(param.grad is None for param in trainer.model.parameters())


def test_a_loop_that_goes_on_is_left_at_the_limit() -> None:
    class Endless(OwnLoop):
        def training_loop(self) -> None:
            while True:
                for batch_idx, batch in enumerate(self.train_loader):
                    self.log_metrics(self.training_step(batch, batch_idx))

    trainer = Endless(Config(n_epochs=3, max_steps=7))
    trainer.fit()
    assert (trainer.global_step, trainer.current_epoch) == (7, 1)
    by_epochs = Endless(Config(n_epochs=2))
    by_epochs.fit()
    assert (by_epochs.global_step, by_epochs.current_epoch) == (10, 2)


@pytest.mark.parametrize("killed_at", [2, 5, 7])
def test_an_own_loop_is_resumed_exactly(tmp_path: Path, killed_at: int) -> None:
    options: dict[str, Any] = {
        "n_epochs": 3,
        "checkpoint_every_n_steps": 1,
        "gradient_accumulation_steps": 2,
    }
    whole = OwnLoop(Config(run_dir=tmp_path / "whole", **options), build_net())
    whole.fit()
    with pytest.raises(Killed):
        OwnLoop(
            Config(run_dir=tmp_path / "run", callbacks=[KillAt(killed_at)], **options), build_net()
        ).fit()
    again = OwnLoop(Config(run_dir=tmp_path / "run", **options), build_net(seed=9))
    again.fit()
    assert_same(again.model, whole.model)
    assert again.history.to_dict() == whole.history.to_dict()


def test_a_signal_leaves_an_own_loop_saved(tmp_path: Path) -> None:
    import os
    import signal

    from loopwright.errors import Interrupted

    class Leaving(OwnLoop):
        def on_update_end(self) -> None:
            if self.global_step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = OwnLoop(Config(n_epochs=2), build_net())
    whole.fit()
    with pytest.raises(Interrupted):
        Leaving(Config(n_epochs=2, run_dir=tmp_path), build_net()).fit()
    again = OwnLoop(Config(n_epochs=2, run_dir=tmp_path), build_net())
    again.fit()
    assert_same(again.model, whole.model)
    assert again.history.to_dict() == whole.history.to_dict()

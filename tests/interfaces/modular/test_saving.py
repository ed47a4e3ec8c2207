"""Resume points, checkpoints by hand, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright.callbacks import EMA
from loopwright.interfaces.modular import Callback

from ...loops import build_net
from .programs import Config, KillAt, Killed, MyTrainer, OwnFiles, assert_same


class Scheduled(MyTrainer):
    def configure_schedulers(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)


class Counting(Callback):
    """Has a state."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_batch_end(self, trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch_idx)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: Any) -> None:
        self.seen = list(state["seen"])


def build(run_dir: Path | None, *callbacks: Any, **options: Any) -> tuple[Scheduled, Counting, EMA]:
    counting, ema = Counting(), EMA(0.9)
    config = Config(
        n_epochs=3,
        run_dir=run_dir,
        checkpoint_every_n_steps=1,
        val_every_n_steps=2,
        callbacks=[counting, ema, *callbacks],
        **options,
    )
    return Scheduled(config, build_net()), counting, ema


@pytest.mark.parametrize("killed_at", [1, 4, 6])
def test_a_killed_run_goes_on_exactly(tmp_path: Path, killed_at: int) -> None:
    whole, counted, averaged = build(None, gradient_accumulation_steps=2)
    whole.fit()
    with pytest.raises(Killed):
        build(tmp_path, KillAt(killed_at), gradient_accumulation_steps=2)[0].fit()
    again, counting, ema = build(tmp_path, gradient_accumulation_steps=2)
    again.fit()
    assert_same(again.model, whole.model)
    assert counting.seen == counted.seen
    assert again.history.to_dict() == whole.history.to_dict()
    assert again.scheduler.state_dict() == whole.scheduler.state_dict()
    for name, value in averaged.state["model"].items():
        assert torch.equal(ema.state["model"][name], value)


def test_save_checkpoint_inside_a_window_saves_the_whole_update(tmp_path: Path) -> None:
    class Saving(MyTrainer):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if (self.current_epoch, batch_idx) == (1, 0):
                self.save_checkpoint(tmp_path / "inside")

    options = {"n_epochs": 3, "gradient_accumulation_steps": 2}
    whole = Saving(Config(**options), build_net())
    whole.fit()
    again = MyTrainer(Config(**options), build_net(seed=5))
    again.load_checkpoint(tmp_path / "inside")
    assert (again.current_epoch, again.global_step) == (1, 4)
    again.fit()
    assert_same(again.model, whole.model)
    assert again.history.to_dict() == whole.history.to_dict()


def test_save_dir_calls_save_checkpoint_after_epochs(tmp_path: Path) -> None:
    for kind in (MyTrainer, OwnFiles):
        folder = tmp_path / kind.__name__
        whole = kind(Config(n_epochs=4, save_dir=folder, save_every_n_epochs=2), build_net())
        whole.fit()
        assert sorted(path.name for path in folder.iterdir()) == ["epoch_2", "epoch_4"]
        again = kind(Config(n_epochs=4), build_net(seed=5))
        again.load_checkpoint(folder / "epoch_2")
        assert again.current_epoch == 2
        again.fit()
        assert (again.current_epoch, len(again.history)) == (4, 4 if kind is MyTrainer else 2)


def test_an_own_save_checkpoint_may_add_to_the_trainers(tmp_path: Path) -> None:
    class Adding(MyTrainer):
        def save_checkpoint(self, path: Any) -> None:
            super().save_checkpoint(path)
            (path / "note.txt").write_text("mine")

    trainer = Adding(Config())
    trainer.fit()
    trainer.save_checkpoint(tmp_path / "whole")
    again = MyTrainer(Config(), build_net(seed=5))
    again.load_checkpoint(tmp_path / "whole")
    assert (tmp_path / "whole" / "note.txt").read_text() == "mine"
    assert_same(again.model, trainer.model)

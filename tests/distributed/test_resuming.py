"""A run on several processes goes on exactly where it was, also on another number of them or under another strategy."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Trainer
from loopwright.callbacks import EMA, Checkpoints
from tests.distributed.ranks import run_ranks, start_ranks
from tests.distributed.scenarios import build_data, whole


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with randomness of their own."""

    def __init__(self) -> None:
        self.x, self.y = build_data(29).tensors

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(6, dtype=torch.float64), self.y[index]


def train(rank: int, runtime: str, folder: Path, kill: tuple[int, int] | None = None, num_updates: int = 10) -> dict:
    """Train with dropout, noisy data, a schedule and EMA; optionally one rank kills itself after some update."""

    class Fragile(Trainer):
        def on_update_end(self) -> None:
            if kill == (rank, self.progress.update):
                os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 2)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = Fragile(
        model,
        optimizer,
        nn.MSELoss(),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        callbacks=[EMA(0.9), Checkpoints(every_updates=3, keep=3)],
        runtime=runtime,
        run_dir=folder,
        accumulate=2,
        progress="silent",
    )
    history = trainer.train(Noisy(), num_updates=num_updates, eval_data=build_data(13), batch_size=4)
    ema = next(c for c in trainer.active_callbacks if isinstance(c, EMA))
    return {
        "weights": [whole(p) for p in model.parameters()],
        "moments": [whole(s["exp_avg_sq"]) for s in optimizer.state.values()],
        "ema": [whole(v) for v in ema.state["model"].values()],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "epochs": history.epochs,
        "steps": list(history.steps["loss"]),
        "rng": torch.get_rng_state(),
    }


def assert_same(first: dict, second: dict) -> None:
    for name, value in first.items():
        assert all(map(torch.equal, value, second[name])) if isinstance(value[0], Tensor) else value == second[name], (
            name
        )


@pytest.mark.parametrize(("world", "runtime"), [(2, "ddp"), (2, "fsdp"), (4, "ddp")])
def test_a_run_that_lost_a_rank_ends_as_one_that_did_not(world: int, runtime: str, tmp_path: Path) -> None:
    expected = run_ranks(train, world, runtime, tmp_path / "whole")
    ended = start_ranks(train, world, runtime, tmp_path / "killed", (world - 1, 5))
    assert ended[world - 1].code == -signal.SIGKILL
    assert all(rank.code != 0 for rank in ended)
    resumed = run_ranks(train, world, runtime, tmp_path / "killed")
    for first, second in zip(expected, resumed, strict=True):
        torch.testing.assert_close(first.pop("rng"), second.pop("rng"), rtol=0, atol=0)
        assert_same(first, second)


def take_part(rank: int, runtime: str, folder: Path, num_updates: int) -> dict:
    """A part of a run without dropout, whose mathematics is the same on any number of processes."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = Trainer(
        model,
        optimizer,
        nn.MSELoss(),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        callbacks=[EMA(0.9)],
        runtime=runtime,
        run_dir=folder,
        accumulate=2,
        progress="silent",
    )
    history = trainer.train(Noisy(), num_updates=num_updates, eval_data=build_data(13), batch_size=4)
    ema = next(c for c in trainer.active_callbacks if isinstance(c, EMA))
    return {
        "weights": [whole(p) for p in model.parameters()],
        "moments": [whole(s["exp_avg_sq"]) for s in optimizer.state.values()],
        "ema": [whole(v) for v in ema.state["model"].values()],
        "steps": torch.tensor(list(history.steps["loss"])),
    }


def test_a_run_that_moves_between_arrangements_ends_as_one_that_stayed(tmp_path: Path) -> None:
    expected = take_part(0, "cpu", tmp_path / "stayed", 11)
    folder = tmp_path / "moved"
    run_ranks(take_part, 2, "ddp", folder, 3)
    run_ranks(take_part, 3, "fsdp", folder, 6)
    take_part(0, "cpu", folder, 8)
    for moved in run_ranks(take_part, 2, "fsdp", folder, 11):
        torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-12)

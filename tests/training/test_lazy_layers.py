"""Models whose layers get their sizes from the first batch, in runs that can be resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback, Trainer
from loopwright.errors import ConfigurationError, Interrupted
from tests.distributed.ranks import run_ranks

adam = partial(torch.optim.Adam, lr=0.01, foreach=False)


def build_net() -> nn.Sequential:
    return nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(1))


def build(
    run_dir: Path | None,
    *callbacks: Any,
    makes_optimizer: bool = True,
    kind: type[Trainer] = Trainer,
) -> Trainer:
    net = build_net()
    optimizer = adam if makes_optimizer else adam(net.parameters())
    return kind(
        net, optimizer, nn.MSELoss(), run_dir=run_dir, callbacks=callbacks, progress="silent"
    )


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4)


class StopAt(Callback):
    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_start(self, trainer: Trainer) -> None:
        self.on_update_end(trainer)

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


def assert_same(model: nn.Module, other: nn.Module) -> None:
    mine, theirs = model.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_lazy_model_is_trained_as_by_hand() -> None:
    trainer = build(None)
    trainer.train(loader(), 2)
    torch.manual_seed(0)
    net = build_net()
    net(torch.zeros(4, 3))
    for module in net:  # as they were before any batch
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    optimizer = adam(net.parameters())
    for _ in range(2):
        for x, y in loader():
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(trainer.model, net)


@pytest.mark.parametrize("makes_optimizer", [True, False])
@pytest.mark.parametrize("update", [0, 1, 3, 4])
def test_a_lazy_model_can_be_resumed(update: int, makes_optimizer: bool, tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", makes_optimizer=makes_optimizer)
    whole.train(loader(), 2)
    with pytest.raises(Interrupted):
        build(tmp_path / "run", StopAt(update), makes_optimizer=makes_optimizer).train(loader(), 2)
    resumed = build(tmp_path / "run", makes_optimizer=makes_optimizer)
    resumed.train(loader(), 2)
    assert_same(resumed.model, whole.model)
    fresh = build(None)
    whole.save(tmp_path / "saved")
    fresh.load(tmp_path / "saved")
    assert_same(fresh.model, whole.model)


def batches() -> Iterator[Any]:
    yield from loader()


class Unlike(Trainer):
    def eval_step(self, batch: Any) -> Any:
        return {"nothing": 0.0}


CASES: dict[str, tuple[type[Trainer], Callable[[], Any], str]] = {
    "a `LazyLinear` and a generator of batches": (Trainer, batches, "without consuming it"),
    "a `LazyLinear` that `eval_step` does not use": (Unlike, loader, "does not use them"),
}


@pytest.mark.parametrize("what", CASES)
def test_a_lazy_model_without_a_batch_to_look_at_is_refused(what: str) -> None:
    kind, data, match = CASES[what]
    with pytest.raises(ConfigurationError, match=match):
        build(None, kind=kind).train(data(), 1)


def train_lazily(rank: int) -> str:
    try:
        build(None).train(loader(), 1)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_a_lazy_model_on_several_processes_is_refused() -> None:
    said = run_ranks(train_lazily, 2)
    assert "every process would draw its own weights" in said[0] == said[1]

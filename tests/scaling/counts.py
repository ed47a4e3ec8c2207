"""One update of a trainer on real processes: the collectives that it launched and the bytes that
each rank holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, DistributedRuntime, Mesh, Trainer
from loopwright.runtime import distributed
from loopwright.runtime.ddp import BUCKET_BYTES
from loopwright.runtime.dtensor import local_tensor
from loopwright.scaling import Collective, RankCost, UpdateSettings, rank_cost
from tests.scaling import models
from tests.scaling.counting import counted_collectives, table_of

COUNTED_UPDATE = 2  # the first ones also compare programs and parameters


@dataclass(frozen=True)
class Case:
    """A model, a strategy and settings: of the trainer, and of the runtime."""

    model: Callable[[], nn.Module]
    mesh: Mesh
    accumulate: int = 1
    clip_norm: float | None = None
    optimizer: Callable[..., Any] = torch.optim.AdamW
    runtime: dict[str, Any] = field(default_factory=dict)
    reshard: bool | int | None = None
    samples: int = 8

    @property
    def world(self) -> int:
        return self.mesh.size

    def cost(self, rank: int) -> RankCost:
        model = self.model()
        bucket_mb = self.runtime.get("bucket_mb")
        settings = UpdateSettings(
            self.mesh,
            self.accumulate,
            clips=self.clip_norm is not None,
            param_dtype=self.runtime.get("param_dtype"),
            reduce_dtype=self.runtime.get("reduce_dtype"),
            reshard_after_forward=self.reshard,
            bucket_bytes=BUCKET_BYTES if bucket_mb is None else int(bucket_mb * (1 << 20)),
            on_cpu=True,
        )
        return rank_cost(model, self.optimizer(model.parameters(), lr=0.1), settings, rank)


class CountUpdate(Callback):
    """Counts the collectives of one update, and the bytes that this rank holds at its end."""

    def __init__(self) -> None:
        self.counted: list[Collective] = []
        self.memory: dict[str, int] = {}
        self._counting = ExitStack()
        self._is_counting = False

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.progress.update == COUNTED_UPDATE and not self._is_counting:
            self._is_counting = True
            self.counted = self._counting.enter_context(counted_collectives())

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        grads = [param.grad for param in trainer.model.parameters() if param.grad is not None]
        self.memory["gradients"] = sum(local_tensor(grad).nbytes for grad in grads)

    def on_update_end(self, trainer: Trainer) -> None:
        self._counting.close()
        (optimizer,) = trainer.optimizers.values()
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.memory["parameters"] = sum(
            local_tensor(param).nbytes for param in trainer.model.parameters()
        )
        self.memory["optimizer"] = sum(
            local_tensor(value).nbytes for value in states if isinstance(value, torch.Tensor)
        )


def count(rank: int, cases: dict[str, Case]) -> dict[str, tuple[dict[Any, int], dict[str, int]]]:
    """For each case the table of counted collectives, and the bytes that this rank holds.

    With torch's own reduce-scatter, which devices use and costs are for; gloo has none
    (`runtime.reduce_scatter`).
    """
    # in this forked process
    distributed.HostReduceScatter = lambda: None  # type: ignore[assignment,misc]
    found = {}
    for name, case in cases.items():
        counting = CountUpdate()
        train(case, counting)
        found[name] = (
            table_of(counting.counted),
            counting.memory,
        )
    return found


def train(case: Case, *callbacks: Callback) -> None:
    """Train a case for as many updates as it takes to count one."""
    model = case.model()
    trainer = Trainer(
        model,
        lambda params: case.optimizer(params, lr=0.1),
        models.loss,
        runtime=DistributedRuntime(case.mesh, reshard_after_forward=case.reshard, **case.runtime),
        callbacks=callbacks,
        accumulate=case.accumulate,
        clip_norm=case.clip_norm,
        progress="silent",
    )
    data = TensorDataset(
        *models.example(model, (COUNTED_UPDATE + 1) * case.accumulate * case.samples)
    )
    trainer.train(data, num_updates=COUNTED_UPDATE + 1, batch_size=case.samples)

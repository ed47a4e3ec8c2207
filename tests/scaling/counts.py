"""One update of a trainer on real processes: the collectives that it launched and the bytes that
each rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import TensorDataset

from loopwright import Callback, DistributedRuntime, Mesh, Trainer
from loopwright._torch_compat.distributed import full_parameter, sharded_parameters
from loopwright.runtime.dtensor import local_tensor
from loopwright.runtime.process_group import RankGroup
from loopwright.scaling import (
    Cluster,
    Counted,
    Device,
    Estimate,
    counted_collectives,
    estimate,
    measure,
)
from loopwright.scaling.counting import table_of
from tests.scaling import models

CLUSTER = Cluster(
    Device("one core", 1e10, 8 * 10**9, 1e10, is_host=True), within="pcie4", between="ethernet10"
)
COUNTED_UPDATE = 2  # the first ones also compare programs and parameters


@dataclass(frozen=True)
class Case:
    """A model, a strategy and settings: of the trainer, of the runtime, and of the estimate."""

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

    def estimate(self) -> Estimate:
        model = self.model()
        inputs, _ = models.example(model, 4)
        shape = measure(model, inputs, plan=self.mesh.plan, tensor=max(self.mesh.tensor, 2))
        policy = {name: self.runtime.get(name) for name in ("param_dtype", "reduce_dtype")}
        return estimate(
            shape,
            self.mesh,
            devices=self.world,
            batch=self.samples * self.accumulate,
            accumulate=self.accumulate,
            cluster=CLUSTER,
            optimizer=self.optimizer(model.parameters(), lr=0.1),
            reshard_after_forward=self.reshard,
            clip_norm=self.clip_norm is not None,
            activation_checkpointing=self.runtime.get("activation_checkpointing", False),
            bucket_mb=self.runtime.get("bucket_mb"),
            **policy,
        )


class CountUpdate(Callback):
    """Counts the collectives of one update, and the bytes that this rank holds at its end."""

    def __init__(self) -> None:
        self.counted = Counted()
        self.memory: dict[str, int] = {}
        self._counting = ExitStack()
        self._is_counting = False
        self.full_gradients = 0  # bytes that FSDP2 keeps between two steps

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.progress.update == COUNTED_UPDATE and not self._is_counting:
            self._is_counting = True
            self.counted = self._counting.enter_context(counted_collectives())

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        if self._is_counting and not self.full_gradients:  # after the first step of the window
            self.full_gradients = sum(
                local_tensor(grad).nbytes for grad in _full_gradients(trainer.model)
            )

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


def _full_gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    """The full gradients that FSDP2 keeps for the next step of a window."""
    for module in model.modules():
        for held in sharded_parameters(module) if isinstance(module, FSDPModule) else ():
            full = full_parameter(held)
            grad = (
                held.unsharded_accumulated_grad if full is None or full.grad is None else full.grad
            )
            if grad is not None:
                yield grad


def count(
    rank: int, cases: dict[str, Case]
) -> dict[str, tuple[dict[Any, int], dict[str, int], int]]:
    """For each case the table of counted collectives, the bytes that this rank holds, and those of
    full gradients.

    With torch's own reduce-scatter, which devices use and estimates are for; gloo has none
    (`runtime.reduce_scatter`).
    """
    # in this forked process
    RankGroup.has_gloo = property(lambda _: False)  # type: ignore[assignment,method-assign]
    found = {}
    for name, case in cases.items():
        counting = CountUpdate()
        train(case, counting)
        found[name] = (
            table_of(counting.counted.collectives),
            counting.memory,
            counting.full_gradients,
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

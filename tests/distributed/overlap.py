"""Small trainings on two processes for the tests of gradients that travel during the backward
pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed as dist
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from loopwright import DistributedRuntime, Mesh, Trainer

EACH = 1e-6  # MiB: a bucket for every parameter


class Calls(TorchDispatchMode):
    """Counts collectives, whoever calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func.namespace == "c10d"
        return func(*args, **(kwargs or {}))


def build(depth: int = 4, width: int = 5, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(5)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers).to(dtype)


def build_data(num: int = 24, width: int = 5) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num, width, generator=generator)
    return TensorDataset(x, x.flip(1).sin())


def build_trainer(
    model: nn.Module,
    kind: type[Trainer] = Trainer,
    *,
    mesh: str | Mesh = "ddp",
    bucket_mb: float = EACH,
    **more: Any,
) -> Trainer:
    runtime = DistributedRuntime(mesh, bucket_mb=bucket_mb)
    optimizer = more.pop("optimizer", None) or torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9
    )
    return kind(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent", **more)


def train(
    trainer: Trainer, num_updates: int = 6, data: Any = None, batch_size: int | None = 6
) -> Trainer:
    trainer.train(
        build_data() if data is None else data, num_updates=num_updates, batch_size=batch_size
    )
    return trainer


def in_order(batch_size: int = 6) -> DataLoader[Any]:
    return DataLoader(build_data(), batch_size=batch_size)


def state_of(model: nn.Module) -> list[Tensor]:
    return [
        getattr(value, "full_tensor", lambda value=value: value)().clone()
        for value in model.state_dict().values()
    ]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def hand_written(
    rank: int, model: nn.Module, batches: Iterable[int], clip_norm: float = 0.5
) -> list[Tensor]:
    """The same training of two processes in plain torch: every gradient is averaged after the
    backward pass."""
    x, y = build_data().tensors
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for number in batches:
        at = slice(number * 6 + rank * 3, number * 6 + rank * 3 + 3)
        optimizer.zero_grad()
        # a slice's address may change the sums
        nn.functional.mse_loss(model(x[at].clone()), y[at].clone()).backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= 2
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return state_of(model)


class Counted(Trainer):
    def train_step(self, batch: Any) -> Any:
        with Calls() as calls:
            result = super().train_step(batch)
        self.counts = [*getattr(self, "counts", []), calls.number]
        return result

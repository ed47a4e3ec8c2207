"""What runs on each of two processes: DDP and FSDP2 loops written by hand, and ours, in the same
settings.

A contender is built once on every process, from a workload, and returns a function that trains for
so many steps and calls `after_step` after each. The batch of a workload is that of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from loopwright import Callback, StepResult, Trainer
from loopwright.callbacks.checkpoints import Checkpoints
from workloads import Block, SmallGPT, Workload

# trains for so many steps, and calls a function after each
Round = Callable[[int, Callable[[], None]], None]


def _wrapped(model: nn.Module, strategy: str) -> nn.Module:
    if strategy == "ddp":
        return DistributedDataParallel(model)
    if isinstance(model, SmallGPT):
        for block in model.modules():
            if isinstance(block, Block):
                fully_shard(block)
    return fully_shard(model)


def hand_written(work: Workload, strategy: str) -> Round:
    """As torch's tutorials write it: a loader with a DistributedSampler, `zero_grad`, `backward`,
    `step`."""
    model = _wrapped(work.build_model(), strategy)
    optimizer = work.build_optimizer(model.parameters())
    data = work.build_data()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=work.batch_size, sampler=sampler)

    def run(num_steps: int, after_step: Callable[[], None]) -> None:
        done, epoch, total = 0, 0, 0.0
        while True:
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = work.loss_fn(model(inputs), targets)
                loss.backward()
                optimizer.step()
                total += loss.item()
                after_step()
                done += 1
                if done == num_steps:
                    return
            epoch += 1

    return run


def tight(work: Workload, strategy: str) -> Round:
    """What an expert writes when it matters: no loader, a fused optimizer, no number read."""
    model = _wrapped(work.build_model(), strategy)
    optimizer = work.build_optimizer(model.parameters(), fused=True)
    inputs, targets = work.build_data().tensors
    rank, world = dist.get_rank(), dist.get_world_size()
    size = work.batch_size * world

    def run(num_steps: int, after_step: Callable[[], None]) -> None:
        done = 0
        while True:
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
            for start in range(rank * work.batch_size, len(inputs) - size + 1, size):
                at = order[start : start + work.batch_size]
                optimizer.zero_grad()
                work.loss_fn(model(inputs[at]), targets[at]).backward()
                optimizer.step()
                after_step()
                done += 1
                if done == num_steps:
                    return

    return run


class _AfterStep(Callback):
    """Calls a function after each step."""

    call: Callable[[], None]

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.call()


def _ours(work: Workload, strategy: str, *, is_factory: bool) -> Round:
    model, data = work.build_model(), work.build_data()
    optimizer = work.build_optimizer if is_factory else work.build_optimizer(model.parameters())
    after = _AfterStep()
    trainer = Trainer(
        model, optimizer, work.loss_fn, runtime=strategy, progress="silent", callbacks=[after]
    )
    size = work.batch_size * dist.get_world_size()

    def run(num_steps: int, after_step: Callable[[], None]) -> None:
        after.call = after_step
        trainer.train(data, num_updates=num_steps, batch_size=size)

    return run


def ours(work: Workload, strategy: str) -> Round:
    """The same program as on one process, with the user's own optimizer object."""
    return _ours(work, strategy, is_factory=False)


def ours_factory(work: Workload, strategy: str) -> Round:
    """The optimizer as a factory, built fused."""
    return _ours(work, strategy, is_factory=True)


CONTENDERS: dict[str, Callable[[Workload, str], Round]] = {
    function.__name__: function for function in (hand_written, tight, ours, ours_factory)
}


class Saving:
    """A trained model of so many parameters with its Adam, to be saved in two ways."""

    def __init__(self, num_params: int, strategy: str, folder: str) -> None:
        width = 1024
        layers = max(num_params // (width * width), 1)
        self.model = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers))
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.callback = Checkpoints(every_epochs=None, every_minutes=None, keep=1)
        self.file = Path(folder) / "whole.pt"
        self.trainer = Trainer(
            self.model,
            self.optimizer,
            nn.MSELoss(),
            runtime=strategy,
            callbacks=[self.callback],
            run_dir=Path(folder) / "run",
            progress="silent",
        )
        data = torch.utils.data.TensorDataset(torch.randn(4, width), torch.randn(4, width))
        self.trainer.train(data, num_updates=1, batch_size=4)

    def stall(self) -> float:
        """How long training stands still for an asynchronous save."""
        began = perf_counter()
        self.callback.save(self.trainer)
        return perf_counter() - began

    def wait(self) -> float:
        """How long the writing goes on behind it."""
        began = perf_counter()
        self.callback._store.writer.wait()
        dist.barrier()
        return perf_counter() - began

    def whole(self) -> float:
        """How long training stands still while the first process writes the whole state."""
        began = perf_counter()
        state = _gathered([self.model.state_dict(), self.optimizer.state_dict()])
        if dist.get_rank() == 0:
            torch.save(state, self.file)
        dist.barrier()
        return perf_counter() - began


def _gathered(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _gathered(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_gathered(value) for value in tree]
    return tree.full_tensor() if isinstance(tree, Tensor) and hasattr(tree, "full_tensor") else tree

"""A clock that stands still until a test moves it, so that what each part takes is known to the
nanosecond."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Callback, Trainer


class HandClock:
    """Takes the place of `perf_counter_ns`: `take(n)` lets n nanoseconds pass."""

    def __init__(self) -> None:
        self.moment = 1_000

    def __call__(self) -> int:
        return self.moment

    def take(self, nanoseconds: int) -> None:
        self.moment += nanoseconds


class SlowData(Dataset):
    """Samples of six numbers and a class, each of which takes its time."""

    def __init__(self, clock: HandClock, nanoseconds: int, length: int = 12) -> None:
        self.clock, self.nanoseconds, self.length = clock, nanoseconds, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.clock.take(self.nanoseconds)
        return torch.full((6,), index / self.length), index % 3


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, clock, nanoseconds):
        ctx.clock, ctx.nanoseconds = clock, nanoseconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.take(ctx.nanoseconds)
        return grad, None, None


class SlowNet(nn.Module):
    def __init__(self, clock: HandClock, forward: int, backward: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.clock = nn.Linear(6, 3), clock
        self.forward_takes, self.backward_takes = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        self.clock.take(self.forward_takes)
        return SlowGradient.apply(self.layer(x), self.clock, self.backward_takes)


class SlowSGD(torch.optim.SGD):
    clock: HandClock
    step_takes = 0

    def step(self, closure=None):
        self.clock.take(self.step_takes)
        return super().step(closure)


class SlowCallback(Callback):
    """Takes time at some events, by name."""

    def __init__(self, clock: HandClock, **events: int) -> None:
        self.clock, self.events = clock, events

    def on_train_step_start(self, trainer, batch):
        self.clock.take(self.events.get("on_train_step_start", 0))

    def on_update_end(self, trainer):
        self.clock.take(self.events.get("on_update_end", 0))

    def on_log(self, trainer, rows):
        self.clock.take(self.events.get("on_log", 0))

    def on_eval_end(self, trainer, data):
        self.clock.take(self.events.get("on_eval_end", 0))

    def on_train_start(self, trainer):
        self.clock.take(self.events.get("on_train_start", 0))

    def on_train_end(self, trainer):
        self.clock.take(self.events.get("on_train_end", 0))


class SlowTrainer(Trainer):
    """Takes time in `prepare_batch`, in the loss, and in the rest of `train_step`."""

    clock: HandClock
    takes = (0, 0, 0)

    def prepare_batch(self, batch):
        self.clock.take(self.takes[0])
        return super().prepare_batch(batch)

    def compute_loss(self, outputs, targets):
        self.clock.take(self.takes[1])
        return super().compute_loss(outputs, targets)

    def train_step(self, batch):
        self.clock.take(self.takes[2])
        return super().train_step(batch)


def slow_trainer(
    clock: HandClock, *, forward=0, backward=0, step=0, takes=(0, 0, 0), **options
) -> SlowTrainer:
    net = SlowNet(clock, forward, backward)
    optimizer = SlowSGD(net.parameters(), lr=0.1)
    optimizer.clock, optimizer.step_takes = clock, step
    trainer = SlowTrainer(net, optimizer, nn.functional.cross_entropy, progress="silent", **options)
    trainer.clock, trainer.takes = clock, takes
    return trainer

"""Gradients travel while the backward pass computes: what is sent when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import StepResult, Trainer
from tests.distributed.overlap import (
    EACH,
    Calls,
    Counted,
    build,
    build_data,
    build_trainer,
    equal,
    state_of,
    train,
)
from tests.distributed.ranks import RunRanks


class Watched(Trainer):
    """Counts the collectives of every step, and those of them that came before the backward pass
    reached the inputs."""

    def train_step(self, batch: Any) -> Any:
        self.counts: list[tuple[int, int]]
        inputs, during = batch[0].requires_grad_(), []
        with Calls() as calls:
            inputs.register_hook(lambda grad: during.append(calls.number))
            result = super().train_step(batch)
        self.counts = [*getattr(self, "counts", []), (during[0], calls.number)]
        return result


def count_collectives(rank: int, accumulate: int) -> tuple[list[tuple[int, int]], list[Any], int]:
    trainer = train(build_trainer(build(), Watched, accumulate=accumulate), num_updates=4)
    return trainer.counts, list(trainer.runtime.averaging.sent), trainer.runtime.averaging.num_sent


def test_all_buckets_but_one_are_sent_before_backward_ends(shared: RunRanks) -> None:
    for counts, sent, num_sent in shared(count_collectives, 2, 1):
        recorded, *others = counts
        assert recorded[0] == 0  # the first backward pass shows the order in which gradients come
        assert [total for _, total in others] == [8] * 3
        assert min(during for during, _ in others) >= 6  # the rest of them just behind the inputs
        assert [(bucket, in_backward) for bucket, _, in_backward in sent] == [
            (n, n < 7) for n in range(8)
        ]
        assert [num_bytes for _, num_bytes, _ in sent] == [
            4 * (3 + 1 + size) for size in [5, 25] * 4
        ]
        assert num_sent == 4 * 8


def test_nothing_is_sent_before_the_last_step_of_a_window(shared: RunRanks) -> None:
    for counts, _, num_sent in shared(count_collectives, 2, 2):
        assert [total for _, total in counts[2:]] == [0, 8] * 3
        assert min(during for during, total in counts[2:] if total) >= 6
        assert num_sent == 4 * 8


class Shuffled(nn.Module):
    """Layers that are used in another order than they were made in, one of them twice and one
    never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.third, self.first, self.unused, self.second = (
            nn.Linear(5, 5, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        return self.third(self.second(self.second(x).tanh()).tanh())


def order_of_use(rank: int) -> tuple[list[str], list[bool], list[bool]]:
    model = Shuffled()
    trainer = train(build_trainer(model, Keeping), num_updates=3)
    return (
        trainer.names,
        [in_backward for *_, in_backward in trainer.runtime.averaging.sent],
        trainer.has_gradient,
    )


class Keeping(Trainer):
    """Keeps what is gone after an update: the order of the buckets, and which parameters had a
    gradient."""

    def on_optimizer_start(self, name: str) -> None:
        names = {id(param): name for name, param in self.model.named_parameters()}
        self.has_gradient = [param.grad is not None for param in self.model.parameters()]
        (plan,) = self.runtime.averaging._plans.values()
        self.names = [
            names[id(param)].partition(".")[0] for bucket in plan.buckets for param in bucket.params
        ]


def test_buckets_follow_the_order_in_which_gradients_come_and_unused_parameters_are_last(
    shared: RunRanks,
) -> None:
    for names, in_backward, has_gradient in shared(order_of_use, 2):
        assert names == ["third", "second", "first", "unused"]
        assert in_backward == [True, True, True, False]
        assert has_gradient == [True, True, False, True]


def mix_types(rank: int) -> tuple[list[bool], int, bool]:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(5, 5).double(),
        Cast(),
        nn.Linear(5, 5),
        Cast(torch.double),
        nn.Linear(5, 5).double(),
    )
    trainer = build_trainer(model, Counted, bucket_mb=10)
    x, y = (tensor.double() for tensor in build_data().tensors)
    train(trainer, 4, TensorDataset(x, y))
    return (
        [s.in_backward for s in trainer.runtime.averaging.sent],
        trainer.counts[-1],
        bool(state_of(model)),
    )


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def test_gradients_of_two_types_take_a_bucket_each_and_the_message_none(shared: RunRanks) -> None:
    for in_backward, count, _ in shared(mix_types, 2):
        assert in_backward == [True, False]
        assert count == 2


class Two(Trainer):
    """Two optimizers, each with a loss of its own, and the first loss keeps its graph."""

    def train_step(self, batch: Any) -> Any:
        hidden = self.model[:4](batch[0])
        loss = nn.functional.mse_loss(self.model[4:](hidden), batch[1])
        self.update(loss, "last", retain_graph=True)
        self.sent = [list(self.runtime.averaging.sent)]
        self.update(hidden.square().mean(), "first")
        self.sent.append(list(self.runtime.averaging.sent))
        return StepResult(loss.detach())


def several_optimizers(rank: int, is_joint: bool) -> tuple[list[list[bool]], bool]:
    results = []
    for bucket_mb in (EACH, 25):
        model = build()
        optimizers = {
            "last": torch.optim.SGD(model[4:].parameters(), 0.1),
            "first": torch.optim.Adam(model[:4].parameters(), 0.01),
        }
        trainer = build_trainer(
            model, Trainer if is_joint else Two, bucket_mb=bucket_mb, optimizer=optimizers
        )
        results.append(state_of(train(trainer).model))
        if bucket_mb == EACH:
            sent = [trainer.runtime.averaging.sent] if is_joint else trainer.sent
    return [[one.in_backward for one in update] for update in sent], equal(*results)


@pytest.mark.parametrize(
    ("is_joint", "expected"), [(False, [[True] * 3 + [False]] * 2), (True, [[True] * 7 + [False]])]
)
def test_every_optimizer_sends_its_own_gradients_during_its_own_pass(
    shared: RunRanks, is_joint: bool, expected: Any
) -> None:
    assert shared(several_optimizers, 2, is_joint) == [(expected, True)] * 2


def leave_no_hooks(rank: int) -> list[bool]:
    model = build()
    train(build_trainer(model))
    small = build()
    watched: list[bool] = []

    class Looking(Trainer):
        def on_update_end(self) -> None:
            watched.append(
                any(param._post_accumulate_grad_hooks for param in self.model.parameters())
            )

    train(build_trainer(small, Looking, bucket_mb=25))
    return [any(param._post_accumulate_grad_hooks for param in model.parameters()), *watched]


def test_a_model_of_one_bucket_has_no_hooks_and_others_have_none_after_training(
    shared: RunRanks,
) -> None:
    assert shared(leave_no_hooks, 2) == [[False] * 7] * 2

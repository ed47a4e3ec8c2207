"""Gradients that travel during the backward pass: exceptions, gradients that come late, ranks that
have sent less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loopwright import StepResult, Trainer
from loopwright.runtime.ddp import Averaging
from loopwright.runtime.process_group import RankGroup
from tests.distributed.overlap import (
    build,
    build_trainer,
    equal,
    hand_written,
    in_order,
    state_of,
    train,
)
from tests.distributed.ranks import RunRanks, start_ranks
from tests.distributed.test_overlap_results import Tied


class Failing(torch.autograd.Function):
    """Does nothing, but raises in the backward pass if `error` is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Exception | None) -> Tensor:
        ctx.error = error
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.error is not None:
            raise ctx.error
        return grads[0], None


class Fragile(nn.Module):
    """Raises in the middle of a backward pass, in the forward passes that `errors` names."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__()
        self.layers, self.errors, self.calls = build(), errors, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layers[4:](Failing.apply(self.layers[:4](x), self.errors.get(self.calls)))


def fail_on_one(rank: int) -> None:
    train(build_trainer(Fragile({3: ValueError("broken here")} if rank == 1 else {})))


def test_an_exception_in_backward_of_one_process_ends_the_others_who_have_sent_more() -> None:
    first, second, third = start_ranks(fail_on_one, 3, limit=60.0)
    assert "ValueError: broken here" in second.error
    for rank in (first, third):
        assert rank.code != 0
        assert "rank 1" in rank.stderr + rank.error
    assert max(first.at, third.at) - second.at < 15.0


class Skipping(Trainer):
    """Leaves out a step whose backward pass fails."""

    def train_step(self, batch: Any) -> Any:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        try:
            self.update(loss)
        except ValueError:
            for update in self.run.updates.by_name.values():
                update.reset()
        return StepResult(loss.detach())


def skip_on_all(rank: int) -> bool:
    """On rank 1 the error comes when nothing was sent yet, on rank 0 when half of the buckets
    were."""
    model = Fragile({3: ValueError("broken here")})
    if rank == 1:
        model.forward = lambda x: (
            Fragile.forward(model, x) if model.calls != 2 else _fail_at_once(model, x)
        )
    trainer = build_trainer(model, Skipping, clip_norm=0.5)
    train(trainer, 5, in_order(), None)
    return equal(state_of(model.layers), hand_written(rank, build(), [0, 1, 3, 0]))


def _fail_at_once(model: Fragile, x: Tensor) -> Tensor:
    model.calls += 1
    return Failing.apply(model.layers(x), model.errors[3])


def test_a_pass_that_failed_on_all_processes_leaves_nothing_behind_in_the_next_one(
    shared: RunRanks,
) -> None:
    assert shared(skip_on_all, 2) == [True, True]


def use_more_often(rank: int) -> str:
    class Growing(Tied):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            for _ in range(1 if self.calls == 1 else 3):
                x = checkpoint(self.shared, x.requires_grad_(), use_reentrant=True).tanh()
            return self.last(self.first(x))

    with pytest.raises(RuntimeError) as raised:
        train(build_trainer(Growing(is_reentrant=True)))
    return str(raised.value)


def test_gradients_that_come_after_theirs_were_sent_are_an_error_and_not_lost(
    shared: RunRanks,
) -> None:
    for message in shared(use_more_often, 2):
        assert (
            "A parameter of shape (5,) received more gradients after its gradient was sent"
            in message
        )
        assert "use_reentrant=False" in message


def build_averaging(rank: int) -> tuple[Averaging, list[nn.Parameter], Callable[[float], Tensor]]:
    """Averaging of three parameters in a bucket each; a loss of them, whose gradients are its
    factor."""
    group = RankGroup.join()
    params = [nn.Parameter(torch.zeros(n)) for n in (2, 3, 4)]
    averaging = Averaging(
        None, group.world, max_bytes=1, gather=group.gather_objects, new_group=group.new_host_group
    )
    loss = lambda factor: sum((param.sum() * factor for param in params[rank:]), torch.zeros(()))  # noqa: E731
    for _ in range(2):  # the first pass is only recorded
        averaging.start(params)
        loss(1.0).backward()
        averaging.finish()
        averaging.average(params)
        for param in params:
            param.grad = None
    return averaging, params, loss


def add_a_second_loss(rank: int) -> tuple[list[list[float]], list[int]]:
    """Two backward passes before one `average`, as in an interface whose steps call `backward`
    twice."""
    averaging, params, loss = build_averaging(rank)
    grads, numbers = [], []
    for _ in range(2):
        for factor in (1.0, 2.0):
            before = averaging.num_sent
            averaging.start(params)
            loss(factor).backward()
            averaging.finish()
            numbers.append(averaging.num_sent - before)
        averaging.average(params)
        grads.append([float(param.grad.max()) for param in params])
        for param in params:
            param.grad = None
    return grads, numbers


def test_gradients_that_a_second_loss_adds_to_are_sent_again_and_later_only_once(
    shared: RunRanks,
) -> None:
    for grads, numbers in shared(add_a_second_loss, 2):
        assert grads == [[1.5, 3.0, 3.0]] * 2  # rank 1 does not use the first parameter
        assert numbers == [2, 0, 0, 0]  # and the last bucket is sent by `average`


def begin_again(rank: int) -> tuple[int, list[float]]:
    """Both ranks leave a backward pass, one when it has sent a bucket and one before; then training
    begins anew."""
    averaging, params, loss = build_averaging(rank)
    averaging.start(params)
    if rank == 0:
        loss(5.0).backward()
    averaging.finish(is_complete=False)
    num_sent = averaging.num_sent
    averaging.clear()
    for param in params:
        param.grad = None
    averaging.start(params)
    loss(2.0).backward()
    averaging.finish()
    averaging.average(params)
    return num_sent - 6, [float(param.grad.max()) for param in params]


def test_ranks_that_have_sent_different_numbers_of_buckets_begin_again_in_a_new_group(
    shared: RunRanks,
) -> None:
    assert shared(begin_again, 2) == [(2, [1.0, 2.0, 2.0]), (0, [1.0, 2.0, 2.0])]


ORDERS = {
    "other on each rank": ([0, 1, 2], [2, 1, 0]),
    "of fewer parameters": ([2, 0], [0, 1, 2]),
    "of more parameters": ([2, 0, 1, 3], [0, 1, 2]),
    "equal positions": ([5, 5, 5], [0, 0, 7]),
    "known on one rank only": ([-1, -1, -1], [2, 0, 1]),
    "half known": ([-1, 9, -1], [0, -1, -1]),
}


def take_up_orders(rank: int) -> dict[str, list[float]]:
    """Gradients of three parameters of one size, so that buckets of different parameters would be
    added up."""
    group, found = RankGroup.join(), {}
    for name, orders in ORDERS.items():
        params = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        averaging = Averaging(
            None, 2, max_bytes=1, gather=group.gather_objects, new_group=group.new_host_group
        )
        averaging.set_order(params, orders[rank])
        for _ in range(2):
            averaging.start(params)
            sum(param.sum() * 10**place for place, param in enumerate(params)).backward()
            averaging.finish()
            averaging.average(params)
            found[name] = [float(param.grad.max()) for param in params]
            for param in params:
                param.grad = None
    return found


def test_an_order_of_gradients_that_is_wrong_or_not_that_of_other_ranks_mixes_up_nothing(
    shared: RunRanks,
) -> None:
    assert shared(take_up_orders, 2) == [{name: [1.0, 10.0, 100.0] for name in ORDERS}] * 2

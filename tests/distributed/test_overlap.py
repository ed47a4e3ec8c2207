"""Gradients travel while the backward pass computes: what is sent when, and that the results are those of one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed as dist
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from loopwright import DistributedRuntime, Mesh, StepResult, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.runtime.ddp import Averaging
from loopwright.runtime.process_group import Group
from tests.distributed.ranks import run_ranks, start_ranks

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
    model: nn.Module, kind: type[Trainer] = Trainer, *, mesh: str | Mesh = "ddp", bucket_mb: float = EACH, **more: Any
) -> Trainer:
    runtime = DistributedRuntime(mesh, bucket_mb=bucket_mb)
    optimizer = more.pop("optimizer", None) or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return kind(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent", **more)


def train(trainer: Trainer, num_updates: int = 6, data: Any = None, batch_size: int | None = 6) -> Trainer:
    trainer.train(build_data() if data is None else data, num_updates=num_updates, batch_size=batch_size)
    return trainer


def in_order(batch_size: int = 6) -> DataLoader[Any]:
    return DataLoader(build_data(), batch_size=batch_size)


def state_of(model: nn.Module) -> list[Tensor]:
    return [getattr(value, "full_tensor", lambda value=value: value)().clone() for value in model.state_dict().values()]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


class Watched(Trainer):
    """Counts the collectives of every step, and those of them that came before the backward pass reached the inputs."""

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


def test_all_buckets_but_one_are_sent_before_backward_ends() -> None:
    for counts, sent, num_sent in run_ranks(count_collectives, 2, 1):
        recorded, *others = counts
        assert recorded[0] == 0  # the first backward pass shows the order in which gradients come
        assert others == [(7, 8)] * 3
        assert [(bucket, in_backward) for bucket, _, in_backward in sent] == [(n, n < 7) for n in range(8)]
        assert [num_bytes for _, num_bytes, _ in sent] == [4 * (3 + 1 + size) for size in [5, 25] * 4]
        assert num_sent == 4 * 8


def test_nothing_is_sent_before_the_last_step_of_a_window() -> None:
    for counts, _, num_sent in run_ranks(count_collectives, 2, 2):
        assert counts[2:] == [(0, 0), (7, 8)] * 3
        assert num_sent == 4 * 8


def hand_written(rank: int, model: nn.Module, batches: Iterable[int], clip_norm: float = 0.5) -> list[Tensor]:
    """The same training of two processes in plain torch: every gradient is averaged after the backward pass."""
    x, y = build_data().tensors
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for number in batches:
        at = slice(number * 6 + rank * 3, number * 6 + rank * 3 + 3)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[at].clone()), y[at].clone()).backward()  # a slice's address may change the sums
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= 2
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return state_of(model)


def compare_with_hand_written(rank: int, bucket_mb: float) -> bool:
    trainer = build_trainer(build(), bucket_mb=bucket_mb, clip_norm=0.5)
    train(trainer, 8, in_order(), None)
    return equal(state_of(trainer.model), hand_written(rank, build(), [0, 1, 2, 3] * 2))


@pytest.mark.parametrize("bucket_mb", [EACH, 150 / (1 << 20), 25])
def test_results_are_those_of_a_hand_written_loop_to_the_last_bit(bucket_mb: float) -> None:
    assert run_ranks(compare_with_hand_written, 2, bucket_mb) == [True, True]


class Shuffled(nn.Module):
    """Layers that are used in another order than they were made in, one of them twice and one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.third, self.first, self.unused, self.second = (nn.Linear(5, 5, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        return self.third(self.second(self.second(x).tanh()).tanh())


def order_of_use(rank: int) -> tuple[list[str], list[bool], list[bool]]:
    model = Shuffled()
    trainer = train(build_trainer(model, Keeping), num_updates=3)
    return trainer.names, [in_backward for *_, in_backward in trainer.runtime.averaging.sent], trainer.has_gradient


class Keeping(Trainer):
    """Keeps what is gone after an update: the order of the buckets, and which parameters had a gradient."""

    def on_optimizer_start(self, name: str) -> None:
        names = {id(param): name for name, param in self.model.named_parameters()}
        self.has_gradient = [param.grad is not None for param in self.model.parameters()]
        (plan,) = self.runtime.averaging._plans.values()
        self.names = [names[id(param)].partition(".")[0] for bucket in plan.buckets for param in bucket.params]


def test_buckets_follow_the_order_in_which_gradients_come_and_unused_parameters_are_last() -> None:
    for names, in_backward, has_gradient in run_ranks(order_of_use, 2):
        assert names == ["third", "second", "first", "unused"]
        assert in_backward == [True, True, True, False]
        assert has_gradient == [True, True, False, True]


class Wandering(nn.Module):
    """The order in which layers are used, and whether the last one is, differs from step to step and between ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        at = int(x[0, 0].abs() * 1000) + dist.get_rank()
        for step in range(4):
            x = self.layers[(at + step) % 4](x).tanh()
        return self.layers[4](x) if at % 3 else x


def resume_exactly(rank: int, folder: str) -> tuple[bool, bool]:
    def one(name: str, num_updates: int) -> Trainer:
        model = Wandering()
        trainer = build_trainer(
            model,
            bucket_mb=300 / (1 << 20),
            optimizer=torch.optim.SGD(model.parameters(), 0.5, momentum=0.9),
            run_dir=f"{folder}/{name}",
            callbacks=[Checkpoints(every_updates=1, every_epochs=None)],
        )
        return train(trainer, num_updates, build_data(30, 7))

    whole = one("whole", 12)
    part, *resumed = one("parts", 4), one("parts", 8), one("parts", 12)
    assert part.progress.update == 4
    orders = [trainer.run.updates.by_name["optimizer"].state_dict()["order"] for trainer in (whole, *resumed)]
    return equal(state_of(whole.model), state_of(resumed[-1].model)), orders[0] == orders[1] == orders[2]


def test_a_run_resumes_exactly_on_three_processes_though_each_step_has_another_order(tmp_path: Any) -> None:
    assert run_ranks(resume_exactly, 3, str(tmp_path)) == [(True, True)] * 3


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
    """On rank 1 the error comes when nothing was sent yet, on rank 0 when half of the buckets were."""
    model = Fragile({3: ValueError("broken here")})
    if rank == 1:
        model.forward = lambda x: Fragile.forward(model, x) if model.calls != 2 else _fail_at_once(model, x)
    trainer = build_trainer(model, Skipping, clip_norm=0.5)
    train(trainer, 5, in_order(), None)
    return equal(state_of(model.layers), hand_written(rank, build(), [0, 1, 3, 0]))


def _fail_at_once(model: Fragile, x: Tensor) -> Tensor:
    model.calls += 1
    return Failing.apply(model.layers(x), model.errors[3])


def test_a_pass_that_failed_on_all_processes_leaves_nothing_behind_in_the_next_one() -> None:
    assert run_ranks(skip_on_all, 2) == [True, True]


class Tied(nn.Module):
    """One layer in two checkpoints of the kind that runs a backward pass inside the backward pass."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.shared, self.last = (nn.Linear(5, 5) for _ in range(3))
        self.is_reentrant = is_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=self.is_reentrant).tanh()
        return self.last(x)


def share_layers(rank: int) -> list[bool]:
    results = []
    for is_reentrant in (False, True):
        trainer = build_trainer(Tied(is_reentrant=is_reentrant), clip_norm=0.5)
        train(trainer, 5, in_order(), None)
        plain = hand_written(rank, Tied(is_reentrant=is_reentrant), [0, 1, 2, 3, 0])
        results += [
            equal(state_of(trainer.model), plain),
            sum(sent.in_backward for sent in trainer.runtime.averaging.sent) == 5,
        ]
    return results


def test_a_layer_used_in_several_checkpoints_is_sent_when_all_its_gradients_are_there() -> None:
    assert run_ranks(share_layers, 2) == [[True] * 4] * 2


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


def test_gradients_that_come_after_theirs_were_sent_are_an_error_and_not_lost() -> None:
    for message in run_ranks(use_more_often, 2):
        assert "A parameter of shape (5,) received more gradients after its gradient was sent" in message
        assert "use_reentrant=False" in message


def change_by_hooks(rank: int) -> list[bool]:
    """Hooks of the user's that change gradients, made before training and while it runs."""
    results = []
    for update in (0, 3):

        class Hooked(Trainer):
            def on_update_end(self) -> None:
                if self.progress.update == update:  # noqa: B023  (used within this round)
                    add_hooks(self.model)

        model = build()
        if not update:
            add_hooks(model)
        trainer = build_trainer(model, Hooked)
        train(trainer, 6, in_order(), None)
        other = build()
        small = build_trainer(other, Hooked, bucket_mb=25)
        if not update:
            add_hooks(other)
        train(small, 6, in_order(), None)
        results += [
            equal(state_of(model), state_of(other)),
            sum(s.in_backward for s in trainer.runtime.averaging.sent) == 7,
        ]
    return results


def add_hooks(model: nn.Module) -> None:
    def halve(param: Tensor) -> None:
        assert param.grad is not None
        param.grad = param.grad / 2

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(halve)


def test_hooks_on_parameters_have_changed_a_gradient_before_it_is_sent() -> None:
    assert run_ranks(change_by_hooks, 2) == [[True] * 4] * 2


def mix_types(rank: int) -> tuple[list[bool], int, bool]:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(5, 5).double(), Cast(), nn.Linear(5, 5), Cast(torch.double), nn.Linear(5, 5).double()
    )
    trainer = build_trainer(model, Counted, bucket_mb=10)
    x, y = (tensor.double() for tensor in build_data().tensors)
    train(trainer, 4, TensorDataset(x, y))
    return [s.in_backward for s in trainer.runtime.averaging.sent], trainer.counts[-1], bool(state_of(model))


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class Counted(Trainer):
    def train_step(self, batch: Any) -> Any:
        with Calls() as calls:
            result = super().train_step(batch)
        self.counts = [*getattr(self, "counts", []), calls.number]
        return result


def test_gradients_of_two_types_take_a_bucket_each_and_the_message_none() -> None:
    for in_backward, count, _ in run_ranks(mix_types, 2):
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
        trainer = build_trainer(model, Trainer if is_joint else Two, bucket_mb=bucket_mb, optimizer=optimizers)
        results.append(state_of(train(trainer).model))
        if bucket_mb == EACH:
            sent = [trainer.runtime.averaging.sent] if is_joint else trainer.sent
    return [[one.in_backward for one in update] for update in sent], equal(*results)


@pytest.mark.parametrize(
    ("is_joint", "expected"), [(False, [[True] * 3 + [False]] * 2), (True, [[True] * 7 + [False]])]
)
def test_every_optimizer_sends_its_own_gradients_during_its_own_pass(is_joint: bool, expected: Any) -> None:
    assert run_ranks(several_optimizers, 2, is_joint) == [(expected, True)] * 2


def freeze(rank: int) -> tuple[list[int], bool]:
    numbers, results = [], []

    class Freezing(Trainer):
        def on_update_end(self) -> None:
            numbers.append(len(self.runtime.averaging.sent))
            if self.progress.update in (3, 6):
                self.model[:4].requires_grad_(self.progress.update == 6)
                self.run.updates.refresh([self.model])

    for bucket_mb in (EACH, 25):
        trainer = build_trainer(build(), Freezing, bucket_mb=bucket_mb)
        results.append(state_of(train(trainer, 8).model))
    return numbers[:8], equal(*results)


def test_layers_frozen_in_the_middle_of_the_run_are_not_sent() -> None:
    assert run_ranks(freeze, 2) == [([8] * 3 + [4] * 3 + [8] * 2, True)] * 2


def tensor_parallel(rank: int) -> tuple[list[bool], bool]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    results, numbers = [], []
    for bucket_mb in (EACH, 25):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5), nn.Linear(5, 5))
        mesh = Mesh(replicate=2, tensor=2, plan={"0": ColwiseParallel(), "2": RowwiseParallel()})
        trainer = build_trainer(model, mesh=mesh, bucket_mb=bucket_mb)
        results.append(state_of(train(trainer).model))
        numbers.append([one.in_backward for one in trainer.runtime.averaging.sent])
    return numbers[0], equal(*results)


def test_layers_that_several_processes_share_are_averaged_with_their_replicas_early() -> None:
    assert run_ranks(tensor_parallel, 4) == [([True] * 5 + [False], True)] * 4


def leave_no_hooks(rank: int) -> list[bool]:
    model = build()
    train(build_trainer(model))
    small = build()
    watched: list[bool] = []

    class Looking(Trainer):
        def on_update_end(self) -> None:
            watched.append(any(param._post_accumulate_grad_hooks for param in self.model.parameters()))

    train(build_trainer(small, Looking, bucket_mb=25))
    return [any(param._post_accumulate_grad_hooks for param in model.parameters()), *watched]


def test_a_model_of_one_bucket_has_no_hooks_and_others_have_none_after_training() -> None:
    assert run_ranks(leave_no_hooks, 2) == [[False] * 7] * 2


def build_averaging(rank: int) -> tuple[Averaging, list[nn.Parameter], Callable[[float], Tensor]]:
    """Averaging of three parameters in a bucket each; a loss of them, whose gradients are its factor."""
    group = Group.join()
    params = [nn.Parameter(torch.zeros(n)) for n in (2, 3, 4)]
    averaging = Averaging(None, group.world, max_bytes=1, gather=group.gather_objects, new_group=group.new_host_group)
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
    """Two backward passes before one `average`, as in a door whose steps call `backward` twice."""
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


def test_gradients_that_a_second_loss_adds_to_are_sent_again_and_later_only_once() -> None:
    for grads, numbers in run_ranks(add_a_second_loss, 2):
        assert grads == [[1.5, 3.0, 3.0]] * 2  # rank 1 does not use the first parameter
        assert numbers == [2, 0, 0, 0]  # and the last bucket is sent by `average`


def begin_again(rank: int) -> tuple[int, list[float]]:
    """Both ranks leave a backward pass, one when it has sent a bucket and one before; then training begins anew."""
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


def test_ranks_that_have_sent_different_numbers_of_buckets_begin_again_in_a_new_group() -> None:
    assert run_ranks(begin_again, 2) == [(2, [1.0, 2.0, 2.0]), (0, [1.0, 2.0, 2.0])]


class Statistics(nn.Module):
    """Batch norms over all ranks, whose backward passes communicate too, between layers that one rank does not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.other, self.last = (nn.Linear(5, 5) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.first(x))
        if dist.get_rank() == 0:
            x = x + self.other(x)
        return self.last(self.norms[1](x.tanh()))


def normalise(rank: int) -> bool:
    results = []
    for bucket_mb in (EACH, 25):
        model = Statistics()
        runtime = DistributedRuntime("ddp", bucket_mb=bucket_mb, sync_batch_norm=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        results.append(
            state_of(train(Trainer(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent")).model)
        )
    return equal(*results)


def test_collectives_inside_the_backward_pass_are_not_mixed_up_with_those_of_gradients() -> None:
    assert run_ranks(normalise, 2) == [True, True]

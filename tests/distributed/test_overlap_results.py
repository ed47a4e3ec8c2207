"""Gradients that travel during the backward pass: results are those of a hand-written loop, and of
a resumed run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed as dist
import torch.distributed.tensor.parallel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loopwright import DistributedRuntime, Mesh, Runtime, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.errors import ConfigurationError
from tests.distributed.overlap import (
    EACH,
    build,
    build_data,
    build_trainer,
    equal,
    hand_written,
    in_order,
    state_of,
    train,
)
from tests.distributed.ranks import RunRanks, run_ranks
from tests.mistakes import Mistakes


def compare_with_hand_written(rank: int, bucket_mb: float) -> bool:
    trainer = build_trainer(build(), bucket_mb=bucket_mb, clip_norm=0.5)
    train(trainer, 8, in_order(), None)
    return equal(state_of(trainer.model), hand_written(rank, build(), [0, 1, 2, 3] * 2))


@pytest.mark.parametrize("bucket_mb", [EACH, 25])
def test_results_are_those_of_a_hand_written_loop_to_the_last_bit(
    shared: RunRanks, bucket_mb: float
) -> None:
    assert shared(compare_with_hand_written, 2, bucket_mb) == [True, True]


class Wandering(nn.Module):
    """The order in which layers are used, and whether the last one is, differs from step to step
    and between ranks."""

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
    orders = [
        trainer.run.updates.by_name["optimizer"].state_dict()["order"]
        for trainer in (whole, *resumed)
    ]
    return equal(state_of(whole.model), state_of(resumed[-1].model)), orders[0] == orders[
        1
    ] == orders[2]


def test_a_run_resumes_exactly_on_three_processes_though_each_step_has_another_order(
    tmp_path: Any,
) -> None:
    assert run_ranks(resume_exactly, 3, str(tmp_path)) == [(True, True)] * 3


class Tied(nn.Module):
    """One layer in two checkpoints of the kind that runs a backward pass inside the backward
    pass."""

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


def test_a_layer_used_in_several_checkpoints_is_sent_when_all_its_gradients_are_there(
    shared: RunRanks,
) -> None:
    assert shared(share_layers, 2) == [[True] * 4] * 2


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


def test_hooks_on_parameters_have_changed_a_gradient_before_it_is_sent(shared: RunRanks) -> None:
    assert shared(change_by_hooks, 2) == [[True] * 4] * 2


ALONE: dict[str, Any] = {"accumulate": 3, "runtime": Runtime(), "progress": "silent"}


def freeze_within_windows(rank: int) -> list[bool]:
    class Freezing(Trainer):
        def on_train_step_end(self, batch: Any, result: Any) -> None:
            if self.progress.step in (2, 8):  # between the first and the second step of a window
                self.model[:2].requires_grad_(self.progress.step == 8)

    same = []
    for bucket_mb in (EACH, 25):
        trainer = build_trainer(build(), Freezing, bucket_mb=bucket_mb, accumulate=3)
        own = state_of(train(trainer).model)
        every = trainer.runtime.gather_objects(own)
        same.append(equal(*every))
        alone = Freezing(
            build(), partial(torch.optim.SGD, lr=0.1, momentum=0.9), nn.MSELoss(), **ALONE
        )
        same.append(all(map(partial(torch.allclose, atol=1e-6), own, state_of(train(alone).model))))
    return same


def test_layers_frozen_within_a_window_are_averaged_once_more(shared: RunRanks) -> None:
    assert shared(freeze_within_windows, 2) == [[True] * 4] * 2


def train_sparse(rank: int) -> str:
    model = nn.Sequential(nn.EmbeddingBag(9, 5, sparse=True), nn.Linear(5, 5))
    trainer = build_trainer(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    try:
        train(trainer, data=(torch.arange(24).reshape(12, 2) % 9, torch.ones(12, 5)))
    except ConfigurationError as error:
        return str(error)
    return ""


def test_sparse_gradients_are_refused(shared: RunRanks, mistake: Mistakes) -> None:
    first, _ = shared(train_sparse, 2)
    assert "build the embedding with sparse=False" in first
    mistake.said("Several processes", "a layer with sparse gradients", first)


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


class Statistics(nn.Module):
    """Batch norms over all ranks, whose backward passes communicate too, between layers that one
    rank does not use."""

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
            state_of(
                train(
                    Trainer(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent")
                ).model
            )
        )
    return equal(*results)


def test_collectives_inside_the_backward_pass_are_not_mixed_up_with_those_of_gradients(
    shared: RunRanks,
) -> None:
    assert shared(normalise, 2) == [True, True]


class Alternating(nn.Module):
    """Uses other layers in every step and on every rank, and the extra one only in some steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.first, self.last, self.extra = (nn.Linear(5, 5) for _ in range(3))
        self.middle = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.middle[(self.calls + dist.get_rank()) % 3](self.first(x)).tanh()
        return self.last(self.extra(x) if self.calls % 4 < 2 else x)

    def freeze_at(self, update: int) -> bool:
        """Whether other layers are frozen after so many updates."""
        if update in (3, 6):
            self.first.requires_grad_(update == 6)
            self.middle[1].requires_grad_(update == 6)
        return update in (3, 6)


def alternate(rank: int) -> tuple[bool, bool]:
    class Freezing(Trainer):
        def on_update_end(self) -> None:
            if self.model.freeze_at(self.progress.update):
                self.run.updates.refresh([self.model])

    trainer = build_trainer(Alternating(), Freezing)
    train(trainer, 10, in_order(), None)
    model = Alternating()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = build_data().tensors
    for number in range(10):
        at = slice(number % 4 * 6 + rank * 3, number % 4 * 6 + rank * 3 + 3)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[at].clone()), y[at].clone()).backward()
        for param in model.parameters():
            average_where_used(param)
        optimizer.step()
        model.freeze_at(number + 1)
    in_backward = [sent.in_backward for sent in trainer.runtime.averaging.sent]
    return equal(state_of(trainer.model), state_of(model)), any(in_backward)


def average_where_used(param: nn.Parameter) -> None:
    """The average over two ranks, zero on one that does not use the parameter, and none where no
    rank does."""
    grad = torch.zeros_like(param) if param.grad is None else param.grad
    is_used = torch.tensor(float(param.grad is not None))
    dist.all_reduce(is_used)
    dist.all_reduce(grad)
    param.grad = grad / 2 if is_used else None


def test_layers_that_are_unused_and_frozen_now_and_then_are_averaged_as_by_hand(
    shared: RunRanks,
) -> None:
    assert shared(alternate, 2) == [(True, True)] * 2

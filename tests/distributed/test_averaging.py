"""Gradients averaged over ranks, and the message that is summed with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import NonFiniteLossError, Trainer
from loopwright.runtime import ddp as averaging
from loopwright.runtime.ddp import Averaging, buckets
from loopwright.runtime.distributed import DistributedRuntime
from loopwright.runtime.process_group import Group
from tests.distributed.ranks import run_ranks


def average(rank: int, flags: tuple[float, float]) -> tuple[list[Tensor | None], list[float]]:
    group = Group.join()
    params = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(()))]
    params[0].grad = torch.full((2, 3), float(rank))
    if rank == 1:
        params[1].grad = torch.ones(4)
    message = Averaging(None, group.world).average(params, torch.tensor([flags[rank], 0.0, 7.0 if rank == 0 else 0.0]))
    assert message is not None
    return [param.grad for param in params], message.tolist()


@pytest.mark.parametrize("flags", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_messages_are_added_up_and_change_no_gradient(flags: tuple[float, float]) -> None:
    for grads, message in run_ranks(average, 2, flags):
        assert message == [sum(flags), 0.0, 7.0]
        assert torch.equal(grads[0], torch.full((2, 3), 0.5))
        assert torch.equal(grads[1], torch.full((4,), 0.5))
        assert grads[2] is None


def average_often(rank: int) -> list[tuple[bool, list[Tensor | None]]]:
    """Several updates of the same parameters, in memory that is kept and in such that is not."""
    group, rounds = Group.join(), []
    for limit in (averaging.KEPT_BYTES, 0):
        averaging.KEPT_BYTES = limit
        params = [nn.Parameter(torch.zeros(2, 3).t()), nn.Parameter(torch.zeros(4))]
        average = Averaging(None, group.world).average
        for update in range(3):
            params[0].grad = before = torch.full((2, 3), float(rank + update)).t()
            params[1].grad = None if rank == 0 and update == 1 else torch.ones(4)
            average(params, torch.zeros(3, dtype=torch.float64))
            is_same = params[0].grad is before and before.stride() == params[0].stride()
            rounds.append((is_same, [param.grad for param in params]))
    return rounds


def test_gradients_stay_the_tensors_they_were_and_no_update_changes_those_of_another() -> None:
    for rounds in run_ranks(average_often, 2):
        for update, (is_same, grads) in zip([0, 1, 2] * 2, rounds, strict=True):
            assert is_same
            assert torch.equal(grads[0], torch.full((3, 2), update + 0.5))
            assert torch.equal(grads[1], torch.full((4,), 0.5 if update == 1 else 1.0))


def test_buckets_end_at_the_parameter_that_fills_them_and_hold_one_type() -> None:
    sizes, single = (3, 1, 2, 2, 5), [nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    params = [nn.Parameter(torch.zeros(n)) for n in sizes]
    found = list(buckets([*params[:2], *single, *params[2:]], max_bytes=16))
    assert [[p.numel() for p in bucket] for bucket in found] == [[3, 1], [2, 2], [5], [1]]


def train_on_a_bad_sample(rank: int, runtime: str) -> tuple[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    inputs = torch.ones(4, 2)
    inputs[3] = float("nan")  # of one process only, in whichever order
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss(), runtime=runtime, progress="silent")
    before = [p.detach().clone() for p in model.parameters()]
    try:
        trainer.train(TensorDataset(inputs, torch.ones(4, 1)), batch_size=4)
    except NonFiniteLossError as error:
        after = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return str(error), torch.stack([torch.tensor(torch.equal(a, b)) for a, b in zip(after, before, strict=True)])
    raise AssertionError("the loss was not refused")


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_loss_that_is_not_finite_on_one_process_is_refused_on_all_before_any_weight_changes(runtime: str) -> None:
    for error, unchanged in run_ranks(train_on_a_bad_sample, 2, runtime):
        assert "not finite on at least one process" in error
        assert unchanged.all()


def exchange(rank: int, sends: bool) -> list[tuple[int, ...]]:
    """Four updates, a request of one rank in the second; the clock is that of rank 0."""
    runtime = DistributedRuntime()
    params = [nn.Parameter(torch.zeros(3))]
    agreed = []
    for update in range(4):
        if sends:
            params[0].grad = torch.ones(3)
            runtime.sync_gradients(params)
        request = 15 if rank == 1 and update == 1 else 0
        agreed.append(runtime.exchange((request, 0, 0, 1000 * (update + 1) if rank == 0 else 0)))
    runtime.finish_exchange()
    return agreed


@pytest.mark.parametrize("sends", [True, False])
def test_request_of_one_rank_is_known_to_all_one_update_later(sends: bool) -> None:
    expected = [(0, 0, 0, 0), (0, 0, 0, 1000), (15, 0, 0, 2000), (0, 0, 0, 3000)]
    assert run_ranks(exchange, 2, sends) == [expected, expected]


def stop_on_one(rank: int) -> list[tuple[int, str | None, float]]:
    """`stop()` on one rank of a sharded model."""
    ended = []
    for reduce_dtype in (None, torch.bfloat16):

        class Stopping(Trainer):
            def on_update_end(self) -> None:
                if self.progress.update == 3 and rank == 1:
                    self.stop("enough")

        model = nn.Linear(4, 3)
        runtime = DistributedRuntime("fsdp", reduce_dtype=reduce_dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = Stopping(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent")
        trainer.train(TensorDataset(torch.ones(60, 4), torch.ones(60, 3)), batch_size=6)
        ended.append((trainer.progress.update, trainer.stop_reason, trainer.progress.seconds))
    return ended


def test_processes_with_a_sharded_model_stop_after_the_same_update_and_go_by_one_clock() -> None:
    results = run_ranks(stop_on_one, 3)
    assert results == [results[0]] * 3
    assert [(update, reason) for update, reason, _ in results[0]] == [(5, "enough")] * 2

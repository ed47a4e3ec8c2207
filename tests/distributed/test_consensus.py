"""All ranks refuse the same loss, and stop after the same update."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import NonFiniteLossError, Trainer
from loopwright.runtime.distributed import DistributedRuntime
from tests.distributed.ranks import run_ranks


def train_on_a_bad_sample(rank: int, runtime: str) -> tuple[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    inputs = torch.ones(4, 2)
    inputs[3] = float("nan")  # of one process only, in whichever order
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        nn.MSELoss(),
        runtime=runtime,
        progress="silent",
    )
    before = [p.detach().clone() for p in model.parameters()]
    try:
        trainer.train(TensorDataset(inputs, torch.ones(4, 1)), batch_size=4)
    except NonFiniteLossError as error:
        after = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return str(error), torch.stack(
            [torch.tensor(torch.equal(a, b)) for a, b in zip(after, before, strict=True)]
        )
    raise AssertionError("the loss was not refused")


@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
def test_loss_that_is_not_finite_on_one_process_is_refused_on_all_before_any_weight_changes(
    runtime: str,
) -> None:
    for error, unchanged in run_ranks(train_on_a_bad_sample, 2, runtime):
        assert "not finite on at least one process" in error
        assert unchanged.all()


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

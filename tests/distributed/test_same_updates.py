"""Processes that make other updates than the rest find out before gradients that do not belong
together are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.tensor.parallel
from torch import nn

from loopwright import ConfigurationError, DistributedRuntime, StepResult, Trainer
from loopwright.training import steps
from tests.distributed.overlap import EACH, build, build_data
from tests.distributed.ranks import run_ranks
from tests.mistakes import Mistakes

SETTINGS: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "ddp", "bucket_mb": EACH},
    {"strategy": "fsdp"},
]


class Swapping(Trainer):
    """Two optimizers of the same size; the second process swaps them in the third update."""

    def train_step(self, batch: Any) -> StepResult:
        x, y = batch
        is_odd = self.runtime.rank == 1 and self.progress.update == 2
        for name in ("second", "first") if is_odd else ("first", "second"):
            loss = nn.functional.mse_loss(self.model(x), y)
            self.update(loss, name)
        return StepResult(loss.detach())


class Repeating(Trainer):
    """The second process updates twice in the third update."""

    def train_step(self, batch: Any) -> StepResult:
        x, y = batch
        for _ in range(2 if self.runtime.rank == 1 and self.progress.update == 2 else 1):
            loss = nn.functional.mse_loss(self.model(x), y)
            self.update(loss, ["first", "second"])
        return StepResult(loss.detach())


def differ(rank: int, kind: type[Trainer], settings: dict[str, Any]) -> tuple[int, str]:
    # A log point by the clock, on a busy machine, would be another collective than the update that
    # the first process is to meet.
    steps.FLUSH_SECONDS = float("inf")
    model = build()
    halves = {"first": model[:4], "second": model[4:]}
    optimizers = {name: torch.optim.SGD(half.parameters(), 0.1) for name, half in halves.items()}
    runtime = DistributedRuntime(**settings)
    trainer = kind(model, optimizers, runtime=runtime, progress="silent")
    try:
        trainer.train(build_data(60), num_updates=10, batch_size=6)
    except ConfigurationError as error:
        return trainer.progress.update, str(error)
    return trainer.progress.update, ""


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_optimizer_that_one_process_updates_earlier_is_an_error(
    mistake: Mistakes, settings: dict[str, Any]
) -> None:
    results = run_ranks(differ, 2, Swapping, settings)
    assert [update for update, _ in results] == [2, 2]
    for _, said in results:
        what = (
            "Two optimizers of the same size that one process updates in another order than "
            "the others"
        )
        mistake.said("Several processes", what, said)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_process_that_updates_once_more_than_the_others_is_an_error(
    settings: dict[str, Any],
) -> None:
    results = run_ranks(differ, 2, Repeating, settings)
    # the first process was in its next step already
    assert [update for update, _ in results] == [3, 2]
    assert all("do not make the same updates" in said for _, said in results)

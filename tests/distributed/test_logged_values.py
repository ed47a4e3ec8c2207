"""What some processes log, or all with different values, is in the row of every process."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
from torch import nn
from torchmetrics import MeanMetric

from loopwright import Callback, DistributedRuntime, Trainer
from tests.distributed.ranks import run_ranks


class Logging(Callback):
    """Logs names that only the second process knows, and names with other values on each."""

    def __init__(self) -> None:
        self.metric = MeanMetric()

    def on_train_step_end(self, trainer: Any, batch: Any, result: Any) -> None:
        trainer.log_step({"step_each": float(trainer.runtime.rank)})
        if trainer.runtime.rank == 1:
            trainer.log_step({"step_second": 3.0})

    def on_train_epoch_end(self, trainer: Any) -> None:
        trainer.log({"each": float(trainer.runtime.rank), "same": 0.1})
        if trainer.runtime.rank == 1:
            self.metric.update(5.0)
            trainer.log({"second": 7.0, "metric": self.metric})

    def on_eval_end(self, trainer: Any, data: Any) -> None:
        if trainer.runtime.rank == 1:
            trainer.log({"second": 9.0})


def train(rank: int) -> tuple[list[dict[str, float]], list[float], dict[str, float]]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(
        model,
        optimizer,
        nn.functional.mse_loss,
        runtime=DistributedRuntime("ddp"),
        callbacks=Logging(),
        progress="silent",
    )
    x = torch.linspace(0, 1, 12).unsqueeze(1)
    history = trainer.train((x, x), 2, (x, x), batch_size=4)
    return history.epochs, history.steps["step_second"].values, trainer.evaluate((x, x))


def test_every_process_has_what_any_of_them_logged() -> None:
    (rows, steps, measured), (other_rows, other_steps, other_measured) = run_ranks(train, 2)
    assert (rows, list(steps), measured) == (other_rows, list(other_steps), other_measured)
    for row in rows:
        assert row["each"] == 0.5
        assert row["same"] == 0.1
        assert row["second"] == 7.0
        assert row["metric"] == 5.0
        assert row["step_each"] == 0.5
        assert row["step_second"] == 3.0
        assert row["eval_second"] == 9.0
    assert list(steps) == [3.0] * 6
    assert measured["second"] == 9.0

"""Processes that change a learning rate or freeze a layer on their own find out before a checkpoint
is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.tensor.parallel
from torch import nn

from loopwright import Callback, ConfigurationError, DistributedRuntime, Trainer
from loopwright.callbacks import Checkpoints
from tests.distributed.ranks import run_ranks
from tests.mistakes import Mistakes

pytestmark = pytest.mark.usefixtures("rare_log_points")


class Lowering(Callback):
    """Lowers the learning rate after the second update, on the ranks that are given."""

    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks

    def on_update_end(self, trainer: Any) -> None:
        if trainer.runtime.rank in self.ranks and trainer.progress.update == 2:
            trainer.optimizer.param_groups[0]["lr"] = 0.01


class Freezing(Lowering):
    """Freezes the last layer after the first epoch."""

    def on_update_end(self, trainer: Any) -> None:
        pass

    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        if trainer.runtime.rank in self.ranks and trainer.progress.epoch == 1:
            trainer.model[1].requires_grad_(False)


def train(rank: int, callback: Callback, strategy: str, folder: Path) -> tuple[str, int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(
        model,
        optimizer,
        nn.functional.mse_loss,
        runtime=DistributedRuntime(strategy),
        callbacks=[callback, Checkpoints(every_updates=3, asynchronous=False)],
        run_dir=folder,
        progress="silent",
    )
    x = torch.linspace(0, 1, 16).reshape(8, 2)
    try:
        trainer.train((x, x[:, :1]), 3, batch_size=2)  # four updates in an epoch
    except ConfigurationError as error:
        return str(error), trainer.progress.update
    return "", trainer.progress.update


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_learning_rate_that_one_process_changes_is_an_error_on_all(
    tmp_path: Path, mistake: Mistakes, strategy: str
) -> None:
    results = run_ranks(train, 2, Lowering(1), strategy, tmp_path)
    for said, update in results:
        assert "`lr` of optimizer 'optimizer': 0.1 on rank 0, 0.01 on rank 1" in said
        assert update == 3  # the next log point, which is a checkpoint
        mistake.said("Several processes", "A learning rate that only one process changes", said)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_layer_that_one_process_freezes_between_epochs_is_an_error_on_all(
    tmp_path: Path, mistake: Mistakes
) -> None:
    results = run_ranks(train, 2, Freezing(1), "ddp", tmp_path)
    for said, update in results:
        assert "`requires_grad` of model.1.weight: True on rank 0, False on rank 1" in said
        assert update == 4
        mistake.said("Several processes", "A layer that only one process freezes", said)


@pytest.mark.parametrize("kind", [Lowering, Freezing])
def test_settings_that_all_processes_change_are_no_error(
    tmp_path: Path, kind: type[Lowering]
) -> None:
    assert run_ranks(train, 2, kind(0, 1), "ddp", tmp_path) == [("", 12), ("", 12)]

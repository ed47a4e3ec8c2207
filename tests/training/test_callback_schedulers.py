"""A scheduler that only a callback holds continues with the run, wherever the callback makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.interfaces.lifecycle import TrainerCallback
from loopwright.interfaces.lifecycle.callbacks import SaveTrainingStateCallback
from tests.interfaces.lifecycle.runs import build_trainer as build_lifecycle
from tests.interfaces.lifecycle.runs import train as train_lifecycle
from tests.loops import assert_same_model, build_net
from tests.runs import KillAt, Killed, assert_same_run, cross_entropy

MAKERS = {
    "LambdaLR": lambda optimizer: LambdaLR(
        optimizer, lambda n: 1 / (1 + n)
    ),  # sets a rate when it is made
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, T_max=4),
}


class AtStart(Callback):
    """Makes its scheduler when training starts, which is after a run was restored."""

    def __init__(self, name: str = "LambdaLR") -> None:
        self.name = name

    def on_train_start(self, trainer: Any) -> None:
        self.scheduler = MAKERS[self.name](trainer.optimizer)

    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        self.scheduler.step()


class Given(Callback):
    """Gets an optimizer in its constructor, before a run is restored."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.schedulers = [MAKERS["LambdaLR"](optimizer)]

    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        self.schedulers[0].step()


def train(
    run_dir: Path, points: TensorDataset, *callbacks: Callback, given: bool = False, epochs: int = 3
) -> Trainer:
    net = build_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    own = [Given(optimizer)] if given else []
    saving = Checkpoints(every_updates=1, asynchronous=False)
    trainer = Trainer(
        net,
        optimizer,
        cross_entropy,
        run_dir=run_dir,
        callbacks=[*own, *callbacks, saving],
        progress="silent",
    )
    trainer.train(points, epochs, batch_size=8)
    return trainer


@pytest.mark.parametrize("killed_at", [5, 7, 10])
@pytest.mark.parametrize("name", MAKERS)
def test_a_scheduler_made_when_training_starts_continues(
    points: TensorDataset, tmp_path: Path, name: str, killed_at: int
) -> None:
    whole = train(tmp_path / "whole", points, AtStart(name))
    with pytest.raises(Killed):
        train(tmp_path / "cut", points, AtStart(name), KillAt(killed_at))
    assert_same_run(train(tmp_path / "cut", points, AtStart(name)), whole)


def test_a_scheduler_made_in_the_constructor_continues(
    points: TensorDataset, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", points, given=True)
    with pytest.raises(Killed):
        train(tmp_path / "cut", points, KillAt(7), given=True)
    assert_same_run(train(tmp_path / "cut", points, given=True), whole)


def test_a_scheduler_that_is_made_too_late_is_named(
    points: TensorDataset, tmp_path: Path, capsys: Any
) -> None:
    class Late(AtStart):
        def on_train_start(self, trainer: Any) -> None:
            pass

        def on_epoch_start(self, trainer: Any) -> None:
            if not hasattr(self, "scheduler"):
                super().on_train_start(trainer)

    with pytest.raises(Killed):
        train(tmp_path, points, Late(), KillAt(7))
    net = build_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    trainer = Trainer(
        net, optimizer, cross_entropy, run_dir=tmp_path, callbacks=Late(), progress="lines"
    )
    with pytest.raises(AttributeError):  # the epoch under way began in the earlier process
        trainer.train(points, 3, batch_size=8)
    assert (
        "the state of the scheduler Late.scheduler, which does not exist" in capsys.readouterr().out
    )


def test_a_model_that_only_a_callback_holds_is_named_before_training(
    points: TensorDataset, tmp_path: Path, capsys: Any
) -> None:
    class Averaging(Callback):
        def on_train_start(self, trainer: Any) -> None:
            self.average = AveragedModel(trainer.model)
            self.same = trainer.model[0]
            self.teacher = nn.Linear(2, 2).requires_grad_(False)

    Trainer(
        build_net(),
        torch.optim.SGD,
        cross_entropy,
        run_dir=tmp_path,
        callbacks=Averaging(),
        progress="lines",
    ).train(points, 1, batch_size=8)
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("Checkpoints do not contain")
    ]
    assert len(lines) == 1


# Callbacks of interfaces


def test_a_scheduler_of_a_lifecycle_callback_continues(
    points: TensorDataset, tmp_path: Path
) -> None:
    class Own(TrainerCallback):
        def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
            self.scheduler = MAKERS["LambdaLR"](trainer.optimizer)

        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            self.scheduler.step()

    whole = train_lifecycle(build_lifecycle(callbacks=[Own()]), points, 4)
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=2)
    train_lifecycle(build_lifecycle(callbacks=[Own(), saving]), points, 2)
    resumed = build_lifecycle(seed=3, callbacks=[Own()])
    resumed.train(points, 4, resume_from=tmp_path / "epoch_2")
    assert_same_model(resumed.model, whole.model)

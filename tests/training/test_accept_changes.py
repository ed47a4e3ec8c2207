"""Going on with a run although the program has changed: which values count from there on, and what
is said."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    ReduceLROnPlateau,
    StepLR,
)

import loopwright
from loopwright import Schedule, Trainer
from loopwright.cli import main
from loopwright.run import RunManifest
from tests.loops import assert_same_model, batches, build_linear
from tests.training.test_fingerprint import drawn, train


def test_an_accepted_learning_rate_is_used_and_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a hand-written loop that changes the learning rate of its Adam after an epoch."""
    data, model = drawn(), build_linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for epoch in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 if epoch == 0 else 0.1
        for inputs, targets in batches(data, 8, epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    new = partial(torch.optim.Adam, lr=0.1)
    train(tmp_path, model=build_linear())
    train(tmp_path, 2, model=build_linear(), optimizer=new, changes="accept")
    # accepted once, it is the run's
    trainer = train(tmp_path, 3, model=build_linear(), optimizer=new)
    assert_same_model(trainer.model, model)
    (noted,) = RunManifest.read(tmp_path / "run.json").changes
    assert (noted["update"], noted["values"]) == (5, {"optimizer.lr": [0.01, 0.1]})
    assert main(["show", str(tmp_path)]) == 0
    assert "changes      at update 5: optimizer.lr 0.01 -> 0.1\n" in capsys.readouterr().out


def test_accepted_values_count_also_if_the_run_dies_before_it_saves_again(tmp_path: Path) -> None:
    class Dies(loopwright.Callback):
        def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
            raise KeyboardInterrupt

    new = partial(torch.optim.Adam, lr=0.1)
    train(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 2, optimizer=new, changes="accept", callbacks=[Dies()])
    trainer = train(tmp_path, 2, optimizer=new)
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == 0.1
    assert len(RunManifest.read(tmp_path / "run.json").changes) == 1


def test_another_optimizer_starts_without_state_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path)
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    trainer = train(tmp_path, 2, optimizer=momentum, changes="accept", progress="lines")
    assert isinstance(trainer.optimizers["optimizer"], torch.optim.SGD)
    assert trainer.progress.epoch == 2
    out = capsys.readouterr().out
    assert (
        "Optimizer 'optimizer' (SGD) does not match the saved optimizer state, so it starts with "
        "empty state." in out
    )


def test_an_option_that_needs_other_state_starts_without_the_old(tmp_path: Path) -> None:
    train(tmp_path)
    trainer = train(
        tmp_path, 2, optimizer=partial(torch.optim.Adam, lr=0.01, amsgrad=True), changes="accept"
    )
    assert trainer.progress.epoch == 2


SCHEDULES: dict[str, tuple[Any, Any]] = {
    "steps": (partial(StepLR, step_size=1, gamma=0.5), lambda base, epoch: base * 0.5**epoch),
    "cosine": (
        partial(CosineAnnealingLR, T_max=10, eta_min=0.001),
        lambda base, epoch: 0.001 + (base - 0.001) * (1 + np.cos(np.pi * epoch / 10)) / 2,
    ),
    "function": (
        partial(LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch)),
        lambda base, epoch: base / (1 + epoch),
    ),
    "chained": (
        lambda optimizer: ChainedScheduler(
            [ConstantLR(optimizer, 0.1, 2), ExponentialLR(optimizer, 0.5)]
        ),
        lambda base, epoch: base * 0.5**epoch,
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_goes_on_from_the_new_learning_rate(tmp_path: Path, kind: str) -> None:
    schedule, expected = SCHEDULES[kind]
    train(tmp_path, 2, scheduler=schedule)
    trainer = train(
        tmp_path,
        3,
        scheduler=schedule,
        optimizer=partial(torch.optim.Adam, lr=0.1),
        changes="accept",
    )
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(expected(0.1, 3))


def test_new_options_of_a_schedule_count_at_its_place(tmp_path: Path) -> None:
    train(tmp_path, 2, scheduler=partial(StepLR, step_size=1, gamma=0.5))
    trainer = train(
        tmp_path, 3, scheduler=partial(StepLR, step_size=1, gamma=0.1), changes="accept"
    )
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 * 0.1**3)


def test_a_plateau_keeps_its_reductions_and_takes_new_options(tmp_path: Path) -> None:
    def plateau(patience: int) -> Schedule:
        # the loss falls, so each epoch after the first one is a bad one
        return Schedule(
            partial(ReduceLROnPlateau, mode="max", factor=0.5, patience=patience),
            metric="loss",
            mode="max",
        )

    train(tmp_path, 3, scheduler=plateau(0))
    trainer = train(tmp_path, 5, scheduler=plateau(100), changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 / 4)
    new = partial(torch.optim.Adam, lr=0.1)
    trainer = train(tmp_path, 6, scheduler=plateau(100), optimizer=new, changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.1 / 4)


def test_a_schedule_that_is_taken_away_leaves_the_given_learning_rate(tmp_path: Path) -> None:
    train(tmp_path, 2, scheduler=partial(StepLR, step_size=1, gamma=0.5))
    trainer = train(tmp_path, 3, changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == 0.01


def test_a_schedule_that_is_added_starts_at_its_beginning(tmp_path: Path) -> None:
    train(tmp_path, 2)
    schedule = Schedule(partial(StepLR, step_size=1, gamma=0.5), every="epoch")
    trainer = train(tmp_path, 3, scheduler=schedule, changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.005)

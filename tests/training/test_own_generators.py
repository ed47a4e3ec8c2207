"""Random numbers: a run draws its own, and the program goes on with its own as if nothing had been
trained."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, ConfigurationError, Trainer, seed_everything
from loopwright.data.order import permutation
from loopwright.debug import check_resume
from loopwright.tuning import find_batch_size, find_learning_rate
from tests.distributed.ranks import run_ranks
from tests.forked import call_forked
from tests.loops import assert_same_model
from tests.runs import Killed, adam, assert_same_run, cross_entropy

DATA = TensorDataset(
    torch.randn(16, 6, generator=torch.Generator().manual_seed(7)), torch.arange(16) % 3
)


def draw() -> list[float]:
    """The next numbers of every generator."""
    return [
        torch.rand(()).item(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
    ]


def generators() -> list[Any]:
    """The generators of the program, to the last bit."""
    numpy: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), *numpy[2:]]


class Drawing(Trainer):
    """Draws in every step, and remembers the samples and the numbers of its steps."""

    def __init__(self, *callbacks: Callback, **options: Any) -> None:
        super().__init__(loss_fn=cross_entropy, callbacks=callbacks, progress="silent", **options)
        self.steps: list[Any] = []
        self.evaluated: list[Any] = []

    def configure_models(self) -> None:
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def configure_optimizers(self) -> None:
        self.optimizer = adam(self.model.parameters())

    def configure_data(self) -> tuple[TensorDataset, TensorDataset]:
        return DATA, DATA

    def train_step(self, batch: Any) -> Any:
        self.steps.append((batch[0][:, 0].tolist(), draw()))
        return super().train_step(batch)

    def eval_step(self, batch: Any) -> Any:
        self.evaluated.append(draw())
        return super().eval_step(batch)

    def predict_step(self, batch: Any) -> Any:
        self.evaluated.append(draw())
        return super().predict_step(batch)


class DrawingEverywhere(Drawing):
    """Draws in other methods of the user's, too."""

    def configure_data(self) -> tuple[TensorDataset, TensorDataset]:
        draw()
        return super().configure_data()

    def configure_optimizers(self) -> None:
        draw()
        super().configure_optimizers()

    def on_train_start(self) -> None:
        draw()

    def on_train_end(self) -> None:
        draw()


def train_twice(trainer: Trainer) -> None:
    for _ in range(2):
        trainer.train(num_updates=3, batch_size=4)


def save_and_load(trainer: Trainer, folder: Path) -> None:
    trainer.train(num_updates=1, batch_size=4)
    trainer.save(folder / "state")
    trainer.load(folder / "state")
    trainer.train(num_updates=1, batch_size=4)


CALLS: dict[str, Callable[[Path], object]] = {
    "setup": lambda folder: DrawingEverywhere().setup(),
    "train": lambda folder: train_twice(DrawingEverywhere()),
    "train without a seed": lambda folder: train_twice(DrawingEverywhere(seed=None)),
    "train in a run directory": lambda folder: train_twice(
        DrawingEverywhere(run_dir=folder / "run")
    ),
    "evaluate": lambda folder: DrawingEverywhere().evaluate(DATA),
    "evaluate without a seed": lambda folder: DrawingEverywhere(seed=None).evaluate(DATA),
    "predict": lambda folder: DrawingEverywhere().predict(DATA),
    "tune": lambda folder: DrawingEverywhere().tune(
        batch_size=4, seconds=0.001, only=["batch_size"]
    ),
    "find_learning_rate": lambda folder: find_learning_rate(
        DrawingEverywhere(), num_updates=3, batch_size=4
    ),
    "find_batch_size": lambda folder: find_batch_size(DrawingEverywhere(), DATA, max_size=4),
    "check_resume": lambda folder: check_resume(DrawingEverywhere, DATA, batch_size=4),
    "save and load": lambda folder: save_and_load(DrawingEverywhere(), folder),
}


@pytest.mark.parametrize("call", CALLS)
def test_after_every_call_the_generators_of_the_program_are_as_before(
    call: str, tmp_path: Path
) -> None:
    random.gauss(0, 1), np.random.randn()  # of a pair: the second number waits
    before = generators()
    CALLS[call](tmp_path)
    assert generators() == before


class Raising(Callback):
    """Ends training in its third step, in one of several ways."""

    def __init__(self, error: BaseException | signal.Signals) -> None:
        self.error = error

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if trainer.progress.step == 2:
            if isinstance(self.error, BaseException):
                raise self.error
            os.kill(os.getpid(), self.error)


@pytest.mark.parametrize(
    "error", [ValueError("bad sample"), KeyboardInterrupt(), Killed(), signal.SIGTERM]
)
def test_generators_are_as_before_after_an_exception_or_a_signal(
    error: Any, tmp_path: Path
) -> None:
    before = generators()
    expected = type(error) if isinstance(error, BaseException) else SystemExit
    with pytest.raises(expected):
        Drawing(Raising(error), run_dir=tmp_path).train(num_epochs=2, batch_size=4)
    assert generators() == before


def test_two_calls_are_one_long_call_whatever_the_program_draws_between_them() -> None:
    whole, cut = Drawing(), Drawing()
    whole.train(num_epochs=2, batch_size=4)
    cut.train(num_updates=3, batch_size=4)
    draw(), torch.manual_seed(99), random.seed(99)
    cut.evaluate(DATA)
    cut.train(num_updates=5, batch_size=4)
    assert cut.steps == whole.steps
    assert_same_model(cut.model, whole.model)


def test_numbers_in_steps_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    seed_everything(4)
    inputs, targets = DATA.tensors
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    trainer = Trainer(
        model, torch.optim.SGD(model.parameters(), 0.1), cross_entropy, progress="silent"
    )
    by_hand = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    by_hand.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1)
    torch.rand(3)  # of the program, which changes nothing in training
    trainer.train(DATA, num_epochs=2, batch_size=4)
    torch.manual_seed(4)
    for epoch in range(2):
        for indices in permutation(4, epoch, len(DATA)).split(4):
            optimizer.zero_grad()
            cross_entropy(by_hand(inputs[indices]), targets[indices]).backward()
            optimizer.step()
    assert_same_model(model, by_hand)


# Evaluations


def test_an_evaluation_draws_the_same_numbers_in_every_call() -> None:
    trainer = Drawing(seed=3)
    for call in (trainer.evaluate, trainer.evaluate, trainer.predict):
        draw()
        call(DATA)
    trainer.train(num_updates=2, batch_size=4)
    trainer.evaluated = trainer.evaluated[:1]
    trainer.evaluate(DATA)
    assert trainer.evaluated[0] == trainer.evaluated[1]
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    assert trainer.evaluated[0] == draw()


# Killed and resumed


def run_program(folder: Path, kill_at: int | None) -> tuple[Trainer, list[Any]]:
    """Two calls of `train`; the program draws before, between and after them."""
    seed_everything(8)
    drawn = [draw()]

    class Kill(Callback):
        def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
            if trainer.progress.step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = Drawing(Kill(), run_dir=folder)
    for _ in range(2):
        trainer.train(num_updates=4, batch_size=4)
        drawn.append(draw())
    return trainer, drawn


@pytest.mark.parametrize("kill_at", [2, 6])
def test_a_program_killed_in_either_call_draws_its_own_numbers_and_trains_the_same_run(
    kill_at: int, tmp_path: Path
) -> None:
    killed = call_forked(lambda: run_program(tmp_path / "cut", kill_at), tmp_path)
    assert killed.code == -signal.SIGKILL, killed.err
    whole, expected = run_program(tmp_path / "whole", None)
    cut, drawn = run_program(tmp_path / "cut", None)
    assert drawn == expected
    assert_same_run(cut, whole)
    finished, drawn = run_program(tmp_path / "cut", None)
    assert finished.steps == []
    assert drawn == expected


# Whose seed


def steps_with(seed: int, /, **options: Any) -> list[Any]:
    seed_everything(seed)
    trainer = Drawing(**options)
    trainer.train(num_epochs=1, batch_size=4)
    return trainer.steps


def test_seed_everything_decides_about_order_and_numbers_of_a_trainer_without_a_seed() -> None:
    first, second, again = steps_with(1), steps_with(2), steps_with(1)
    assert first == again
    assert [batch for batch, _ in first] != [batch for batch, _ in second]
    assert [numbers for _, numbers in first] != [numbers for _, numbers in second]
    assert first == steps_with(2, seed=1)


def test_torch_manual_seed_counts_for_a_trainer_with_none() -> None:
    trainers = [Drawing(seed=None), Drawing(seed=None)]
    for trainer in trainers:
        for seed in (1, 2):
            torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
            trainer.train(num_epochs=1, batch_size=4)
    assert trainers[0].steps == trainers[1].steps
    assert trainers[0].steps[0][1] != trainers[0].steps[4][1]


def test_another_seed_everything_is_another_program(tmp_path: Path) -> None:
    seed_everything(1)
    Drawing(run_dir=tmp_path).train(num_epochs=1, batch_size=4)
    seed_everything(2)
    with pytest.raises(ConfigurationError, match=r"The program differs.*\n  - seed: 1 -> 2"):
        Drawing(run_dir=tmp_path).train(num_epochs=2, batch_size=4)


# Several processes


def train_on(rank: int) -> tuple[bool, int | None, list[Any]]:
    seed_everything(rank + 1)
    before = generators()
    trainer = Drawing()
    trainer.train(num_epochs=1, batch_size=4)
    trainer.evaluate(DATA)
    return generators() == before, trainer.seed, trainer.steps


def test_several_processes_take_the_seed_of_the_first_and_leave_their_programs_generators() -> None:
    first, second = run_ranks(train_on, 2)
    assert first[:2] == second[:2] == (True, 1)
    assert [numbers for _, numbers in first[2]] != [numbers for _, numbers in second[2]]
    alone = [batch for batch, _ in steps_with(1)]
    assert [one + other for (one, _), (other, _) in zip(first[2], second[2], strict=True)] == alone

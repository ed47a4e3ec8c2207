"""States whose hashes are right and whose content is wrong: refused by name, and the trainer stays
as it was."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA, BestModel, EarlyStopping
from loopwright.checkpoint import read_checkpoint, write_checkpoint
from loopwright.errors import CheckpointError
from loopwright.training.state import capture
from tests.checkpoint.helpers import same
from tests.mistakes import raises

DATA = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16.0).reshape(16, 1))


class Fussy(Callback):
    """A user's own callback, whose state has a form that only it knows."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        self.seen.append(metrics["loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: Any) -> None:
        self.seen = []
        self.seen = [float(value) for value in state["seen"]]


def build(seed: int = 0, optimizer: Any = torch.optim.Adam) -> Trainer:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return Trainer(
        model,
        optimizer(model.parameters(), lr=0.01),
        nn.MSELoss(),
        scheduler=lambda given: torch.optim.lr_scheduler.StepLR(given, 2),
        callbacks=[
            EMA(),
            EarlyStopping("loss", mode="min", patience=9),
            BestModel("loss", mode="min"),
            Fussy(),
        ],
        seed=seed,
        progress="silent",
    )


def train(trainer: Trainer, num_updates: int = 6) -> Trainer:
    trainer.train(DATA, num_updates=num_updates, batch_size=4)
    return trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states") / "sound"
    train(build()).save(path)
    return path


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a tree."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


def state_of(trainer: Trainer) -> Any:
    return copy.deepcopy(capture(trainer.run))


def assert_as_before(trainer: Trainer, before: Any) -> None:
    after = capture(trainer.run)
    assert [part for part in before if not same(before[part], after[part])] == []


def without(tree: Any, *way: Any) -> Any:
    """A copy of the tree in which one thing is missing."""
    tree = copy.deepcopy(tree)
    owner = tree
    for part in way[:-1]:
        owner = owner[part]
    del owner[way[-1]]
    return tree


def replaced(tree: Any, value: Any, *way: Any) -> Any:
    """A copy of the tree in which one thing is another."""
    tree = copy.deepcopy(tree)
    owner = tree
    for part in way[:-1]:
        owner = owner[part]
    owner[way[-1]] = value
    return tree


ADAM = ("optimizers", "optimizer")
CASES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a weight that is text": (
        ("models", "model", "0.weight"),
        "x",
        r"models: model: 0.weight has shape",
    ),
    "a weight of whole numbers": (
        ("models", "model", "0.weight"),
        torch.zeros(3, 4, dtype=torch.int64),
        r"0.weight is torch.float32, the checkpoint's torch.int64",
    ),
    "an average of another shape": (
        (*ADAM, "state", 0, "exp_avg"),
        torch.zeros(2),
        r"exp_avg of parameter 0",
    ),
    "a schedule of another class": (
        ("schedules", "scheduler"),
        {"T_max": 3, "last_epoch": 1},
        r"scheduler: step_size is not in the checkpoint",
    ),
    "a history that is a number": (
        ("history",),
        3,
        r"updates failed with TypeError",
    ),
    "a user's callback that cannot read its state": (
        ("callbacks", "Fussy"),
        {"seen": ["x"]},
        r"callbacks: Fussy failed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_and_nothing_is_changed(
    case: str, saved: Path, tmp_path: Path
) -> None:
    way, value, said = CASES[case]
    write_checkpoint(tmp_path / "wrong", replaced(read_checkpoint(saved).tree, value, *way))
    trainer = train(build(1), 3)
    before = state_of(trainer)
    with pytest.raises(CheckpointError, match=said):
        trainer.load(tmp_path / "wrong")
    assert_as_before(trainer, before)


def test_the_state_of_another_optimizer_is_refused(saved: Path, tmp_path: Path) -> None:
    trainer = train(build(1, torch.optim.SGD), 3)
    before = state_of(trainer)
    shutil.copytree(saved, tmp_path / "saved")
    with raises("state-mismatch", "momentum, dampening of a group"):
        trainer.load(tmp_path / "saved")
    assert_as_before(trainer, before)


def test_a_model_that_refuses_its_own_state_is_put_back(tmp_path: Path) -> None:
    class Picky(nn.Linear):
        """Takes its weights, and then does not like what else it is given."""

        def get_extra_state(self) -> Any:
            return {"version": 1}

        def set_extra_state(self, state: Any) -> None:
            if state["version"] != 1:
                raise ValueError("this is of another version")

    def picky(seed: int) -> Trainer:
        torch.manual_seed(seed)
        model = Picky(4, 1)
        return train(
            Trainer(model, torch.optim.Adam(model.parameters()), nn.MSELoss(), progress="silent"), 3
        )

    picky(0).save(tmp_path / "saved")
    tree = replaced(
        read_checkpoint(tmp_path / "saved").tree, {"version": 2}, "models", "model", "_extra_state"
    )
    tree = replaced(tree, "enough", "stop_reason")
    tree = replaced(tree, 4, "num_pieces")
    write_checkpoint(tmp_path / "wrong", tree)
    trainer = picky(1)
    before = state_of(trainer)
    with raises("state-not-loaded", "models failed with ValueError: this is of another version"):
        trainer.load(tmp_path / "wrong")
    assert_as_before(trainer, before)


def test_the_simple_interface_refuses_a_wrong_state_whole(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from loopwright.interfaces.simple import Trainer as Simple

    def simple(seed: int) -> Simple:
        torch.manual_seed(seed)
        model = nn.Linear(4, 1)
        trainer = Simple(model, torch.optim.Adam(model.parameters()), nn.MSELoss())
        trainer.train(
            DataLoader(DATA, batch_size=4, shuffle=True), 1, save_dir=tmp_path / f"{seed}"
        )
        return trainer

    simple(0)
    tree = read_checkpoint(tmp_path / "0" / "checkpoint_epoch_1").tree
    trainer = simple(1)
    before = state_of(trainer._core)
    write_checkpoint(tmp_path / "wrong", without(tree, "rng"))
    with raises("incomplete-state", "rng"):
        trainer.load_checkpoint(tmp_path / "wrong")
    assert_as_before(trainer._core, before)

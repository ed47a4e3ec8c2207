"""States whose hashes are right and whose content is wrong: refused by name, and the trainer stays as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_helpers import same
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA, BestModel, EarlyStopping
from loopwright.checkpoint import read_checkpoint, write_checkpoint
from loopwright.checkpoint.capture import capture
from loopwright.errors import LoopwrightError

DATA = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16.0).reshape(16, 1))
NUM_MUTATIONS = 150
WRONG: tuple[Any, ...] = (None, "x", -1, 1.5, [], {}, [1, "x"], {"a": 1}, torch.zeros(3, 2), torch.zeros(()), True)


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
        callbacks=[EMA(), EarlyStopping("loss", mode="min", patience=9), BestModel("loss", mode="min"), Fussy()],
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
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


def mutated(tree: Any, chance: random.Random) -> tuple[Any, str]:
    """The tree with one thing in it that is wrong, and what that is."""
    tree = copy.deepcopy(tree)
    *way, key = chance.choice(list(places(tree)))
    owner = tree
    for part in way:
        owner = owner[part]
    what = chance.choice(("removed", "replaced", "renamed"))
    value = chance.choice(WRONG)
    if what == "removed" or (what == "renamed" and isinstance(owner, list)):
        del owner[key]
    elif what == "renamed":
        owner["renamed"] = owner.pop(key)
    else:
        owner[key] = value
    return tree, f"{what} {'/'.join(map(str, (*way, key)))} ({value!r})"


def state_of(trainer: Trainer) -> Any:
    return copy.deepcopy(capture(trainer))


def assert_as_before(trainer: Trainer, before: Any) -> None:
    after = capture(trainer)
    assert [part for part in before if not same(before[part], after[part])] == []


def refused(trainer: Trainer, path: Path, before: Any) -> str | None:
    """What a load said; None where it went through, as it may: not every wrong number can be told from a right one."""
    try:
        trainer.load(path)
    except LoopwrightError as error:
        assert_as_before(trainer, before)
        return str(error)
    return None


def test_a_state_with_anything_wrong_in_it_is_refused_whole_or_can_be_trained_on(saved: Path, tmp_path: Path) -> None:
    chance = random.Random(20261116)
    tree, trainer = read_checkpoint(saved).tree, train(build(1), 3)
    before, num_refused = state_of(trainer), 0
    for number in range(NUM_MUTATIONS):
        wrong, what = mutated(tree, chance)
        path = tmp_path / f"{number}"
        try:
            write_checkpoint(path, wrong)
        except LoopwrightError:  # what cannot even be written
            continue
        try:
            if refused(trainer, path, before) is not None:
                num_refused += 1
                continue
            with suppress(LoopwrightError):
                trainer.train(DATA, num_updates=2, batch_size=4)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        trainer = train(build(1), 3)
        before = state_of(trainer)
    assert num_refused > NUM_MUTATIONS / 3

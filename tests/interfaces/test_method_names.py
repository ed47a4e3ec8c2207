"""Methods of a subclass that nothing calls, because their names only resemble those that each
interface calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import ConfigurationError
from loopwright import Trainer as CoreTrainer
from loopwright.interfaces.adversarial import Pix2pixTrainer
from loopwright.interfaces.configured import BaseTrainer
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig
from loopwright.interfaces.simple import Trainer as SimpleTrainer

from .configured.parts import CustomTrainer
from .configured.parts import build_trainer as build_configured

Build = Callable[[type], Any]


def build_core(kind: type) -> Any:
    model = nn.Linear(2, 1)
    return kind(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss(), progress="silent")


def build_simple(kind: type) -> Any:
    model = nn.Linear(2, 1)
    return kind(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())


def build_lifecycle(kind: type) -> Any:
    model = nn.Linear(2, 1)
    return kind(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), callbacks=[])


def build_modular(kind: type) -> Any:
    return kind(DreamTrainerConfig())


def build_adversarial(kind: type) -> Any:
    return kind({"common": {"output_directory": "runs"}})


MISSPELT: list[tuple[type, Build, str, str]] = [
    (CoreTrainer, build_core, "train_stp", "train_step"),
    (SimpleTrainer, build_simple, "validation_step", "eval_step"),
    (SimpleTrainer, build_simple, "_compute_los", "_compute_loss"),
    (LifecycleTrainer, build_lifecycle, "training_epoch_end", "train_epoch_end"),
    (LifecycleTrainer, build_lifecycle, "on_eval_epoch_end", "eval_epoch_end"),
    (CoreTrainer, build_core, "training_step", "train_step"),
    (CustomTrainer, build_configured, "train_stp", "train_step"),
    (DreamTrainer, build_modular, "training_stp", "training_step"),
    (DreamTrainer, build_modular, "validation_epch_end", "on_validation_end"),
    (Pix2pixTrainer, build_adversarial, "forward_d", "forward_D"),
]


@pytest.mark.parametrize(("base", "build", "name", "meant"), MISSPELT)
def test_misspelt_override_is_refused_with_the_nearest_name(
    base: type,
    build: Build,
    name: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    misspelt = type("Mine", (base,), {name: lambda self, *args: None})
    with pytest.raises(ConfigurationError, match=f"did you mean {meant}"):
        build(misspelt)


class Called(SimpleTrainer):
    """A step that is divided into parts of its own."""

    def train_step(self, batch: Any) -> dict[str, float]:
        return self.train_stp(batch)

    def train_stp(self, batch: Any) -> dict[str, float]:
        return super().train_step(batch)


class Calling(SimpleTrainer):
    """A method for the program that uses this trainer, in the words of the method that it calls."""

    def save_checkpoint(self, path: str, epoch: int = 0) -> None:
        self._save_checkpoint(path, epoch)


class OtherArguments(SimpleTrainer):
    def train_epochs(self) -> None:
        """Take no loader, as `train_epoch` does."""


class FurtherWords(SimpleTrainer):
    def train_step_twice(self, batch: Any) -> None:
        """Say something else with a further word."""


class BesideTheRightOne(SimpleTrainer):
    def eval_step(self, batch: Any) -> dict[str, float]:
        return {"loss": 0.0}

    def eval_steps(self, batch: Any) -> None:
        """Resemble a method that is overridden as well."""


@pytest.mark.parametrize("kind", [Called, Calling, OtherArguments, FurtherWords, BesideTheRightOne])
def test_methods_of_ones_own_are_not_taken_for_misspelt_ones(kind: type[SimpleTrainer]) -> None:
    assert isinstance(build_simple(kind), kind)


def test_base_class_of_the_program_that_calls_a_similar_name_is_looked_at_too() -> None:
    class Base(BaseTrainer):
        def loss_compute(self, forward_output: Any, targets: Any) -> Any:
            return self.loss_computed(forward_output, targets)

    class Mine(Base):
        def loss_computed(self, forward_output: Any, targets: Any) -> Any:
            return (forward_output - targets["labels"]).square().mean()

    assert isinstance(build_configured(Mine), Mine)

"""`check_resume` finds state that is not saved, by name."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import EMA
from loopwright.debug.resume_check import check_resume

from ..loops import build_net

cross_entropy = nn.functional.cross_entropy


def build(model: Any = build_net, kind: type[Trainer] = Trainer, **options: Any) -> Trainer:
    net = model()
    settings: dict[str, Any] = {"callbacks": [EMA(0.9)]} | options
    return kind(net, torch.optim.Adam(net.parameters(), 0.01), cross_entropy, **settings)


def paths(found: Any) -> list[str]:
    return [difference.path for difference in found]


def test_a_run_that_saves_everything_is_exact(points):
    report = check_resume(build, points, points, batch_size=8)
    assert report.ok
    assert str(report) == "Resuming after 2 updates is exact: nothing differs 2 updates later."


class OwnGenerator(Dataset):
    """Noise from a generator of its own, whose state is not saved."""

    def __init__(self, points: TensorDataset, rng: Any) -> None:
        self.points = points
        self.rng = rng

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.points[index]
        if isinstance(self.rng, torch.Generator):
            return inputs + torch.randn(6, generator=self.rng), target
        return inputs + self.rng.normalvariate(0, 1) if isinstance(
            self.rng, random.Random
        ) else inputs + float(self.rng.normal()), target


GENERATORS = {
    "numpy": lambda: np.random.default_rng(0),
    "numpy's old kind": lambda: np.random.RandomState(0),
    "torch": lambda: torch.Generator().manual_seed(0),
    "python": lambda: random.Random(0),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS.keys())
def test_a_data_set_with_a_generator_of_its_own_is_found(points, make):
    report = check_resume(build, OwnGenerator(points, make()), batch_size=8)
    assert not report.ok
    assert paths(report.unsaved) == ["data/rng"]
    assert "models/model/0.weight" in paths(report.differing)
    assert "data.rng: 'generator in state" in str(report)
    assert "draw from torch, numpy or random's global generators" in str(report)


class Counter(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        self.steps += 1


class SavedCounter(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.steps = state["steps"]


def test_a_callback_without_a_state_dict_is_found(points):
    report = check_resume(lambda: build(callbacks=[Counter()]), points, batch_size=8)
    assert paths(report.unsaved) == ["callbacks/Counter/steps"]
    assert report.differing == ()
    assert "callbacks.Counter.steps: 2 / 0" in str(report)
    assert "return it from `state_dict`" in str(report)


def test_a_callback_with_a_state_dict_is_exact(points):
    assert check_resume(lambda: build(callbacks=[SavedCounter()]), points, batch_size=8).ok


def test_what_may_differ_can_be_ignored(points):
    report = check_resume(
        lambda: build(callbacks=[Counter()]), points, batch_size=8, ignore=["callbacks.Counter.*"]
    )
    assert report.ok


class Running(nn.Module):
    """Subtracts a running mean, which is a buffer."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6), persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * inputs.mean(0)
        result: Tensor = self.net(inputs - self.mean)
        return result


def test_a_buffer_that_is_not_persistent_is_found(points):
    report = check_resume(lambda: build(lambda: Running(False)), points, batch_size=8)
    assert paths(report.unsaved) == ["models/model/mean"]
    assert report.unsaved[0].max_abs > 0
    assert "without persistent=False" in str(report)


class Warming(Trainer):
    """Weighs the loss by a counter that it keeps itself."""

    count = 0

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        self.count += 1
        return super().compute_loss(outputs, targets) * min(self.count / 4, 1.0)


def test_a_counter_on_the_trainer_is_found(points):
    report = check_resume(lambda: build(kind=Warming), points, batch_size=8)
    assert paths(report.unsaved) == ["trainer/count"]
    assert "model" in report.differing[0].path
    assert "trainer.count: 2 / nothing   (saved run / loaded run)" in str(report)


def test_state_in_a_global_variable_is_reported_by_what_it_does(points):
    calls = {"n": 0}

    class Hidden(Trainer):
        def compute_loss(self, outputs: Any, targets: Any) -> Any:
            return super().compute_loss(outputs, targets) * (
                1.0 + (self.progress.update >= 2) * calls["n"]
            )

    def build_hidden() -> Trainer:
        calls["n"] += 1
        return build(kind=Hidden)

    report = check_resume(build_hidden, points, batch_size=8)
    assert not report.ok
    assert report.unsaved == ()
    assert "a global variable, a closure" in str(report)


def test_a_run_that_cannot_be_repeated_is_reported_as_such(points):
    generator = np.random.default_rng(0)

    class Unseeded(Trainer):
        def compute_loss(self, outputs: Any, targets: Any) -> Any:
            return super().compute_loss(outputs, targets) * generator.random()

    report = check_resume(lambda: build(kind=Unseeded), points, batch_size=8)
    assert not report.ok
    assert report.irreproducible
    assert str(report).startswith("The run is not reproducible")


def test_global_generators_and_the_current_folder_are_left_alone(points, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    check_resume(lambda: build(run_dir="run"), points, batch_size=8)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert list(Path(tmp_path).iterdir()) == []


def test_data_that_cannot_be_copied_is_refused_with_what_to_do(points):
    with pytest.raises(ConfigurationError, match="pass a function that returns it"):
        check_resume(build, (batch for batch in [points.tensors]))

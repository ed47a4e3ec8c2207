"""An experiment of another interface: the layer between the command line and interfaces knows none
of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import BestModel, Checkpoints
from loopwright.config import Config, ConfigError, Problem, load_config
from loopwright.metrics.history import History
from loopwright.run import RunView
from loopwright.run.experiment import Experiment

CONFIG = "seed: 3\nname: points\nwidth: 2\nmax_epochs: 2\ndatasets: {train: 8, test: 4}\n"


class PlainTrainer:
    """A trainer of an interface that is only as large as an experiment needs it."""

    def __init__(self, engine: Trainer, datasets: Mapping[str, Any], num_epochs: int) -> None:
        self.engine, self.datasets, self.num_epochs = engine, datasets, num_epochs
        self.settings: Mapping[str, Any] = {}

    def train(self, *, resume: bool | str | Path = "auto", changes: str = "refuse") -> History:
        left = self.num_epochs
        return self.engine.train(
            self.datasets["train"], left, eval_data=self.datasets["test"], resume=resume
        )

    def evaluate(self, dataset_key: str) -> dict[str, float]:
        return dict(self.engine.evaluate(self.datasets[dataset_key], batch_size=4))

    def eval(self) -> dict[str, float]:
        return self.evaluate("test")


class PlainExperiment(Experiment[PlainTrainer]):
    changeable = frozenset(("name", "max_epochs"))

    @classmethod
    def find_problems(cls, config: Config) -> Iterator[Problem]:
        if not isinstance(config.get("width"), int):
            yield config.problem("width", "is no number.")

    def build_dataset(self, key: str) -> Any:
        torch.manual_seed(len(key))
        inputs = torch.randn(self.config.get(f"datasets.{key}"), self.config.get("width"))
        return TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def build_trainer(self, datasets: Mapping[str, Any]) -> PlainTrainer:
        torch.manual_seed(0)
        model = nn.Linear(self.config.get("width"), 1)
        callbacks = [Checkpoints(every_epochs=1), BestModel("eval_loss", keep=9)]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        engine = Trainer(
            model, optimizer, nn.functional.mse_loss, callbacks=callbacks, progress="silent"
        )
        return PlainTrainer(engine, datasets, self.config.get("max_epochs"))

    def dataset_of(self, trainer: PlainTrainer, key: str) -> Any:
        return trainer.datasets[key]

    def set_settings(self, trainer: PlainTrainer, settings: Mapping[str, Any]) -> None:
        trainer.settings = settings


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    return load_config(tmp_path / "run.yaml")


def test_training_records_the_run_in_a_directory_of_its_name(
    config: Config, tmp_path: Path
) -> None:
    experiment = PlainExperiment.from_config(config)
    history = experiment.train()
    assert len(history) == 2
    assert experiment.run is not None
    run = RunView(experiment.run)
    assert run.path == tmp_path / "runs" / "points" / run.id
    assert (run.name, run.state, run.config) == (
        "points",
        "finished",
        {
            "seed": 3,
            "name": "points",
            "width": 2,
            "max_epochs": 2,
            "datasets": {"train": 8, "test": 4},
        },
    )
    assert {key: data["length"] for key, data in run.manifest["data"].items()} == {
        "train": 8,
        "test": 4,
    }
    assert "the limit is reached" in (run.path / "log.txt").read_text()
    assert experiment.trainer is not None
    assert experiment.trainer.settings == {
        "seed": 3,
        "width": 2,
        "datasets.train": 8,
        "datasets.test": 4,
    }


def test_a_finished_run_is_evaluated_from_its_directory_alone(config: Config) -> None:
    experiment = PlainExperiment.from_config(config)
    experiment.train()
    assert experiment.run is not None
    again = PlainExperiment.from_run(experiment.run)
    best = RunView(experiment.run).best("eval_loss")
    assert again.evaluate(checkpoint="best")["loss"] == best.value
    outputs = again.predict("test")
    assert [len(batch) for batch in outputs] == [4]


def test_changes_of_keys_that_are_not_changeable_make_another_run(config: Config) -> None:
    earlier = {"seed": 3, "width": 5, "max_epochs": 9, "datasets": {"train": 8, "test": 4}}
    changes = PlainExperiment.changes_since(earlier, config, "another")
    assert [(change.key, change.first, change.second) for change in changes] == [("width", 5, 2)]


def test_mistakes_that_an_interface_finds_are_one_error(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="width"):
        PlainExperiment.from_config(load_config(tmp_path / "run.yaml", ["width=wide"]))

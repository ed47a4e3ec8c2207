"""The document's own trainer and YAML, with only the import lines changed and the blanks filled
in."""

import textwrap

import pytest

from loopwright.config import ConfigError, load_config
from loopwright.interfaces.configured import (
    BaseTrainer,
    BaseTrainerConfig,
    Experiment,
    TrainerResult,
)

MODULE = """
import torch
from torch import nn
from torch.utils.data import Dataset

from loopwright.interfaces.configured import BaseTrainer
from loopwright.interfaces.configured import BaseTrainerConfig


class CustomTrainerConfig(BaseTrainerConfig):
    smoothness: float = 0.0


class CustomTrainer(BaseTrainer):

    def __init__(self, trainer_config: CustomTrainerConfig, **kwargs):
        super().__init__(trainer_config, **kwargs)
        self.smoothness = trainer_config.smoothness

    def loss_compute(
        self, forward_output: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        error = forward_output["prediction"] - targets["labels"]
        return {"mse": (error**2).mean(), "smooth": self.smoothness * forward_output["prediction"].abs().mean()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, coordinates, features):
        return {"prediction": self.layer(torch.cat([coordinates, features], dim=-1)).squeeze(-1)}


class Field(Dataset):
    def __init__(self, n: int = 48):
        generator = torch.Generator().manual_seed(n)
        self.coordinates, self.features = torch.rand(n, 2, generator=generator), torch.rand(n, 3, generator=generator)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        coordinates, features = self.coordinates[index], self.features[index]
        return {"coordinates": coordinates, "features": features, "labels": coordinates.sum() - features[0]}
"""

TRAINER = """
trainer:
  kind: path.to.CustomTrainer
  # Custom configuration parameters can be added here
  forward_properties:
    - coordinates
    - features
  target_properties:
    - labels
"""

REST = """
model: {kind: path.to.Model, optimizer: {kind: SGD, lr: 0.1}}
datasets: {train: {kind: path.to.Field}, test: {kind: path.to.Field, n: 16}}
"""


@pytest.fixture
def document(tmp_path, monkeypatch):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "__init__.py").write_text("")
    (tmp_path / "path" / "to.py").write_text(MODULE)
    (tmp_path / "run.yaml").write_text(textwrap.dedent(TRAINER + REST))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.yaml"


def test_the_documents_trainer_and_yaml_train(document):
    config = load_config(document, ["+trainer.max_epochs=6", "+trainer.smoothness=0.001"])
    run = Experiment.from_config(config, progress="silent")
    history = run.train()
    assert set(history.names) == {"loss", "mse", "smooth"}
    assert history["mse"][-1] < history["mse"][0]
    assert run.trainer.smoothness == 0.001


def test_how_long_to_train_has_to_be_said(document):
    with pytest.raises(ConfigError, match="exactly one of max_epochs, max_updates, max_samples"):
        Experiment.from_config(load_config(document))


def test_a_field_that_the_trainers_own_config_does_not_have_is_refused(document):
    with pytest.raises(ConfigError, match="smoothnes"):
        Experiment.from_config(
            load_config(document, ["+trainer.max_epochs=1", "+trainer.smoothnes=0.1"])
        )


def test_the_default_train_step_is_the_documents():
    """Split, forward with keywords, `loss_compute` by keywords, sum; as the document writes it
    down."""
    calls = []

    class Watched(BaseTrainer):
        def loss_compute(self, forward_output, targets):
            calls.append((forward_output, sorted(targets)))
            return {"a": forward_output.mean(), "b": targets["labels"].mean()}

    from .parts import Points, build_net

    config = BaseTrainerConfig(
        max_epochs=1, forward_properties=["coordinates", "features"], target_properties=["labels"]
    )
    trainer = Watched(config, model=build_net(dropout=0.0), datasets={"train": Points(4)})
    batch = {**Points(4).rows(slice(None)), "labels": Points(4).labels, "more": None}
    result = trainer.train_step(batch, trainer.model)
    assert isinstance(result, TrainerResult)
    assert calls[0][1] == ["labels"]
    assert result.total_loss == result.losses_to_log["a"] + result.losses_to_log["b"]
    assert result.additional_outputs is None

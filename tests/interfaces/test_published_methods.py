"""Names of the published systems beyond their documents: accepted, or refused with what to write
instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.adversarial import Pix2pixTrainer
from loopwright.interfaces.configured import BaseTrainerConfig, TrainerResult
from loopwright.interfaces.simple import Trainer as SimpleTrainer
from tests.mistakes import raises

from ..loops import build_net
from .adversarial.runs import tiny, write_data
from .configured.parts import CustomTrainer, CustomTrainerConfig, Points
from .configured.parts import build_net as build_model
from .configured.parts import build_trainer as build_configured
from .modular.programs import Config, MyTrainer

cross_entropy = nn.functional.cross_entropy

# simple


class Published(SimpleTrainer):
    """Steps that write the prefixes of the history themselves."""

    def train_step(self, batch: Any) -> dict[str, float]:
        return {"train_loss": super().train_step(batch)["loss"]}

    def eval_step(self, batch: Any) -> dict[str, float]:
        return {"eval_loss": super().eval_step(batch)["loss"]}


class PublishedEvaluation(SimpleTrainer):
    def evaluate(self, dataloader: Any) -> dict[str, float]:
        return {"eval_loss": super().evaluate(dataloader)["loss"]}


@pytest.mark.parametrize("kind", [Published, PublishedEvaluation])
def test_prefixes_that_a_method_writes_itself_are_not_doubled(
    kind: type[SimpleTrainer], points: TensorDataset
) -> None:
    histories = []
    for one in (kind, SimpleTrainer):
        net = build_net()
        trainer = one(net, torch.optim.SGD(net.parameters(), 0.1), cross_entropy)
        histories.append(trainer.train(DataLoader(points, 8), 2, DataLoader(points, 8)))
    assert histories[0] == histories[1]


class SecondOptimizer(SimpleTrainer):
    def __init__(self, model: nn.Sequential) -> None:
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        super().__init__(model, torch.optim.SGD(layers[0].parameters(), 0.1), cross_entropy)
        others = [
            p for p in model.parameters() if all(p is not own for own in layers[0].parameters())
        ]
        self.second = torch.optim.SGD(others, 0.1)

    def train_step(self, batch: Any) -> dict[str, float]:
        inputs, targets = self._prepare_batch(batch)
        loss = self._compute_loss(self._forward_pass(inputs), targets)
        loss.backward()
        for optimizer in (self.optimizer, self.second):
            assert optimizer is not None
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss.item()}


def test_parameters_of_an_optimizer_of_ones_own_are_not_said_to_be_untrained(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    SecondOptimizer(build_net(dropout=0.0)).train(DataLoader(points, 8), 1)
    said = capsys.readouterr()
    assert "No optimizer trains" not in said.out + said.err


# configured


def test_settings_that_may_be_null_in_published_configs_take_their_defaults() -> None:
    names = ("callbacks", "forward_properties", "target_properties", "start_at_epoch")
    nulls = BaseTrainerConfig(max_epochs=1, **dict.fromkeys(names))
    assert nulls == BaseTrainerConfig(max_epochs=1)


class OwnOptimizer(CustomTrainer):
    def __init__(self, trainer_config: CustomTrainerConfig, **kwargs: Any) -> None:
        super().__init__(trainer_config, **kwargs)
        self.second = torch.optim.SGD(self.model.parameters(), lr=0.1)


def test_optimizer_that_the_trainer_neither_feeds_nor_saves_is_refused() -> None:
    trainer = OwnOptimizer(
        build_configured().config, model=build_model(), datasets={"train": Points()}
    )
    with raises("optimizer-beside-others", "'second'"):
        trainer.train()


def test_optimizers_passed_as_the_error_says_are_trained_by_name() -> None:
    class Both(CustomTrainer):
        def train_step(self, batch: Any, model: nn.Module) -> TrainerResult:
            result = super().train_step(batch, model)
            self.update(result.total_loss, "optimizer", retain_graph=True)
            self.update(result.total_loss, "second")
            return result

    model = build_model()
    first, *rest = model.parameters()
    optimizers = {
        "optimizer": torch.optim.SGD([first], lr=0.1),
        "second": torch.optim.SGD(rest, lr=0.1),
    }
    before = [param.detach().clone() for param in model.parameters()]
    trainer = Both(
        build_configured().config, model=model, optimizer=optimizers, datasets={"train": Points()}
    )
    trainer.train()
    assert not any(
        torch.equal(param, old) for param, old in zip(model.parameters(), before, strict=True)
    )


# modular


def test_init_weights_of_the_trainer_sets_the_first_weights() -> None:
    class Initialised(MyTrainer):
        def init_weights(self) -> None:
            for param in self.model.parameters():
                param.fill_(0.25)

    trainer = Initialised(Config())
    trainer.setup()
    assert all((param == 0.25).all() for param in trainer.model.parameters())


def test_init_weights_of_the_trainer_gives_values_to_models_on_the_meta_device() -> None:
    class Building(MyTrainer):
        def configure_models(self) -> None:
            with torch.device("meta"):
                self.model = nn.Linear(6, 3)

        def init_weights(self) -> None:
            nn.init.constant_(self.model.weight, 0.5)
            nn.init.zeros_(self.model.bias)

    trainer = Building(Config())
    trainer.setup()
    assert (trainer.model.weight == 0.5).all()


def test_published_event_of_the_trainer_is_refused() -> None:
    class Own(MyTrainer):
        def post_fit(self) -> None: ...

    with raises("event-elsewhere", "here that event is on_fit_end"):
        Own(Config())


# adversarial


def test_loop_over_batches_of_ones_own_is_refused(tmp_path: Path) -> None:
    class OwnLoop(Pix2pixTrainer):
        def _train_paired_core(self, train_step_fn: Any, train_step_kwargs: Any) -> None: ...

    with raises("event-elsewhere", "OwnLoop._train_paired_core", "train_step"):
        OwnLoop(tiny(write_data(tmp_path / "data"), tmp_path))

"""The commonest mistakes: each ends in a message that says what happened, what was expected, and
what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from loopwright.errors import LoopwrightError, NonFiniteLossError
from loopwright.interfaces.modular import Callback, DreamTrainer, DreamTrainerConfig

from .programs import Config, MyTrainer, build_data

FOREIGN = re.compile(
    r"runtime=|clip_norm=|NonFiniteGuard|\baccumulate\b|update\(loss|train_step|eval_step"
)


def trained(
    base: type[MyTrainer] = MyTrainer, config: DreamTrainerConfig | None = None, **methods: Any
) -> None:
    type("Mine", (base,), methods)(config or Config()).fit()


def loss_of(trainer: Any, batch: Any) -> Any:
    return trainer.criterion(trainer.model(batch[0]), batch[1])


class NoModel(MyTrainer):
    def __init__(self, config: DreamTrainerConfig) -> None:
        DreamTrainer.__init__(self, config)


class Undecorated(DreamTrainerConfig):
    width: int = 3


@dataclass(kw_only=True)
class Untyped(DreamTrainerConfig):
    n_epochs = 5


class NoSuper(MyTrainer):
    def __init__(self, config: DreamTrainerConfig) -> None:
        self.model = nn.Linear(6, 3)


class NoValidation(MyTrainer):
    validation_step = DreamTrainer.validation_step


class InList(MyTrainer):
    def configure_models(self) -> None:
        self.heads = [nn.Linear(6, 3)]

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.SGD(
            [*self.model.parameters(), *self.heads[0].parameters()], lr=0.1
        )


class OnlyList(InList):
    def configure_models(self) -> None:
        super().configure_models()
        del self.model


class Misspelt(Callback):
    def on_train_batch_ends(self, trainer: DreamTrainer) -> None: ...


class Published(Callback):
    def post_validation_step(self, result: Any, batch_idx: int) -> None:
        pass


class PublishedOnly(Callback):
    def post_setup(self) -> None:
        pass


class TooFew(Callback):
    def on_train_batch_end(self, trainer: DreamTrainer, batch: Any) -> None: ...


def optimizers(returned: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda self: returned(self, torch.optim.SGD(self.model.parameters(), lr=0.1))


def loaders(returned: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self: returned(DataLoader(build_data(), 8))


def unseen_loss(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(nn.functional.cross_entropy(self.model(batch[0]), batch[1], reduction="none"))


def other_name(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(loss_of(self, batch), "optimiser")


def is_nan(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(loss_of(self, batch) * float("nan"))


def a_pair(self: Any, batch: Any, batch_idx: int) -> Any:
    return loss_of(self, batch), 0.5


def out_of_memory(self: Any, batch: Any, batch_idx: int) -> Any:
    if len(batch[0]) > 3:
        raise torch.OutOfMemoryError
    self.backward(loss_of(self, batch))
    self.backward(loss_of(self, batch))


def only_foo(self: Any, batch: Any, batch_idx: int) -> Any:
    self.backward(loss_of(self, batch))
    return {"foo": 1.0}


def plateau(self: Any) -> None:
    self.scheduler = ReduceLROnPlateau(self.optimizer)


def twice(self: Any) -> None:
    for batch_idx, batch in enumerate(self.train_loader):
        self.training_step(batch, batch_idx)
        self.training_step(batch, batch_idx)


# What is done, the code of the error, and what the message names. The core gives the errors that
# have no code here.
Mistake = tuple[str, Callable[[], Any], str, str]
MISTAKES: list[Mistake] = [
    ("no model", lambda: trained(NoModel), "no-trainable-model", ""),
    ("a subclass of the config without @dataclass", lambda: Undecorated(width=4), "config-no-dataclass", "@dataclass"),
    ("a field of a subclass without a type", lambda: Untyped(), "config-no-dataclass", "n_epochs"),
    ("no super().__init__(config)", lambda: NoSuper(Config()).fit(), "no-super-init", "NoSuper"),
    ("a dict as config", lambda: MyTrainer({"n_epochs": 2}), "no-modular-config", "DreamTrainerConfig"),
    ("a misspelt event", lambda: MyTrainer(Config(callbacks=[Misspelt()])), "", "did you mean on_train_batch_end"),
    ("an event of the published package", lambda: MyTrainer(Config(callbacks=[Published()])), "event-elsewhere",
     "here that event is on_validation_batch_end"),
    ("an event that is only in the published package", lambda: MyTrainer(Config(callbacks=[PublishedOnly()])),
     "event-elsewhere", "there is no such event here"),
    ("an event with too few arguments", lambda: MyTrainer(Config(callbacks=[TooFew()])),
     "", "outputs, batch, batch_idx"),
    ("an optimizer neither assigned nor returned",
     lambda: trained(configure_optimizers=optimizers(lambda self, o: None)), "unseen-optimizer", "self.optimizer"),
    ("lists of optimizers and schedulers",
     lambda: trained(configure_optimizers=optimizers(lambda self, o: [o, StepLR(o, 1)])),
     "unassigned-component", "SGD"),
    ("training_step twice for a batch of a window",
     lambda: trained(config=Config(gradient_accumulation_steps=2), training_loop=twice),
     "step-in-window", "gradient_accumulation_steps"),
    ("models in a list", lambda: trained(OnlyList), "no-trainable-model", ""),
    ("a model in a list beside another one", lambda: trained(InList), "", "holds 2 of 8 parameters"),
    ("three loaders", lambda: trained(configure_dataloaders=loaders(lambda loader: (loader,) * 3)),
     "unclear-loaders", "3"),
    ("loaders under other names",
     lambda: trained(configure_dataloaders=loaders(lambda loader: {"train": loader, "test": loader})),
     "unclear-loaders", "dict"),
    ("training_step(self, batch)", lambda: trained(training_step=lambda self, batch: None), "", "batch, batch_idx"),
    ("training_step returns a pair", lambda: trained(training_step=a_pair), "pair-of-loss-and-metric", ""),
    ("backward of a loss that is not reduced", lambda: trained(training_step=unseen_loss), "", "reduce it"),
    ("backward for an optimizer that does not exist", lambda: trained(training_step=other_name), "", "'optimiser'"),
    ("validation_step returns nothing", lambda: trained(validation_step=lambda self, batch, batch_idx: None),
     "", "validation_step"),
    ("validation_step returns 'loss' and 'val_loss'",
     lambda: trained(validation_step=lambda self, batch, batch_idx: {"loss": 1.0, "val_loss": 2.0}),
     "one-name-twice", "val_loss"),
    ("ReduceLROnPlateau without the metric that it watches",
     lambda: trained(training_step=only_foo, configure_schedulers=plateau,
                     configure_dataloaders=loaders(lambda loader: loader)), "plateau-metric", "ReduceLROnPlateau"),
    ("memory runs out in a step with two backward", lambda: trained(training_step=out_of_memory),
     "", "gradient_accumulation_steps"),
    ("seed='a'", lambda: MyTrainer(Config(seed="a")), "number", "seed='a'"),
    ("n_epochs='3'", lambda: MyTrainer(Config(n_epochs="3")), "number", "n_epochs='3'"),
    ("scheduler_interval='batch'", lambda: MyTrainer(Config(scheduler_interval="batch")), "unknown-choice", "'update'"),
    ("validation data and no validation_step", lambda: NoValidation(Config()).fit(), "no-validation-step", ""),
    ("strategy='dpp'", lambda: MyTrainer(Config(strategy="dpp")), "unknown-choice", "'fsdp'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "code", "value"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_named_in_the_words_of_this_interface(
    make: Callable[[], Any], code: str, value: str
) -> None:
    with pytest.raises(LoopwrightError) as caught:
        make()
    assert value in str(caught.value)
    assert not code or caught.value.code == code
    assert not FOREIGN.search(str(caught.value))


def test_a_nan_is_told_in_the_words_of_this_interface() -> None:
    with pytest.raises(NonFiniteLossError, match="gradient_clip_val") as caught:
        trained(training_step=is_nan)
    assert not FOREIGN.search(str(caught.value))


# What is no mistake


class Initialised(nn.Module):
    """Built on the meta device as the published system does it, and with values that no layer has
    by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, 3))

    def init_weights(self) -> None:
        nn.init.constant_(self.weight, 0.25)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_init_weights_is_called_for_a_model_on_the_meta_device_only(device: str) -> None:
    class Building(MyTrainer):
        def configure_models(self) -> None:
            with torch.device(device):
                self.model = Initialised()
            if device == "cpu":
                nn.init.zeros_(self.model.weight)

    trainer = Building(Config())
    trainer.setup()
    assert trainer.model.weight.device.type == "cpu"
    assert (trainer.model.weight == (0.25 if device == "meta" else 0.0)).all()
    trainer.fit()


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("retrieval_accuracy", "val_retrieval_accuracy"),
        ("val/loss", "val/loss"),
        ("interval_loss", "val_interval_loss"),
    ],
)
def test_what_a_validation_measures_is_told_from_training_by_how_its_name_begins(
    name: str, reported: str
) -> None:
    class Both(MyTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(loss_of(self, batch))
            return {name: 1.0}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {name: 2.0}

    history = Both(Config()).fit().to_dict()
    assert history[reported] == [2.0]
    assert name == reported or history[name] == [1.0]

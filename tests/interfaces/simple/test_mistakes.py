"""The commonest mistakes with the simple interface, each read as its user reads it: what happened,
and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError, DataError, LoopwrightError, NonFiniteLossError
from loopwright.interfaces.simple import Trainer
from tests.loops import build_linear
from tests.mistakes import Mistakes

from .programs import cross_entropy, in_order, shuffled

SECTION = "Interface: simple"
INPUTS, TARGETS = torch.randn(16, 6), torch.randint(3, (16,))
FOREIGN = re.compile(
    r"runtime=|clip_norm|NonFiniteGuard|configure_optimizers|\baccumulate\b|\bcompute_loss\b|eval_data\b"
)


def build(
    kind: type[Trainer] = Trainer, *, loss_fn: Any = cross_entropy, **options: Any
) -> Trainer:
    model = build_linear()
    return kind(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, **options)


def data(*tensors: torch.Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=8)


class NoStep(Trainer):
    def train_step(self, batch: Any) -> Any:
        super().train_step(batch)


class Log:
    def __call__(self, trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        pass


class Listing(Trainer):
    def train_step(self, batch: Any) -> Any:
        return [super().train_step(batch)["loss"]]


class PerSample(Trainer):
    def eval_step(self, batch: Any) -> Any:
        inputs, targets = self._prepare_batch(batch)
        return {"loss": nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")}


class NoEpoch(Trainer):
    def train_epoch(self, *args: Any, **options: Any) -> Any:
        super().train_epoch(*args, **options)


class NoEvaluate(Trainer):
    def evaluate(self, dataloader: Any) -> Any:
        super().evaluate(dataloader)


class Unpaired(Trainer):
    def _prepare_batch(self, batch: Any) -> Any:
        return batch[0].to(self.device)


class NoOutputs(Trainer):
    def _forward_pass(self, inputs: Any) -> Any:
        self.model(inputs)


class NoLoss(Trainer):
    def _compute_loss(self, outputs: Any, targets: Any) -> Any:
        cross_entropy(outputs, targets)


class NoSuper(Trainer):
    def __init__(self) -> None:
        self.model = build_linear()


class TooEarly(Trainer):
    def __init__(self) -> None:
        model = build_linear()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        super().__init__(model, None, cross_entropy)


def swapped() -> Any:
    model = build_linear()
    return Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


def of_another_optimizer() -> Any:
    scheduler = StepLR(torch.optim.SGD(build_linear().parameters(), lr=0.1), 1)
    return build(scheduler=scheduler).train(data(INPUTS, TARGETS), 1)


def train(kind: type[Trainer] = Trainer, **options: Any) -> Any:
    return build(kind, **options).train(data(INPUTS, TARGETS), 1, data(INPUTS, TARGETS))


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "loss and optimizer swapped": (swapped, r"The order is `Trainer\(model, optimizer, loss_fn\)`"),
    "the loss's class for the loss: `nn.CrossEntropyLoss`": (
        lambda: build(loss_fn=nn.CrossEntropyLoss),
        r"create an instance, `CrossEntropyLoss\(\)`",
    ),
    "the model's class for the model": (
        lambda: Trainer(nn.Linear, None, None),
        r"as Linear\(\.\.\.\)",
    ),  # type: ignore[arg-type]
    '`optimizer="adam"`': (
        lambda: Trainer(build_linear(), "adam", None),
        r"partial\(torch\.optim\.Adam, lr=1e-3\)",
    ),
    "a loss that takes three arguments": (
        lambda: build(loss_fn=lambda outputs, targets, weights: outputs.sum()),
        r"functools\.partial",
    ),
    "no loss at all: `loss_fn=None`": (lambda: train(loss_fn=None), r"Pass `loss_fn=`"),
    "a loss that returns None": (
        lambda: train(loss_fn=lambda outputs, targets: None),
        "return the loss",
    ),
    "a loss made a number by `.item()`": (
        lambda: train(loss_fn=lambda outputs, targets: cross_entropy(outputs, targets).item()),
        r"without `\.item\(\)`",
    ),
    "a loss for each sample": (
        lambda: train(loss_fn=nn.CrossEntropyLoss(reduction="none")),
        r"loss\.mean\(\)",
    ),
    "a loss that becomes infinite": (
        lambda: train(loss_fn=lambda outputs, targets: outputs.sum() / 0.0),
        r"set training\.max_grad_norm",
    ),
    "an optimizer of another model's parameters": (
        lambda: Trainer(
            build_linear(), torch.optim.SGD(build_linear().parameters(), lr=0.1), cross_entropy
        ).train(data(INPUTS, TARGETS), 1),
        "build it from the parameters of the model",
    ),
    "a scheduler of another optimizer": (
        of_another_optimizer,
        "make it from the trainer's own optimizer",
    ),
    "the scheduler's class for the scheduler: `StepLR`": (
        lambda: build(scheduler=StepLR),
        r"functools\.partial\(StepLR, \.\.\.\)",
    ),
    '`device="gpu"`': (lambda: build(device="gpu"), "write 'cpu', 'cuda'"),
    '`device="mps"` where there is none': (
        lambda: build(device="mps"),
        "Leave it out to use the best available device",
    ),
    "a data set for the loader": (
        lambda: build().train(TensorDataset(INPUTS, TARGETS), 1),  # type: ignore[arg-type]
        r"DataLoader\(dataset, batch_size=32, shuffle=True\)",
    ),
    "a tensor for the loader": (lambda: build().train(INPUTS, 1), "pass a DataLoader"),
    "`train(train_loader, eval_loader)`": (
        lambda: build().train(data(INPUTS, TARGETS), data(INPUTS, TARGETS)),  # type: ignore[arg-type]
        "use a whole number of epochs",
    ),
    "`num_epochs=2.0`": (lambda: build().train(data(INPUTS, TARGETS), 2.0), "use a whole number"),  # type: ignore[arg-type]
    "a loader without targets": (
        lambda: build().train(data(INPUTS), 1),
        r"return \(inputs, targets\) from the loader",
    ),
    "batches of inputs, targets and weights": (
        lambda: build().train(data(INPUTS, TARGETS, torch.ones(16)), 1),
        "override `_prepare_batch`",
    ),
    "an empty loader": (
        lambda: build().train(DataLoader([], batch_size=8), 1),
        "at least one batch",
    ),
    "a generator for two epochs": (
        lambda: build().train(iter([(INPUTS, TARGETS)]), 2),
        "an iterator can be used only once",
    ),
    "one callback for the list of them": (
        lambda: build().train(data(INPUTS, TARGETS), 1, callbacks=print),  # type: ignore[arg-type]
        r"callbacks=\[print\]",
    ),
    "a callback that was called: `callbacks=[log()]`": (
        lambda: build().train(data(INPUTS, TARGETS), 1, callbacks=[None]),  # type: ignore[list-item]
        "neither a function of",
    ),
    "a callback's class: `callbacks=[Log]`": (
        lambda: build().train(data(INPUTS, TARGETS), 1, callbacks=[Log]),
        r"pass an object of it, `Log\(\)`",
    ),
    "a callback with one argument": (
        lambda: build().train(data(INPUTS, TARGETS), 1, callbacks=[lambda trainer: None]),  # type: ignore[list-item]
        "trainer, epoch, metrics",
    ),
    "`early_stopping_patience=0`": (
        lambda: build().train(data(INPUTS, TARGETS), 1, early_stopping_patience=0),
        "1 or more",
    ),
    "`save_freq=0`": (lambda: build().train(data(INPUTS, TARGETS), 1, save_freq=0), "1 or more"),
    '`best_model_metric="accuracy"`, which nothing measures': (
        lambda: build().train(
            data(INPUTS, TARGETS), 1, early_stopping_patience=1, best_model_metric="accuracy"
        ),
        "return it from `eval_step`",
    ),
    "`train_step` that returns None": (lambda: train(NoStep), "expected a dict with 'loss'"),
    "`train_step` that returns a list": (lambda: train(Listing), "expected a dict with 'loss'"),
    "`eval_step` with a metric for each sample": (
        lambda: train(PerSample),
        "each metric must be one number",
    ),
    "`train_epoch` that returns None": (lambda: train(NoEpoch), "expected a dict of metrics"),
    "`evaluate` that returns None": (lambda: train(NoEvaluate), "expected a dict of metrics"),
    "`_prepare_batch` that returns one value": (
        lambda: train(Unpaired),
        "`return inputs, targets`",
    ),
    "`_forward_pass` that returns None": (
        lambda: train(NoOutputs),
        "from `_forward_pass` if you override it",
    ),
    "`_compute_loss` that returns None": (lambda: train(NoLoss), "return the loss"),
    "no `super().__init__()`": (
        lambda: NoSuper().train(data(INPUTS, TARGETS), 1),
        r"super\(\)\.__init__\(model",
    ),
    "`self.optimizer = ...` before `super().__init__()`": (TooEarly, "or assign it afterwards"),
    "all of the model frozen": (
        lambda: Trainer(build_linear().requires_grad_(False), None, cross_entropy).train(
            data(INPUTS, TARGETS), 1
        ),
        "Unfreeze some",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistake_is_named_with_what_to_do(what: str, mistake: Mistakes) -> None:
    make, words = MISTAKES[what]
    hide = r"(?<=float \()[\d.]+|0x[0-9a-f]+"
    with mistake(SECTION, what, LoopwrightError, match=words, hide=hide) as caught:
        make()
    assert isinstance(caught.value, (ConfigurationError, DataError, NonFiniteLossError))
    assert not FOREIGN.search(str(caught.value)), "words of another interface"


def test_model_that_takes_several_inputs_gets_all_but_the_last_of_a_longer_batch() -> None:
    model = nn.Bilinear(6, 6, 3)
    losses = Trainer(model, None, cross_entropy).train(data(INPUTS, INPUTS, TARGETS), 2)[
        "train_loss"
    ]
    assert losses[1] < losses[0]


def test_loader_that_is_no_data_loader_trains(points: TensorDataset) -> None:
    batches = [tuple(batch) for batch in in_order(points)]
    assert len(build().train(batches, 2, batches)["eval_loss"]) == 2
    assert len(build().train(shuffled(points), 1)["train_loss"]) == 1

"""The commonest mistakes with this interface: each has its code, and a message in the interface's
own words."""

# ruff: noqa: E501  (a table with a row for each mistake)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    DEFAULT_CALLBACKS,
    EarlyStoppingCallback,
    ModelEmaCallback,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
)
from tests.mistakes import raises

from ...loops import build_net
from .runs import build_trainer, head
from .stages import replaced, torch_backward, zero_backward_step

# words of the native trainer
FOREIGN = (
    r"runtime=|clip_norm|clip_value=1|NonFiniteGuard|configure_optimizers|`accumulate|train_step`"
)


def loss_of(change: Callable[[Tensor], Any]) -> Any:
    """A `calculate_train_batch_loss` whose result is changed."""

    def calculate(self: Any, batch: Any) -> Any:
        return change(nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    return calculate


def train(data: Any, callbacks: Any = (), options: Any = None, **methods: Any) -> None:
    """Train with a trainer whose methods are replaced."""
    options = {"num_epochs": 1} | (options or {})
    build_trainer(kind=replaced(**methods), callbacks=callbacks).train(data, **options)


def zero_and_step(self: Any) -> None:
    self.optimizer.zero_grad()
    self.optimizer.step()


class Misspelt(TrainerCallback):
    def on_train_epoch_ends(self, trainer: Trainer, **kwargs: Any) -> None: ...


class WithoutTrainer(TrainerCallback):
    def on_train_epoch_end(self) -> None: ...  # type: ignore[override]


def step_eval(self: Any, batch: Any) -> Any:
    self.backward_step(torch.zeros(()))


def another_model(self: Any) -> None:
    self.model = build_net(7)


Make = Callable[[TensorDataset, Path], Any]
NOT_A_NUMBER = loss_of(lambda loss: {"loss": loss * float("nan")})
OTHER = torch.optim.SGD(build_net().parameters(), 0.1)
FOREIGN_STEP = {"create_scheduler_fn": lambda _: StepLR(OTHER, 1)}
EVALUATING = ("eval_loss_epoch", "eval_dataset=")


def resume(points: TensorDataset, folder: Path) -> None:
    trainer = build_trainer()
    trainer.save_checkpoint(folder / "checkpoint")
    trainer.train(points, 1, resume_from=folder / "checkpoint")


MISTAKES: list[tuple[str, tuple[str, ...], Make]] = [
    # the trainer
    ("foreign-parameters", (), lambda data, _: Trainer(build_net(), nn.CrossEntropyLoss(), OTHER, callbacks=()).train(data, 1)),
    ("foreign-parameters", ("too",), lambda data, _: train(data, training_run_start=another_model)),
    ("trainer-without-optimizer", (), lambda data, _: Trainer(build_net(), nn.CrossEntropyLoss(), None, callbacks=()).train(data, 1)),
    ("trainer-without-loss", (), lambda data, _: Trainer(build_net(), None, None, callbacks=()).evaluate(data)),
    ("unknown-precision", ("bf16",), lambda *_: build_trainer(mixed_precision="bfloat16")),
    ("own-accelerator", ("mixed_precision",), lambda *_: build_trainer(kind=replaced(_create_accelerator=lambda self: object()))),
    # arguments
    ("number", ("num_epochs=1.5",), lambda data, _: train(data, options={"num_epochs": 1.5})),
    ("number", ("gradient_accumulation_steps=0",), lambda data, _: train(data, options={"gradient_accumulation_steps": 0})),
    ("number", ("gradient_clip_value=0",), lambda data, _: train(data, options={"gradient_clip_value": 0})),
    ("number", ("max_num_train_steps=-1",), lambda data, _: train(data, options={"max_num_train_steps": -1})),
    ("number", ("early_stopping_patience=0",), lambda *_: EarlyStoppingCallback(0)),
    ("no-scheduler-returned", (), lambda data, _: train(data, options={"create_scheduler_fn": partial(StepLR, step_size=1)}, create_scheduler=lambda self: None)),
    ("scheduler-of-another-optimizer", (), lambda data, _: train(data, options=FOREIGN_STEP)),
    ("no-evaluation-data", (), lambda *_: build_trainer().evaluate()),
    ("not-a-training-state", (), lambda data, folder: train(data, options={"resume_from": folder / "nothing"})),
    ("not-a-training-state", ("`load_checkpoint`",), resume),
    # methods of one's own
    ("no-loss-tensor", ("Tensor",), lambda data, _: train(data, calculate_train_batch_loss=loss_of(lambda loss: loss))),
    ("no-loss-tensor", (), lambda data, _: train(data, calculate_train_batch_loss=loss_of(lambda loss: {"loss": loss.item()}))),
    ("update-in-evaluation", (), lambda data, _: train(data, options={"eval_dataset": data}, calculate_eval_batch_loss=step_eval)),
    ("update-outside-training", (), lambda *_: build_trainer().backward_step(torch.zeros(()))),
    ("step-in-window", ("gradient_accumulation_steps", "2 batches"), lambda data, _: train(data, options={"gradient_accumulation_steps": 2}, backward_step=zero_backward_step)),
    ("unscaled-loss", (), lambda data, _: build_trainer(kind=replaced(backward_step=torch_backward), mixed_precision="fp16").train(data, 1)),
    ("nothing-trained", ("5 updates",), lambda data, _: train(data, optimizer_step=lambda self: None)),
    ("nothing-trained", (), lambda data, _: train(data, optimizer_step=zero_and_step)),
    ("not-a-pair", ("list",), lambda data, _: train(TensorDataset(data.tensors[0]))),
    ("not-iterable", ("NoneType",), lambda data, _: train(data, create_train_dataloader=lambda self, **options: None)),
    # callbacks
    ("call-arguments", ("(self, trainer, **kwargs)",), lambda *_: build_trainer(callbacks=[WithoutTrainer])),
    ("not-a-callback", (), lambda *_: build_trainer(callbacks=[print])),
    ("unknown-run-metric", ("eval_loss_epoch",), lambda data, _: train(data, [EarlyStoppingCallback(watch_metric="eval_los_epoch", greater_is_better=False)], {"eval_dataset": data})),
    ("unknown-direction", ("'foo'", "greater_is_better="), lambda *_: SaveBestModelCallback(watch_metric="foo")),
    ("nothing-evaluated", EVALUATING, lambda data, folder: train(data, [SaveBestModelCallback(folder / "best")])),
    ("nothing-evaluated", (), lambda data, folder: train(data, [ModelEmaCallback(save_path=folder / "average")])),
    ("nothing-evaluated", (), lambda data, _: train(data, [StepBasedEvaluationCallback(2)])),
    ("non-finite", ("nan", "gradient_clip_value="), lambda data, _: train(data, DEFAULT_CALLBACKS, calculate_train_batch_loss=NOT_A_NUMBER)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "values", "make"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_has_a_code_and_a_message_in_the_words_of_this_interface(
    code: str, values: tuple[str, ...], make: Make, points: TensorDataset, tmp_path: Path
) -> None:
    with raises(code, *values, without=FOREIGN):
        make(points, tmp_path)


def test_a_misspelt_event_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"on_train_epoch_ends.*did you mean on_train_epoch_end"):
        build_trainer(callbacks=[Misspelt])


def test_an_update_without_gradients_is_refused(points: TensorDataset) -> None:
    with pytest.raises(ValueError, match="none of its 6 parameters has a gradient"):
        train(points, backward_step=lambda self, loss: None)


def test_empty_evaluation_data_is_refused(points: TensorDataset) -> None:
    with pytest.raises(ValueError, match="evaluation data is empty"):
        build_trainer().train(points, 1, eval_dataset=head(points, 0))


def test_steps_of_another_optimizer_over_the_same_weights_are_training(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(self: Any) -> None:
        torch.optim.SGD(self.model.parameters(), 0.1).step()

    train(points, optimizer_step=step)
    assert capsys.readouterr().out == ""

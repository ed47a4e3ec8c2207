"""The commonest mistakes with this interface, and what is said about each: in the interface's own words."""

# ruff: noqa: E501  (a table with a row for each mistake)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError, NonFiniteLossError
from loopwright.errors import CheckpointError
from loopwright.interfaces.lifecycle import (
    DEFAULT_CALLBACKS,
    EarlyStoppingCallback,
    InMemoryRunHistory,
    PrintProgressCallback,
    SaveBestModelCallback,
    Trainer,
    TrainerCallback,
    WSDCheckpointCallback,
    WSDLrScheduler,
)

from ...loops import build_net
from .runs import build_trainer
from .stages import replaced, torch_step, zero_backward_step

FOREIGN = (
    "runtime=",
    "clip_norm",
    "clip_value=1",
    "NonFiniteGuard",
    "configure_optimizers",
    "`accumulate",
    "train_step`",
)


def loss_of(change: Callable[[Tensor], Any]) -> Any:
    """A `calculate_train_batch_loss` whose result is changed."""

    def calculate(self: Any, batch: Any) -> Any:
        return change(nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    return calculate


def training(points: TensorDataset, callbacks: Any = (), data: Any = None, **methods: Any) -> Any:
    """`train` with a trainer whose methods are replaced."""
    return partial(
        build_trainer(kind=replaced(**methods), callbacks=callbacks).train,
        points if data is None else data,
    )


def zero_and_step(self: Any) -> None:
    self.optimizer.zero_grad()
    self.optimizer.step()


class Misspelt(TrainerCallback):
    def on_train_epoch_ends(self, trainer: Trainer, **kwargs: Any) -> None: ...


class Backward(TrainerCallback):
    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        batch_output["loss"].backward()


class WithoutTrainer(TrainerCallback):
    def on_train_epoch_end(self) -> None: ...  # type: ignore[override]


class NotSetUp(Trainer):
    def __init__(self) -> None:
        self.metrics = nn.ModuleDict()


def mistakes(
    points: TensorDataset, folder: Path
) -> dict[str, tuple[type[Exception], str, Callable[[], Any]]]:
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run, wrong = partial(training, points), ConfigurationError
    plain = build_trainer()
    plain.save_checkpoint(folder / "checkpoint")
    pair = points.tensors
    return {
        # the trainer
        "`Trainer(model, optimizer, loss)`": (
            wrong, r"order is Trainer\(model, loss_func, optimizer\)",
            lambda: Trainer(model, optimizer, nn.CrossEntropyLoss()),  # type: ignore[arg-type]
        ),
        "`loss_func=nn.CrossEntropyLoss` without brackets": (
            wrong, r"pass an instance", lambda: Trainer(model, nn.CrossEntropyLoss, optimizer),
        ),
        "`optimizer=torch.optim.SGD`": (
            wrong, r"SGD\(model.parameters\(\), lr=0.01\)",
            lambda: Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD),  # type: ignore[arg-type]
        ),
        "an optimizer of another model": (
            wrong, r"create it with `model.parameters\(\)`",
            lambda: Trainer(build_net(), nn.CrossEntropyLoss(), optimizer, callbacks=()).train(points, 1),
        ),
        "`callbacks=PrintProgressCallback` without a list": (
            wrong, r"callbacks=\[PrintProgressCallback\]", lambda: build_trainer(callbacks=PrintProgressCallback),
        ),
        "a subclass whose `__init__` does not call `super().__init__`": (
            wrong, r"call `super\(\).__init__\(model, loss_func, optimizer\)`", lambda: NotSetUp().train(points, 1),
        ),
        "`run_history=InMemoryRunHistory` without brackets": (
            wrong, r"pass `InMemoryRunHistory\(\)`", lambda: build_trainer(run_history=InMemoryRunHistory),
        ),
        "`mixed_precision='bfloat16'`": (wrong, "use one of 'no', 'bf16'", lambda: build_trainer(mixed_precision="bfloat16")),
        "an accelerator of one's own in `_create_accelerator`": (
            wrong, "mixed_precision='bf16'", lambda: build_trainer(kind=replaced(_create_accelerator=lambda self: object())),
        ),
        # arguments of train and evaluate
        "a DataLoader as the data set": (wrong, r"pass `loader.dataset`", lambda: plain.train(DataLoader(points), 1)),
        "a tuple of tensors as the data set": (wrong, r"TensorDataset\(inputs, targets\)", lambda: plain.train(pair, 1)),
        "`per_device_batch_size=0`": (wrong, "1 or more", lambda: plain.train(points, 1, per_device_batch_size=0)),
        "`num_epochs=1.5`": (wrong, "whole number", lambda: plain.train(points, 1.5)),  # type: ignore[arg-type]
        "`gradient_accumulation_steps=0`": (
            wrong, "number of batches", lambda: plain.train(points, 1, gradient_accumulation_steps=0),
        ),
        "`train_dataloader_kwargs={'batchsize': 4}`": (
            wrong, "did you mean 'batch_size'", lambda: plain.train(points, 1, train_dataloader_kwargs={"batchsize": 4}),
        ),
        "a scheduler where a function that makes one is meant": (
            wrong, r"functools.partial\(StepLR",
            lambda: plain.train(points, 1, create_scheduler_fn=StepLR(plain.optimizer, 1)),  # type: ignore[arg-type]
        ),
        "a `create_scheduler_fn` that returns nothing": (
            wrong, "return the scheduler", lambda: plain.train(points, 1, create_scheduler_fn=lambda optimizer: None),
        ),
        "a `ReduceLROnPlateau`, which needs a metric": (
            wrong, "override `scheduler_step`", lambda: plain.train(points, 1, create_scheduler_fn=ReduceLROnPlateau),
        ),
        "a scheduler of another optimizer": (
            wrong, "belongs to an optimizer that this trainer does not have",
            lambda: plain.train(points, 1, create_scheduler_fn=lambda _: StepLR(optimizer, 1)),
        ),
        "a `create_scheduler` that returns nothing, with `create_scheduler_fn=`": (
            wrong, "`return scheduler`",
            lambda: run(create_scheduler=lambda self: None)(1, create_scheduler_fn=partial(StepLR, step_size=1)),
        ),
        "a `create_scheduler` that returns the class `StepLR`": (
            wrong, r"`return StepLR\(self.optimizer, ...\)`", lambda: run(create_scheduler=lambda self: StepLR)(1),
        ),
        "a `create_scheduler` that returns a function": (
            wrong, r"has no `step\(\)`", lambda: run(create_scheduler=lambda self: partial(StepLR, step_size=1))(1),
        ),
        "`evaluate()` without data": (wrong, "pass `dataset=`", lambda: plain.evaluate()),
        "`resume_from=` a path that does not exist": (
            CheckpointError, "save_training_state", lambda: plain.train(points, 1, resume_from=folder / "nothing"),
        ),
        "`resume_from=` a checkpoint of `save_checkpoint`": (
            CheckpointError, "`load_checkpoint`", lambda: plain.train(points, 1, resume_from=folder / "checkpoint"),
        ),
        # methods of one's own
        "a `calculate_train_batch_loss` that returns the loss alone": (
            wrong, r'return \{"loss"', lambda: run(calculate_train_batch_loss=loss_of(lambda loss: loss))(1),
        ),
        "a `calculate_train_batch_loss` that returns nothing": (
            wrong, "returned None", lambda: run(calculate_train_batch_loss=loss_of(lambda loss: None))(1),
        ),
        "a loss that is a number (`.item()`)": (
            wrong, "return a tensor", lambda: run(calculate_train_batch_loss=loss_of(lambda x: {"loss": x.item()}))(1),
        ),
        "a loss without gradients (`.detach()`)": (
            wrong, "has no gradients", lambda: run(calculate_train_batch_loss=loss_of(lambda x: {"loss": x.detach()}))(1),
        ),
        "a loss that is not reduced": (
            wrong, r"such as `loss.mean\(\)`", lambda: run(calculate_train_batch_loss=loss_of(lambda x: {"loss": x.repeat(2)}))(1),
        ),
        "a `backward_step` in `calculate_eval_batch_loss`": (
            wrong, "would train on the evaluation data",
            lambda: run(calculate_eval_batch_loss=lambda self, batch: self.backward_step(torch.zeros(())))(1, eval_dataset=points),
        ),
        "a `backward_step` that does nothing": (
            wrong, "There are no gradients", lambda: run(backward_step=lambda self, loss: None)(1),
        ),
        "`optimizer.step()` in `backward_step`, with accumulation": (
            wrong, "move the step to `optimizer_step`",
            lambda: run(backward_step=zero_backward_step)(1, gradient_accumulation_steps=2),
        ),
        "`optimizer.step()` in `backward_step`, with clipping": (
            wrong, "move the step to `optimizer_step`",
            lambda: run(backward_step=zero_backward_step)(1, gradient_clip_value=0.5),
        ),
        "`optimizer.step()` in both `backward_step` and `optimizer_step`": (
            wrong, "keep the step in `optimizer_step`",
            lambda: run(backward_step=zero_backward_step, optimizer_step=torch_step)(1),
        ),
        "an `optimizer_step` that does nothing": (
            wrong, r"`optimizer_step` took no .* Call `self.optimizer.step\(\)`", lambda: run(optimizer_step=lambda self: None)(1),
        ),
        "`zero_grad()` before `step()` in `optimizer_step`": (
            wrong, r"zero the gradients after that step", lambda: run(optimizer_step=zero_and_step)(1),
        ),
        "an `_update_weights` that does nothing": (
            wrong, r"Call `self.optimizer_step\(\)`", lambda: run(_update_weights=lambda self: None)(1),
        ),
        "batches without targets": (
            wrong, "override both methods", lambda: run(data=TensorDataset(pair[0]))(1),
        ),
        "a `_create_run_config` that returns nothing": (
            wrong, r"dataclasses.replace", lambda: run(_create_run_config=lambda self, **kwargs: None)(1),
        ),
        "a `create_train_dataloader` that returns nothing": (
            wrong, "return a DataLoader", lambda: run(create_train_dataloader=lambda self, batch_size, train_dl_kwargs: None)(1),
        ),
        # callbacks
        "a misspelt event, `on_train_epoch_ends`": (
            wrong, "did you mean on_train_epoch_end", lambda: build_trainer(callbacks=[Misspelt]),
        ),
        "`loss.backward()` in `on_train_step_end` of a callback": (
            wrong, "remove `loss.backward", lambda: run([Backward])(1),
        ),
        "an event without its arguments": (
            wrong, r"give it \(self, trainer, \*\*kwargs\)", lambda: build_trainer(callbacks=[WithoutTrainer]),
        ),
        "a callback that watches a misspelt metric": (
            wrong, "Did you mean 'eval_loss_epoch'",
            lambda: run([EarlyStoppingCallback(watch_metric="eval_los_epoch", greater_is_better=False)])(1, eval_dataset=points),
        ),
        "`SaveBestModelCallback` without `eval_dataset`": (
            wrong, "pass `eval_dataset=`", lambda: run([SaveBestModelCallback(folder / "best")])(1),
        ),
        "`WSDCheckpointCallback` without its scheduler": (
            wrong, "create_scheduler_fn=WSDLrScheduler", lambda: run([WSDCheckpointCallback(folder / "wsd")])(1),
        ),
        "`WSDLrScheduler` without a length": (wrong, "pass `total_steps`", lambda: WSDLrScheduler(optimizer)),
        "a loss that becomes NaN, with the default callbacks": (
            NonFiniteLossError, "Lower the learning rate",
            lambda: run(DEFAULT_CALLBACKS, calculate_train_batch_loss=loss_of(lambda x: {"loss": x * float("nan")}))(1),
        ),
        "`gather` of a number": (wrong, r"torch.tensor\(value", lambda: plain.gather(1.0)),
        "`backward_step` outside of `train`": (wrong, "outside of `train`", lambda: plain.backward_step(torch.zeros(()))),
    }  # fmt: skip


def test_every_mistake_is_named_in_the_words_of_this_interface(
    points: TensorDataset, tmp_path: Path, mistake: Any
) -> None:
    for what, (error, match, make) in mistakes(points, tmp_path).items():
        with mistake("Interface: lifecycle", what, error, match=match) as caught:
            make()
        said = str(caught.value)
        assert not any(word in said for word in FOREIGN), said


def test_gradients_without_a_scale_in_fp16_are_named(points: TensorDataset, mistake: Any) -> None:
    def plain(self: Any, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    trainer = build_trainer(kind=replaced(backward_step=plain), mixed_precision="fp16")
    with mistake(
        "Interface: lifecycle",
        "`loss.backward()` in `backward_step` with fp16",
        ConfigurationError,
        match="super",
    ):
        trainer.train(points, 1)


def test_a_model_without_its_optimizer_is_named(points: TensorDataset, mistake: Any) -> None:
    def put_in(self: Any) -> None:
        self.model = build_net(7)

    trainer = build_trainer(kind=replaced(training_run_start=put_in))
    with mistake(
        "Interface: lifecycle",
        "`self.model = ...` without `self.optimizer = ...`",
        ConfigurationError,
        match="too",
    ):
        trainer.train(points, 1)


def test_a_line_says_that_a_clip_is_not_called(
    points: TensorDataset, mistake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    build_trainer(kind=replaced(_clip_gradients=lambda self: None)).train(points, 1)
    mistake.said(
        "Interface: lifecycle",
        "`_clip_gradients` overridden without `gradient_clip_value=`",
        capsys.readouterr().out,
    )


def test_a_loop_of_ones_own_that_trains_nothing_is_said_once(
    points: TensorDataset, mistake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, body in (
        ("_run_train_epoch", lambda self, train_dl: None),
        ("_run_training", lambda self: None),
    ):
        build_trainer(kind=replaced(**{name: body})).train(points, 3)
        said = capsys.readouterr().out
        assert said.count(f"`{name}` trained nothing") == said.count("\n") == 1
        mistake.said("Interface: lifecycle", f"a `{name}` that does nothing", said)


def test_steps_of_another_optimizer_over_the_same_weights_are_training(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(self: Any) -> None:
        torch.optim.SGD(self.model.parameters(), 0.1).step()

    build_trainer(kind=replaced(optimizer_step=step)).train(points, 1)
    assert capsys.readouterr().out == ""

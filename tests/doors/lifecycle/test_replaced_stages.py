"""Stages that a user replaces whole, without `super()`: as the published system has them, and as plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError
from loopwright.doors.lifecycle import LimitBatchesCallback, StepBasedEvaluationCallback, StopTrainingError, Trainer

from ...loops import assert_same_model, assert_same_optimizer, build_net, train_by_hand
from .runs import build_trainer, head, recording_callback, train

Body = Callable[..., Any]
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "accumulation": ({"gradient_accumulation_steps": 4}, {"accumulate": 4}),
    "clipping": (
        {"gradient_accumulation_steps": 3, "gradient_clip_value": 0.02},
        {"accumulate": 3, "clip_value": 0.02},
    ),
    "limit": ({"gradient_accumulation_steps": 2, "max_num_train_steps": 7}, {"accumulate": 2, "max_updates": 7}),
}
make_scheduler = partial(LinearLR, start_factor=0.1, total_iters=9)


def replaced(**methods: Body) -> type[Trainer]:
    return type("Replaced", (Trainer,), methods)


# What the published system does in each method, in our words


def accelerator_backward(self: Any, loss: Tensor) -> None:
    self._accelerator.backward(loss)


def torch_backward(self: Any, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def torch_step(self: Any) -> None:
    self.optimizer.step()


def torch_zero(self: Any) -> None:
    self.optimizer.zero_grad()


def torch_schedule(self: Any) -> None:
    self.scheduler.step()


def accelerator_clip(self: Any) -> None:
    self._accelerator.clip_grad_value_(self.model.parameters(), clip_value=self.run_config.gradient_clip_value)


def torch_clip(self: Any) -> None:
    nn.utils.clip_grad_value_(self.model.parameters(), self.run_config.gradient_clip_value)


def own_loss(self: Any, batch: Any) -> dict[str, Any]:
    outputs = self.model(batch[0])
    loss = nn.functional.cross_entropy(outputs, batch[1])
    return {"loss": loss, "model_outputs": outputs, "batch_size": batch[1].size(0)}


def published_train_epoch(self: Any, train_dl: Any) -> bool:
    """Every part of the published method, with its own count of updates and its own end at the limit."""
    self.train_epoch_start()
    self._loss_tracker.reset()
    self.callback_handler.call_event("on_train_epoch_start", self)
    config, is_over = self.run_config, False
    done = (self.run_history.current_epoch - 1) * config.num_update_steps_per_epoch
    for step, batch in enumerate(train_dl):
        self.callback_handler.call_event("on_train_step_start", self)
        is_update = (step + 1) % config.gradient_accumulation_steps == 0 or step + 1 == len(train_dl)
        if is_update:
            self._perform_forward_and_backward_passes(batch, step)
        else:
            with self._accelerator.no_sync(self.model):
                self._perform_forward_and_backward_passes(batch, step)
        if config.gradient_clip_value is not None and is_update:
            self._clip_gradients()
        if is_update:
            self.optimizer_step()
            if self.scheduler is not None and not self._accelerator.optimizer_step_was_skipped:
                self.scheduler_step()
            self.optimizer_zero_grad()
            done += 1
            if config.max_num_train_steps is not None and done >= config.max_num_train_steps:
                is_over = True
                break
    self.train_epoch_end()
    self._add_epoch_loss_to_run_history("train_loss_epoch")
    self.callback_handler.call_event("on_train_epoch_end", self)
    return is_over


def torch_train_epoch(self: Any, train_dl: Any) -> None:
    """A loop as one writes it in plain torch, with the shares of a big batch."""
    self.model.train()
    width = self.run_config.gradient_accumulation_steps
    window: list[Any] = []
    for number, batch in enumerate(train_dl, start=1):
        window.append(batch)
        if len(window) < width and number < len(train_dl):
            continue
        total = sum(len(targets) for _, targets in window)
        for inputs, targets in window:
            loss = self.loss_func(self.model(inputs), targets)
            (loss if len(window) == 1 else loss / (total / len(targets))).backward()
        if self.run_config.gradient_clip_value is not None:
            nn.utils.clip_grad_value_(self.model.parameters(), self.run_config.gradient_clip_value)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        window = []


def published_run(self: Any) -> None:
    self.training_run_start()
    self.callback_handler.call_event("on_training_run_start", self)
    for _ in range(self.run_config.num_epochs):
        try:
            is_over = self._run_train_epoch(self._train_dataloader)
            if self.eval_dataset is not None:
                self._run_eval_epoch(self._eval_dataloader)
            self.training_run_epoch_end()
            self.callback_handler.call_event("on_training_run_epoch_end", self)
            self.run_history._increment_epoch()
        except StopTrainingError as error:
            self.print(error)
            self.callback_handler.call_event("on_stop_training_error", self)
            break
        if is_over:
            break
    self.training_run_end()
    self.callback_handler.call_event("on_training_run_end", self)


def published_eval_epoch(self: Any, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False) -> None:
    self.eval_epoch_start()
    self._loss_tracker.reset()
    self.callback_handler.call_event("on_eval_epoch_start", self, is_intermediate=is_intermediate)
    with self._accelerator.join_uneven_inputs([self.model], even_batches=False), torch.no_grad():
        for batch in valid_dl:
            self.callback_handler.call_event("on_eval_step_start", self)
            output = self.calculate_eval_batch_loss(batch)
            self._update_loss_tracker(output["loss"], output["batch_size"])
            self.callback_handler.call_event("on_eval_step_end", self, batch_output=output, batch=batch)
    self.eval_epoch_end()
    self._add_epoch_loss_to_run_history("eval_loss_epoch" if is_training else "evaluation_loss")
    self.callback_handler.call_event("on_eval_epoch_end", self, is_intermediate=is_intermediate)


def torch_eval_epoch(self: Any, valid_dl: Any, is_training: bool = True) -> None:
    self.model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in valid_dl:
            total += self.loss_func(self.model(inputs), targets).item() * len(targets)
            count += len(targets)
    self.run_history.update_metric("eval_loss_epoch" if is_training else "evaluation_loss", total / count)


STAGES: dict[str, dict[str, Body]] = {
    "accelerator": {"backward_step": accelerator_backward, "_clip_gradients": accelerator_clip},
    "backward": {"backward_step": torch_backward},
    "step": {"optimizer_step": torch_step},
    "zero": {"optimizer_zero_grad": torch_zero},
    "schedule": {"scheduler_step": torch_schedule},
    "clip": {"_clip_gradients": torch_clip},
    "loss": {"calculate_train_batch_loss": own_loss},
    "all": {
        "calculate_train_batch_loss": own_loss,
        "backward_step": torch_backward,
        "_clip_gradients": torch_clip,
        "optimizer_step": torch_step,
        "scheduler_step": torch_schedule,
        "optimizer_zero_grad": torch_zero,
    },
    "published epoch": {"_run_train_epoch": published_train_epoch},
    "published run": {"_run_training": published_run},
    "published epoch and run": {"_run_train_epoch": published_train_epoch, "_run_training": published_run},
    "plain epoch and published run": {"_run_train_epoch": torch_train_epoch, "_run_training": published_run},
    "plain epoch": {"_run_train_epoch": torch_train_epoch},
    "epoch of plain stages": {
        "_run_train_epoch": published_train_epoch,
        "backward_step": torch_backward,
        "optimizer_step": torch_step,
        "_clip_gradients": torch_clip,
    },
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", STAGES)
def test_a_replaced_stage_trains_as_the_hand_written_loop_bit_for_bit(
    points: TensorDataset, name: str, setting: str
) -> None:
    options, by_hand = SETTINGS[setting]
    trainer = build_trainer(kind=replaced(**STAGES[name]))
    train(trainer, points, 3, create_scheduler_fn=make_scheduler, **options)
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_by_hand(model, optimizer, points, epochs=3, every_update=make_scheduler(optimizer), **by_hand)
    assert_same_model(trainer.model, model)
    assert trainer.optimizer is not None
    assert_same_optimizer(trainer.optimizer, optimizer)


@pytest.mark.parametrize("name", ["published epoch", "published run", "published epoch and run"])
def test_a_replaced_loop_records_and_fires_what_the_default_does(points: TensorDataset, name: str) -> None:
    logs: list[list[str]] = [[], []]
    trainers = [
        train(build_trainer(kind=kind, callbacks=[recording_callback(log)]), points, 2, eval_dataset=head(points, 11))
        for kind, log in zip((Trainer, replaced(**STAGES[name])), logs, strict=True)
    ]
    assert logs[0] == logs[1]
    default, own = (trainer.run_history for trainer in trainers)
    assert own.current_epoch == default.current_epoch == 3
    for metric in ("train_loss_epoch", "eval_loss_epoch"):
        assert list(own.get_metric_values(metric)) == pytest.approx(list(default.get_metric_values(metric)))


@pytest.mark.parametrize("body", [published_eval_epoch, torch_eval_epoch])
def test_a_replaced_evaluation_epoch_measures_what_the_default_does(points: TensorDataset, body: Body) -> None:
    runs = []
    for kind in (Trainer, replaced(_run_eval_epoch=body)):
        trainer = train(build_trainer(kind=kind), points, 2, eval_dataset=head(points, 11))
        trainer.evaluate(points)
        runs.append(trainer)
    assert_same_model(runs[0].model, runs[1].model)
    for metric in ("eval_loss_epoch", "evaluation_loss"):
        values = [list(trainer.run_history.get_metric_values(metric)) for trainer in runs]
        assert values[1] == pytest.approx(values[0])


def test_an_epoch_that_does_nothing_counts_and_the_run_ends(points: TensorDataset) -> None:
    trainer = train(build_trainer(kind=replaced(_run_train_epoch=lambda self, dl: None)), points, 3)
    assert trainer.run_history.current_epoch == 4
    assert_same_model(trainer.model, build_net())


def test_an_epoch_over_a_loader_of_ones_own_counts(points: TensorDataset) -> None:
    def own(self: Any, train_dl: Any) -> None:
        for inputs, targets in DataLoader(self.train_dataset, batch_size=8):
            self.optimizer.zero_grad()
            self.loss_func(self.model(inputs), targets).backward()
            self.optimizer.step()

    trainer = train(build_trainer(kind=replaced(_run_train_epoch=own)), points, 3)
    assert trainer.run_history.current_epoch == 4


def test_a_run_ends_where_an_epoch_of_ones_own_says_so(points: TensorDataset) -> None:
    trainer = train(build_trainer(kind=replaced(_run_train_epoch=lambda self, dl: True)), points, 3)
    assert trainer.run_history.current_epoch == 2


def test_a_loop_that_is_left_early_counts_its_steps_and_goes_on_with_the_next_epoch(points: TensorDataset) -> None:
    def two_batches(self: Any, train_dl: Any) -> None:
        for step, batch in enumerate(train_dl):
            self._perform_forward_and_backward_passes(batch, step)
            self.optimizer_step()
            self.optimizer_zero_grad()
            if step == 1:
                break

    trainer = train(build_trainer(kind=replaced(_run_train_epoch=two_batches)), points, 3)
    limited = train(build_trainer(callbacks=[LimitBatchesCallback(2)]), points, 3)
    assert_same_model(trainer.model, limited.model)
    assert trainer._core.progress.step == 6


def test_further_passes_over_the_data_do_not_count_as_epochs(points: TensorDataset) -> None:
    def twice(self: Any, train_dl: Any) -> None:
        assert sum(len(targets) for _, targets in train_dl) == 37
        torch_train_epoch(self, train_dl)

    trainer = train(build_trainer(kind=replaced(_run_train_epoch=twice)), points, 3)
    assert trainer.run_history.current_epoch == 4
    assert trainer._core.progress.step == 30


def test_looking_at_the_loader_before_the_first_epoch_changes_nothing(points: TensorDataset) -> None:
    seen: list[int] = []

    def look(self: Any) -> None:
        seen.extend(len(targets) for _, targets in self._train_dataloader)

    trainer = train(build_trainer(kind=replaced(training_run_start=look)), points, 3)
    assert sum(seen) == 37
    assert_same_model(trainer.model, train(build_trainer(), points, 3).model)


def test_the_loss_reported_is_not_divided_by_the_accumulation(points: TensorDataset) -> None:
    seen: list[float] = []

    def watch(self: Any, loss: Tensor) -> None:
        seen.append(loss.item())
        loss.backward()  # type: ignore[no-untyped-call]

    options: dict[str, Any] = {"gradient_accumulation_steps": 4, "per_device_batch_size": 8}
    data = head(points, 32)
    trainer = train(build_trainer(kind=replaced(backward_step=watch), lr=0.0), data, 1, **options)
    reported = trainer.run_history.get_latest_metric("train_loss_epoch")
    assert sum(seen) == pytest.approx(reported)


def test_evaluation_inside_a_loop_of_ones_own_leaves_training_as_it_was(points: TensorDataset) -> None:
    own = replaced(_run_train_epoch=published_train_epoch)
    trainer = build_trainer(kind=own, callbacks=[StepBasedEvaluationCallback(2)])
    train(trainer, points, 2, eval_dataset=points)
    assert_same_model(trainer.model, train(build_trainer(), points, 2).model)


def test_eval_epoch_start_and_train_epoch_start_set_modes_and_keep_frozen_parts(points: TensorDataset) -> None:
    modes: list[tuple[bool, bool]] = []

    def watched(self: Any, batch: Any) -> dict[str, Any]:
        modes.append((self.model.training, self.model[1].training))
        return own_loss(self, batch)

    kind = replaced(
        _run_eval_epoch=published_eval_epoch, calculate_train_batch_loss=watched, calculate_eval_batch_loss=watched
    )
    trainer = build_trainer(kind=kind)
    trainer.model[1].eval()  # type: ignore[index]  # a frozen batch norm
    train(trainer, head(points, 8), 2, eval_dataset=head(points, 8))
    assert modes == [(True, False), (False, False)] * 2


def test_a_slice_around_the_loader_is_what_an_epoch_reads(points: TensorDataset) -> None:
    from loopwright.doors.lifecycle.utils import DataLoaderSlice

    def limit(self: Any) -> None:
        self._train_dataloader = DataLoaderSlice(self._train_dataloader, 2)

    trainer = train(build_trainer(kind=replaced(training_run_start=limit)), points, 2)
    assert_same_model(trainer.model, train(build_trainer(callbacks=[LimitBatchesCallback(2)]), points, 2).model)


def test_a_second_loss_of_the_same_batch_adds_to_the_gradients(points: TensorDataset) -> None:
    def two_losses(self: Any, train_dl: Any) -> None:
        for inputs, targets in train_dl:
            loss = self.loss_func(self.model(inputs), targets)
            self.backward_step(loss / 2)
            self.backward_step(self.loss_func(self.model(inputs), targets) / 2)
            self.optimizer_step()
            self.optimizer_zero_grad()

    data, model = head(points, 16), build_net(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kind = replaced(_run_train_epoch=two_losses)
    trainer = train(kind(model, nn.CrossEntropyLoss(), optimizer, callbacks=()), data, 1, per_device_batch_size=16)
    other = build_net(dropout=0.0)
    once = train(
        Trainer(other, nn.CrossEntropyLoss(), torch.optim.SGD(other.parameters(), lr=0.05), callbacks=()),
        data,
        1,
        per_device_batch_size=16,
    )
    for one, two in zip(trainer.model.parameters(), once.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def zero_backward_step(self: Any, loss: Tensor) -> None:
    self.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    self.optimizer.step()


def backward_step_zero(self: Any, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    self.optimizer.step()
    self.optimizer.zero_grad()


def backward_step_schedule(self: Any, loss: Tensor) -> None:
    zero_backward_step(self, loss)
    self.scheduler.step()


def step_and_schedule(self: Any) -> None:
    self.optimizer.step()
    self.scheduler.step()


@pytest.mark.parametrize(
    "methods",
    [
        {"backward_step": zero_backward_step},
        {"backward_step": backward_step_zero},
        {"backward_step": backward_step_schedule},
        {"backward_step": zero_backward_step, "optimizer_step": lambda self: None},
        {"optimizer_step": step_and_schedule},
    ],
)
def test_what_an_earlier_stage_has_stepped_is_not_stepped_again(
    points: TensorDataset, methods: dict[str, Body]
) -> None:
    trainer = train(build_trainer(kind=replaced(**methods)), points, 3, create_scheduler_fn=make_scheduler)
    default = train(build_trainer(), points, 3, create_scheduler_fn=make_scheduler)
    assert_same_training(trainer, default)


def assert_same_training(trainer: Trainer, other: Trainer) -> None:
    assert_same_model(trainer.model, other.model)
    assert trainer.optimizer is not None
    assert other.optimizer is not None
    assert_same_optimizer(trainer.optimizer, other.optimizer)


def test_scheduler_without_a_counter_that_optimizer_step_stepped_is_not_stepped_again(points: TensorDataset) -> None:
    def make_chained(optimizer: Any) -> ChainedScheduler:
        return ChainedScheduler([make_scheduler(optimizer)])

    kind = replaced(optimizer_step=step_and_schedule)
    trainer = train(build_trainer(kind=kind), points, 3, create_scheduler_fn=make_chained)
    assert_same_training(trainer, train(build_trainer(), points, 3, create_scheduler_fn=make_scheduler))


def test_stage_assigned_to_the_trainer_object_is_checked_as_that_of_a_subclass(points: TensorDataset) -> None:
    trainer = build_trainer()
    trainer.backward_step = partial(zero_backward_step, trainer)  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="would happen after every batch"):
        train(trainer, points, 1, gradient_accumulation_steps=2)

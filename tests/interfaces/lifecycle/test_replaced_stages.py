"""Stages that a user replaces whole, without `super()`: as the published system has them, and as
plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    LimitBatchesCallback,
    StopTrainingError,
    Trainer,
    TrainerRunConfig,
)

from ...loops import (
    assert_same_model,
    assert_same_optimizer,
    build_net,
    evaluate_by_hand,
    train_by_hand,
)
from .runs import build_trainer, each, head, recording_callback, train
from .stages import (
    STAGES,
    Body,
    make_scheduler,
    own_loss,
    published_eval_epoch,
    replaced,
    torch_eval_epoch,
    torch_step,
    torch_train_epoch,
    zero_backward_step,
)

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "accumulation": ({"gradient_accumulation_steps": 4}, {"accumulate": 4}),
    "clipping": (
        {"gradient_accumulation_steps": 3, "gradient_clip_value": 0.02},
        {"accumulate": 3, "clip_value": 0.02},
    ),
    "limit": (
        {"gradient_accumulation_steps": 2, "max_num_train_steps": 7},
        {"accumulate": 2, "max_updates": 7},
    ),
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
    train_by_hand(
        model, optimizer, points, epochs=3, every_update=make_scheduler(optimizer), **by_hand
    )
    assert_same_model(trainer.model, model)
    assert trainer.optimizer is not None
    assert_same_optimizer(trainer.optimizer, optimizer)


@pytest.mark.parametrize("name", ["published epoch", "published run", "published epoch and run"])
def test_a_replaced_loop_records_and_fires_what_the_default_does(
    points: TensorDataset, name: str
) -> None:
    logs: list[list[str]] = [[], []]
    trainers = [
        train(
            build_trainer(kind=kind, callbacks=[recording_callback(log)]),
            points,
            2,
            eval_dataset=head(points, 11),
        )
        for kind, log in zip((Trainer, replaced(**STAGES[name])), logs, strict=True)
    ]
    assert logs[0] == logs[1]
    default, own = (trainer.run_history for trainer in trainers)
    assert own.current_epoch == default.current_epoch == 3
    for metric in ("train_loss_epoch", "eval_loss_epoch"):
        assert list(own.get_metric_values(metric)) == pytest.approx(
            list(default.get_metric_values(metric))
        )


@pytest.mark.parametrize("body", [published_eval_epoch, torch_eval_epoch])
def test_a_replaced_evaluation_epoch_measures_what_the_default_does(
    points: TensorDataset, body: Body
) -> None:
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


def test_a_loop_that_is_left_early_counts_its_steps_and_goes_on_with_the_next_epoch(
    points: TensorDataset,
) -> None:
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


def test_looking_at_the_loader_before_the_first_epoch_changes_nothing(
    points: TensorDataset,
) -> None:
    seen: list[int] = []

    def look(self: Any) -> None:
        seen.extend(len(targets) for _, targets in self._train_dataloader)

    trainer = train(build_trainer(kind=replaced(training_run_start=look)), points, 3)
    assert sum(seen) == 37
    assert_same_model(trainer.model, train(build_trainer(), points, 3).model)


def test_eval_epoch_start_and_train_epoch_start_set_modes_and_keep_frozen_parts(
    points: TensorDataset,
) -> None:
    modes: list[tuple[bool, bool]] = []

    def watched(self: Any, batch: Any) -> dict[str, Any]:
        modes.append((self.model.training, self.model[1].training))
        return own_loss(self, batch)

    kind = replaced(
        _run_eval_epoch=published_eval_epoch,
        calculate_train_batch_loss=watched,
        calculate_eval_batch_loss=watched,
    )
    trainer = build_trainer(kind=kind)
    trainer.model[1].eval()  # type: ignore[index]  # a frozen batch norm
    train(trainer, head(points, 8), 2, eval_dataset=head(points, 8))
    assert modes == [(True, False), (False, False)] * 2


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
    trainer = train(
        kind(model, nn.CrossEntropyLoss(), optimizer, callbacks=()),
        data,
        1,
        per_device_batch_size=16,
    )
    other = build_net(dropout=0.0)
    once = train(
        Trainer(
            other, nn.CrossEntropyLoss(), torch.optim.SGD(other.parameters(), lr=0.05), callbacks=()
        ),
        data,
        1,
        per_device_batch_size=16,
    )
    for one, two in zip(trainer.model.parameters(), once.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


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


@pytest.mark.parametrize("clip_value", [None, 0.02])
@pytest.mark.parametrize(
    "methods",
    [
        {"backward_step": zero_backward_step},
        {"backward_step": backward_step_zero},
        {"backward_step": backward_step_schedule},
        {"backward_step": zero_backward_step, "optimizer_step": lambda self: None},
        {"backward_step": zero_backward_step, "optimizer_step": torch_step},
        {"optimizer_step": step_and_schedule},
    ],
)
def test_what_an_earlier_stage_has_stepped_is_not_stepped_again(
    points: TensorDataset, methods: dict[str, Body], clip_value: float | None
) -> None:
    options = {"create_scheduler_fn": make_scheduler, "gradient_clip_value": clip_value}
    trainer = train(build_trainer(kind=replaced(**methods)), points, 3, **options)
    assert_same_training(trainer, train(build_trainer(), points, 3, **options))


def assert_same_training(trainer: Trainer, other: Trainer) -> None:
    assert_same_model(trainer.model, other.model)
    assert trainer.optimizer is not None
    assert other.optimizer is not None
    assert_same_optimizer(trainer.optimizer, other.optimizer)


def test_clipping_by_the_total_norm_is_that_of_a_loop_by_hand(points: TensorDataset) -> None:
    class Clipping(Trainer):
        def optimizer_step(self) -> None:
            self._accelerator.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()

    trainer = train(build_trainer(kind=Clipping), points)
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_by_hand(model, optimizer, points, epochs=2, clip_norm=0.1)
    assert_same_model(trainer.model, model)


def test_a_run_goes_by_the_config_that_the_user_made(points: TensorDataset) -> None:
    class Own(Trainer):
        def _create_run_config(self, **kwargs: Any) -> TrainerRunConfig:
            config = super()._create_run_config(**kwargs)
            return replace(
                config, num_epochs=3, gradient_accumulation_steps=2, gradient_clip_value=0.01
            )

    trainer = train(build_trainer(kind=Own), points, 1)
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train_by_hand(model, optimizer, points, epochs=3, accumulate=2, clip_value=0.01)
    assert_same_model(trainer.model, model)


@pytest.mark.parametrize(
    "names",
    [
        ("_prepare_model_and_optimizer",),
        ("_prepare_dataloaders",),
        ("_prepare_model_and_optimizer", "_prepare_dataloaders"),
        ("_prepare_model_optimizer_and_dataloaders",),
    ],
)
def test_preparing_nothing_oneself_trains_and_evaluates_as_ever(
    points: TensorDataset, names: tuple[str, ...]
) -> None:
    kind = replaced(**{name: lambda self: None for name in names})
    trainer = train(build_trainer(kind=kind), points, 2, eval_dataset=points)
    trainer.evaluate(points)
    plain = train(build_trainer(), points, 2)
    assert_same_model(trainer.model, plain.model)
    expected = evaluate_by_hand(plain.model, points)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(
        expected, rel=1e-6
    )


def test_an_evaluation_that_is_stopped_ends_without_an_error(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    def stop(self: Any, batch: Any) -> Any:
        raise StopTrainingError("enough seen")

    kind = replaced(calculate_eval_batch_loss=stop)
    build_trainer(kind=kind, callbacks=[recording_callback(log)]).evaluate(points)
    assert "enough seen" in capsys.readouterr().out
    assert log[-2:] == ["on_stop_training_error", "on_evaluation_run_end"]


def test_a_model_put_in_at_the_start_is_trained_and_evaluated_in_eval_mode(
    points: TensorDataset,
) -> None:
    fresh = build_net(7)

    def put_in(self: Any) -> None:
        self.model = fresh
        self.optimizer = torch.optim.SGD(fresh.parameters(), lr=0.05, momentum=0.9)

    trainer = train(
        build_trainer(kind=replaced(training_run_start=put_in)), points, 2, eval_dataset=points
    )
    plain = train(build_trainer(seed=7), points, 2, eval_dataset=points)
    assert_same_model(trainer.model, plain.model)
    own, reference = trainer.run_history, plain.run_history
    assert own.get_metric_values("eval_loss_epoch") == reference.get_metric_values(
        "eval_loss_epoch"
    )


def test_a_resumed_run_of_ones_own_says_where_it_is(
    points: TensorDataset, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Rest(Trainer):
        def _run_training(self) -> None:
            for _ in range(self.run_history.current_epoch - 1, self.run_config.num_epochs):
                self._run_train_epoch(self._train_dataloader)
                self.run_history._increment_epoch()

    def save(trainer: Trainer) -> None:
        if trainer.run_history.current_epoch == 2:
            trainer.save_training_state(tmp_path / "state")

    whole = train(build_trainer(callbacks=[each("on_training_run_epoch_end", save)]), points, 4)
    rest = train(build_trainer(kind=Rest), points, 4, resume_from=tmp_path / "state")
    assert_same_model(rest.model, whole.model)
    assert (
        "range(self.run_history.current_epoch - 1, self.run_config.num_epochs)"
        in capsys.readouterr().out
    )

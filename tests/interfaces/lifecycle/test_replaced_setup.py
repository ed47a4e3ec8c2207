"""Setting up a run with methods of the user's own: run configs, loaders, preparation, and models
put in later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    StopTrainingError,
    Trainer,
    TrainerCallback,
    TrainerRunConfig,
)

from ...loops import assert_same_model, build_net, evaluate_by_hand, train_by_hand
from .runs import Each, build_trainer, recording_callback, train
from .stages import replaced


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


def test_a_config_made_from_nothing_as_published_is_enough(points: TensorDataset) -> None:
    def own(
        self: Any,
        *,
        per_device_batch_size: int,
        num_epochs: int,
        gradient_accumulation_steps: int,
        max_num_train_steps: int | None,
        gradient_clip_value: float | None,
    ) -> TrainerRunConfig:
        local = -(-len(self._train_dataloader) // gradient_accumulation_steps)
        return TrainerRunConfig(
            num_epochs=num_epochs,
            train_per_device_batch_size=self._train_dl_kwargs.get(
                "batch_size", per_device_batch_size
            ),
            train_dl_kwargs=self._train_dl_kwargs,
            eval_per_device_batch_size=per_device_batch_size,
            eval_dl_kwargs=self._eval_dl_kwargs,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_clip_value=gradient_clip_value,
            train_total_batch_size=per_device_batch_size * self._accelerator.num_processes,
            eval_total_batch_size=per_device_batch_size * self._accelerator.num_processes,
            num_update_steps_per_epoch=local * self._accelerator.num_processes,
            num_local_update_steps_per_epoch=local,
            max_num_train_steps=num_epochs * local + 1,
            is_local_process_zero=self._accelerator.is_local_main_process,
            is_world_process_zero=self._accelerator.is_main_process,
            is_distributed=False,
            mixed_precision=self._accelerator.mixed_precision,
            num_processes=self._accelerator.num_processes,
        )

    trainer = train(
        build_trainer(kind=replaced(_create_run_config=own)),
        points,
        2,
        gradient_accumulation_steps=2,
    )
    assert_same_model(
        trainer.model, train(build_trainer(), points, 2, gradient_accumulation_steps=2).model
    )


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


def test_preparing_as_published_trains_as_ever(points: TensorDataset) -> None:
    def own(self: Any) -> None:
        self._accelerator.free_memory()
        self._accelerator = self._create_accelerator()
        self.model, self.optimizer = self._accelerator.prepare(self.model, self.optimizer)

    trainer = train(build_trainer(kind=replaced(_prepare_model_and_optimizer=own)), points, 2)
    assert_same_model(trainer.model, train(build_trainer(), points, 2).model)


def test_an_evaluation_run_is_set_up_as_a_training_run_is(points: TensorDataset) -> None:
    log: list[str] = []

    class Own(Trainer):
        def _prepare_model_and_optimizer(self) -> None:
            log.append("model")
            super()._prepare_model_and_optimizer()

        def _prepare_dataloaders(self) -> None:
            log.append("loaders")
            super()._prepare_dataloaders()

        def _create_run_config(self, **kwargs: Any) -> TrainerRunConfig:
            log.append("config")
            return super()._create_run_config(**kwargs)

    class Watching(TrainerCallback):
        def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
            config = trainer.run_config
            log.append(
                f"{config.num_epochs} epoch of {config.eval_per_device_batch_size} samples a batch"
            )

    build_trainer(kind=Own, callbacks=[Watching]).evaluate(points, per_device_batch_size=4)
    assert log == ["model", "loaders", "config", "1 epoch of 4 samples a batch"]


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

    whole = train(build_trainer(callbacks=[Each("on_training_run_epoch_end", save)]), points, 4)
    rest = train(build_trainer(kind=Rest), points, 4, resume_from=tmp_path / "state")
    assert_same_model(rest.model, whole.model)
    assert (
        "range(self.run_history.current_epoch - 1, self.run_config.num_epochs)"
        in capsys.readouterr().out
    )

"""The order of methods and events is the document's pseudocode, to the letter."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    StopTrainingError,
    Trainer,
    TrainerCallback,
)

from .runs import build_trainer, each, head, recording_callback, recording_trainer, train

TRAIN_STEP = [
    "on_train_step_start",
    "calculate_train_batch_loss",
    "on_train_step_end",
    "backward_step",
    "optimizer_step",
    "scheduler_step",
    "optimizer_zero_grad",
]
TRAIN_STEP_WITHOUT_UPDATE = TRAIN_STEP[:4]
EVAL_STEP = ["on_eval_step_start", "calculate_eval_batch_loss", "on_eval_step_end"]
RUN_START = ["training_run_start", "on_training_run_start"]
RUN_END = ["training_run_end", "on_training_run_end"]
EPOCH_END = ["training_run_epoch_end", "on_training_run_epoch_end"]


def train_epoch(*steps: list[str]) -> list[str]:
    inner = [name for step in steps for name in step]
    return [
        "train_epoch_start",
        "on_train_epoch_start",
        *inner,
        "train_epoch_end",
        "on_train_epoch_end",
    ]


def eval_epoch(num_batches: int) -> list[str]:
    inner = EVAL_STEP * num_batches
    return [
        "eval_epoch_start",
        "on_eval_epoch_start",
        *inner,
        "eval_epoch_end",
        "on_eval_epoch_end",
    ]


def recorder() -> tuple[Trainer, list[str]]:
    log: list[str] = []
    trainer = build_trainer(callbacks=[recording_callback(log)], kind=recording_trainer(log))
    assert log == ["on_init_end"]
    log.clear()
    return trainer, log


def test_a_training_run_with_evaluation(points: TensorDataset) -> None:
    trainer, log = recorder()
    train(trainer, head(points, 16), 2, eval_dataset=head(points, 24))
    epoch = [*train_epoch(TRAIN_STEP, TRAIN_STEP), *eval_epoch(3), *EPOCH_END]
    setup = ["create_train_dataloader", "create_eval_dataloader", "create_scheduler"]
    assert log == [*setup, *RUN_START, *epoch, *epoch, *RUN_END]


def test_an_evaluation_run(points: TensorDataset) -> None:
    trainer, log = recorder()
    trainer.evaluate(head(points, 16))
    assert log == [
        "create_eval_dataloader",
        "evaluation_run_start",
        "on_evaluation_run_start",
        *eval_epoch(2),
        "evaluation_run_end",
        "on_evaluation_run_end",
    ]


def test_updates_happen_at_the_end_of_an_accumulation_window_and_of_the_epoch(
    points: TensorDataset,
) -> None:
    trainer, log = recorder()
    train(trainer, head(points, 24), 1, gradient_accumulation_steps=2)
    epoch = train_epoch(TRAIN_STEP_WITHOUT_UPDATE, TRAIN_STEP, TRAIN_STEP)
    assert log == [
        "create_train_dataloader",
        "create_scheduler",
        *RUN_START,
        *epoch,
        *EPOCH_END,
        *RUN_END,
    ]


def test_inner_methods_are_called_where_the_document_has_them(points: TensorDataset) -> None:
    log: list[str] = []

    class Inner(Trainer):
        def _prepare_model_and_optimizer(self) -> None:
            log.append("prepare_model_and_optimizer")
            super()._prepare_model_and_optimizer()

        def _prepare_dataloaders(self) -> None:
            log.append("prepare_dataloaders")
            super()._prepare_dataloaders()

        def _create_run_config(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            log.append("create_run_config")
            return super()._create_run_config(*args, **kwargs)

        def _run_training(self) -> None:
            log.append("run_training")
            super()._run_training()

        def _run_train_epoch(self, train_dl):  # type: ignore[no-untyped-def]
            assert train_dl is self._train_dataloader
            log.append("run_train_epoch")
            super()._run_train_epoch(train_dl)

        def _clip_gradients(self) -> None:
            log.append("clip_gradients")
            super()._clip_gradients()

        def _run_eval_epoch(self, eval_dl, is_training=True):  # type: ignore[no-untyped-def]
            log.append(f"run_eval_epoch {is_training}")
            super()._run_eval_epoch(eval_dl, is_training)

    handler = signal.getsignal(signal.SIGINT)
    trainer = train(
        build_trainer(kind=Inner), head(points, 16), 1, eval_dataset=points, gradient_clip_value=1.0
    )
    assert signal.getsignal(signal.SIGINT) is handler
    trainer.evaluate(points)
    setup = ["prepare_model_and_optimizer", "prepare_dataloaders", "create_run_config"]
    run = [
        "run_training",
        "run_train_epoch",
        "clip_gradients",
        "clip_gradients",
        "run_eval_epoch True",
    ]
    assert log == [*setup, *run, *setup, "run_eval_epoch False"]


def test_a_training_loop_of_ones_own_can_be_built_from_the_inner_methods(
    points: TensorDataset,
) -> None:
    class TwicePerEvaluation(Trainer):
        def _run_training(self) -> None:
            for _ in range(self.run_config.num_epochs):
                self._run_train_epoch(self._train_dataloader)
                self._run_train_epoch(self._train_dataloader)
                self._run_eval_epoch(self._eval_dataloader)
                self.run_history._increment_epoch()

    own = train(build_trainer(kind=TwicePerEvaluation), points, 2, eval_dataset=points)
    plain = train(build_trainer(), points, 4, eval_dataset=points)
    history, reference = own.run_history, plain.run_history
    assert history.get_metric_values("train_loss_epoch") == reference.get_metric_values(
        "train_loss_epoch"
    )
    assert len(list(history.get_metric_values("eval_loss_epoch"))) == 2


def test_an_event_of_ones_own_reaches_those_who_have_it(points: TensorDataset) -> None:
    sizes: list[int] = []

    class Verifying(TrainerCallback):
        def verify_train_batch(self, trainer: Trainer, xb: Any) -> None:
            sizes.append(len(xb))

    class WithOwnEvent(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            self.callback_handler.call_event("verify_train_batch", self, batch[0])
            return super().calculate_train_batch_loss(batch)

    train(build_trainer(kind=WithOwnEvent, callbacks=[TrainerCallback(), Verifying]), points, 1)
    assert sizes == [8, 8, 8, 8, 5]


def test_an_error_in_a_callback_names_it(points: TensorDataset) -> None:
    def fail(trainer: Trainer) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        train(build_trainer(callbacks=[each("on_train_epoch_end", fail)]), points, 1)
    assert caught.value.__notes__ == ["raised in Each.on_train_epoch_end"]


def test_a_stop_ends_the_run_and_the_event_of_its_end_is_still_called(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    def stop(trainer: Trainer) -> None:
        if trainer.run_history.current_epoch == 2:
            raise StopTrainingError("that is enough")

    trainer = build_trainer(
        callbacks=[each("on_training_run_epoch_end", stop), recording_callback(log)]
    )
    train(trainer, points, 5)
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 2
    assert log[-2:] == ["on_stop_training_error", "on_training_run_end"]
    assert capsys.readouterr().out == "that is enough\n"

"""How callbacks are registered and called."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    DEFAULT_CALLBACKS,
    CallbackHandler,
    LimitBatchesCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from tests.mistakes import raises

from .runs import Each, build_trainer, recording_callback, train


def test_classes_and_instances_are_accepted() -> None:
    trainer = build_trainer(callbacks=[*DEFAULT_CALLBACKS, LimitBatchesCallback(2)])
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert kinds == [*DEFAULT_CALLBACKS, LimitBatchesCallback]


def test_arguments_that_do_not_fit_are_refused() -> None:
    class Wrong(TrainerCallback):
        def on_train_step_end(self, trainer: Trainer) -> None: ...  # type: ignore[override]

    with raises("event-arguments", "Wrong.on_train_step_end"):
        build_trainer(callbacks=[Wrong])


def test_arguments_are_given_by_name_and_to_other_names_by_position(points: TensorDataset) -> None:
    sizes: list[Any] = []

    class ByName(TrainerCallback):
        def on_train_step_end(self, trainer, batch_output, **kwargs):  # type: ignore[no-untyped-def, override]
            sizes.append(batch_output["batch_size"])

    class ByPosition(TrainerCallback):
        def on_train_step_end(self, trainer, data, result):  # type: ignore[no-untyped-def, override]
            sizes.append(len(data[0]))

    train(build_trainer(callbacks=[ByName, ByPosition]), points, 1)
    assert sizes == [8, 8, 8, 8, 8, 8, 8, 8, 5, 5]


def test_an_event_of_ones_own_reaches_those_who_have_it(points: TensorDataset) -> None:
    sizes: list[int] = []

    class Verifying(TrainerCallback):
        def verify_train_batch(self, trainer: Trainer, xb: Any) -> None:
            sizes.append(len(xb))

    class WithOwnEvent(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            self.callback_handler.call_event("verify_train_batch", trainer=self, xb=batch[0])
            return super().calculate_train_batch_loss(batch)

    train(build_trainer(kind=WithOwnEvent, callbacks=[TrainerCallback(), Verifying]), points, 1)
    assert sizes == [8, 8, 8, 8, 5]


def test_calling_a_misspelt_event_is_an_error() -> None:
    with raises("unknown-event", "on_train_epoch_end?"):
        CallbackHandler([]).call_event("on_train_epoch_endd")


def test_an_error_in_a_callback_names_it(points: TensorDataset) -> None:
    def fail(trainer: Trainer) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        train(build_trainer(callbacks=[Each("on_train_epoch_end", fail)]), points, 1)
    assert caught.value.__notes__ == ["raised in Each.on_train_epoch_end"]


def test_a_stop_ends_the_run_and_the_event_of_its_end_is_still_called(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    def stop(trainer: Trainer) -> None:
        if trainer.run_history.current_epoch == 2:
            raise StopTrainingError("that is enough")

    trainer = build_trainer(
        callbacks=[Each("on_training_run_epoch_end", stop), recording_callback(log)]
    )
    train(trainer, points, 5)
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 2
    assert log[-2:] == ["on_stop_training_error", "on_training_run_end"]
    assert capsys.readouterr().out == "that is enough\n"


def test_callbacks_without_hooks_are_never_called() -> None:
    handler = CallbackHandler([TrainerCallback(), TrainerCallback()])
    handler.call_event("on_train_step_start", None)
    assert handler._hooks == {"on_train_step_start": []}


def test_every_callback_has_a_name_of_its_own_to_save_its_state_by() -> None:
    handler = CallbackHandler([LimitBatchesCallback(1), LimitBatchesCallback(2)])
    assert list(handler.named()) == ["LimitBatchesCallback", "LimitBatchesCallback-2"]

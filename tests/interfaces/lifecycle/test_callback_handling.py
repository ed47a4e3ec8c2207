"""How callbacks are registered and called."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    StopTrainingError,
    Trainer,
    TrainerCallback,
)

from .runs import Each, build_trainer, recording_callback, train


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

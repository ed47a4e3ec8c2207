"""The interface's callbacks: order, arguments, states, and what is refused at registration."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from loopwright.interfaces.modular import Callback, DreamTrainer

from .programs import Config, MyTrainer, Noting, OwnLoop

BATCH = ["train_batch_start", "train_batch_end"]
STEP = [
    "train_batch_start",
    "optimizer_step_start",
    "optimizer_step_end",
    "train_batch_end",
    "update_end",
]
VALIDATION = [
    "validation_start",
    *["validation_batch_start", "validation_batch_end"] * 3,
    "validation_end",
]


@pytest.mark.parametrize("kind", [MyTrainer, OwnLoop])
def test_events_come_in_order(kind: type[MyTrainer]) -> None:
    noting = Noting()
    trainer = kind(Config(gradient_accumulation_steps=2, callbacks=[noting]))
    trainer.fit()
    window = ["update_start", *BATCH, *STEP]
    epoch = [
        "epoch_start",
        "train_epoch_start",
        *window * 2,
        "update_start",
        *STEP,
        "train_epoch_end",
    ]
    assert noting.events == [
        "fit_start",
        "train_start",
        *epoch,
        *VALIDATION,
        "epoch_end",
        "train_end",
        "fit_end",
    ]


def test_batch_events_get_outputs_batch_and_its_number() -> None:
    seen: list[tuple[int, int, float]] = []

    class Looking(Callback):
        def on_train_batch_end(
            self, trainer: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            seen.append((batch_idx, len(batch[0]), float(outputs["loss"])))

        def on_validation_batch_end(
            self, trainer: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            seen.append((batch_idx, len(batch[0]), float(outputs["val_loss"])))

    trainer = MyTrainer(Config(callbacks=[Looking]))
    trainer.fit()
    assert [entry[:2] for entry in seen] == [
        (0, 8),
        (1, 8),
        (2, 8),
        (3, 8),
        (4, 5),
        (0, 8),
        (1, 8),
        (2, 5),
    ]
    assert [entry[2] for entry in seen[:5]] == list(trainer.history.steps["loss"])


def test_the_trainers_own_hook_comes_before_the_callbacks() -> None:
    order: list[str] = []

    class Own(MyTrainer):
        def on_epoch_end(self, metrics: Any) -> None:
            order.append("trainer")

    def after(trainer: Any, metrics: Any) -> None:
        assert isinstance(trainer, Own)
        order.append(f"function {sorted(metrics)[0]}")

    Own(Config(callbacks=[after])).fit()
    assert order == ["trainer", "function accuracy"]


def test_metrics_logged_in_a_step_and_by_a_callback_are_in_the_history() -> None:
    class Logging(MyTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log_metrics({"inside": torch.tensor(float(batch_idx))})
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log_metrics({"after": 2.0 * batch_idx})

        def on_train_epoch_end(self) -> None:
            self.log_metrics({"epoch": self.current_epoch})

    history = Logging(Config(n_epochs=2)).fit()
    assert list(history.steps["inside"])[:5] == [0, 1, 2, 3, 4]
    assert list(history.steps["after"])[:5] == [0, 2, 4, 6, 8]
    assert history["inside"] == [pytest.approx((8 * (0 + 1 + 2 + 3) + 5 * 4) / 37)] * 2
    assert history["epoch"] == [0, 1]


def test_compute_metrics_is_called_for_steps_that_return_outputs_and_targets() -> None:
    class Computing(MyTrainer):
        def compute_metrics(self, outputs: Any, targets: Any) -> Any:
            return {"accuracy": self.compute_accuracy(outputs, targets)}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return {"outputs": self.model(batch[0]), "targets": batch[1]}

    computed, usual = Computing(Config()).fit(), MyTrainer(Config()).fit()
    assert computed["val_accuracy"] == usual["val_accuracy"]


def test_validation_leaves_modes_as_they_were() -> None:
    class Frozen(MyTrainer):
        modes: list[Any] = []

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.model[1].eval()
            self.modes.append(("train", self.model.training, self.model[1].training))

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.modes.append(("val", self.model.training, torch.is_grad_enabled()))
            return super().validation_step(batch, batch_idx)

    trainer = Frozen(Config(n_epochs=2, val_every_n_steps=2))
    trainer.fit()
    assert set(trainer.modes) == {("train", True, False), ("val", False, False)}


def test_the_events_of_a_callback_are_those_of_the_trainer_without_the_trainer() -> None:
    for name in (name for name in vars(Callback) if name.startswith("on_")):
        ours = list(inspect.signature(getattr(DreamTrainer, name)).parameters)
        theirs = list(inspect.signature(getattr(Callback, name)).parameters)
        assert ours == [parameter for parameter in theirs if parameter != "trainer"], name

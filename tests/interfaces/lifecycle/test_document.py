"""The document's own program, with only the import line changed (and torchmetrics' newer
arguments)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset
from torchmetrics import Accuracy, MetricCollection, Precision, Recall

from loopwright.interfaces.lifecycle import Trainer, TrainerCallback

from ...loops import build_net
from .runs import train


class TrainerWithMetrics(Trainer):
    def __init__(self, num_classes: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        # this will be moved to the correct device automatically by the
        # MoveModulesToDeviceCallback callback, which is used by default
        self.metrics = MetricCollection(
            {
                "accuracy": Accuracy(task="multiclass", num_classes=num_classes),
                "precision": Precision(task="multiclass", num_classes=num_classes),
                "recall": Recall(task="multiclass", num_classes=num_classes),
            }
        )

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        batch_output = super().calculate_eval_batch_loss(batch)
        preds = batch_output["model_outputs"].argmax(dim=-1)

        self.metrics.update(preds, batch[1])

        return batch_output

    def eval_epoch_end(self) -> None:
        metrics = self.metrics.compute()
        self.run_history.update_metric("accuracy", metrics["accuracy"].cpu())
        self.run_history.update_metric("precision", metrics["precision"].cpu())
        self.run_history.update_metric("recall", metrics["recall"].cpu())

        self.metrics.reset()


def test_the_documents_trainer_records_its_metrics(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = TrainerWithMetrics(3, model, nn.CrossEntropyLoss(), optimizer)
    train(trainer, points, 2, eval_dataset=points)
    accuracies = list(trainer.run_history.get_metric_values("accuracy"))
    predicted = trainer.model.eval()(points.tensors[0]).argmax(1)
    assert len(accuracies) == 2
    assert accuracies[-1].item() == pytest.approx(
        (predicted == points.tensors[1]).double().mean().item()
    )
    assert "accuracy: " in capsys.readouterr().out


def test_the_documents_scheduler_factory_works(points: TensorDataset) -> None:
    create_scheduler_fn = partial(lr_scheduler.StepLR, step_size=7, gamma=0.1)
    model = build_net()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1.0), callbacks=()
    )
    train(trainer, points, 2, create_scheduler_fn=create_scheduler_fn)
    assert trainer.scheduler.get_last_lr() == [pytest.approx(0.1)]


def test_metrics_can_be_a_callbacks_work_instead(points: TensorDataset) -> None:
    class Counting(TrainerCallback):
        def __init__(self) -> None:
            self.right = self.all = 0

        def on_eval_step_end(
            self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
        ) -> None:
            self.right += int((batch_output["model_outputs"].argmax(-1) == batch[1]).sum())
            self.all += batch_output["batch_size"]

        def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.run_history.update_metric("accuracy", self.right / self.all)

    model = build_net()
    trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[Counting])
    trainer.evaluate(points)
    predicted = model.eval()(points.tensors[0]).argmax(1)
    expected = (predicted == points.tensors[1]).double().mean().item()
    assert trainer.run_history.get_latest_metric("accuracy") == pytest.approx(expected)

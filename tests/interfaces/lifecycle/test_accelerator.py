"""What stages written for the published system use of `_accelerator` is what the trainer itself
has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import Trainer

from ...loops import assert_same_model, build_net, train_by_hand
from .runs import build_trainer, train


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


def test_a_loss_may_be_computed_gathered_and_printed_by_it(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    gathered = []

    class Own(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            with self._accelerator.autocast():
                output = super().calculate_train_batch_loss(batch)
            self._accelerator.wait_for_everyone()
            gathered.append(
                (output["loss"].dtype, float(self._accelerator.gather(output["loss"].detach())))
            )
            return output

        def training_run_end(self) -> None:
            self._accelerator.print("the end")

    trainer = train(
        build_trainer(kind=Own, mixed_precision="bf16"), points, 1, per_device_batch_size=37
    )
    assert gathered == [(torch.float32, trainer.run_history.get_latest_metric("train_loss_epoch"))]
    assert capsys.readouterr().out == "the end\n"

"""Data that goes on from one epoch to the next: what was read of it is part of the run, no more and
no less."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from loopwright import Callback, Trainer
from loopwright.callbacks import EarlyStopping, TorchMetrics
from loopwright.checkpoint import diff_checkpoints

from ..loops import assert_same_model, build_net
from ..runs import adam, cross_entropy
from .programs.parts import Streamed


class Sized(Streamed):
    """A stream that also knows how much it gives in an epoch."""

    def __len__(self) -> int:
        return self.count


def build(*callbacks: Callback) -> Trainer:
    return Trainer(build_net(), adam, cross_entropy, callbacks=callbacks, progress="silent")


def test_looking_for_the_metrics_of_a_stream_takes_nothing_from_its_first_evaluation() -> None:
    held_out = Streamed(8)
    build(EarlyStopping("eval_loss", patience=9)).train(
        Streamed(), 2, eval_data=held_out, batch_size=3
    )
    assert (held_out.position, held_out.num_given) == (16, 0)


def test_a_call_that_ends_with_the_last_batch_of_a_stream_is_followed_by_its_next_epoch() -> None:
    whole, parts = build(), build()
    whole.train(Sized(), 2, batch_size=3)
    stream = Sized()
    parts.train(stream, num_updates=8, batch_size=3)
    parts.train(stream, 1, batch_size=3)
    assert_same_model(parts.model, whole.model)


def test_a_loaded_trainer_goes_on_in_the_stream_between_two_epochs(tmp_path: Path) -> None:
    whole, first, second = build(), build(), build()
    whole.train(Streamed(), 3, eval_data=Streamed(8), batch_size=3)
    first.train(Streamed(), 2, eval_data=Streamed(8), batch_size=3)
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")
    second.train(Streamed(), 1, eval_data=Streamed(8), batch_size=3)
    assert_same_model(second.model, whole.model)
    assert second.history.epochs == whole.history.epochs


def test_what_is_loaded_and_saved_again_is_the_same_state(
    points: TensorDataset, tmp_path: Path
) -> None:
    def build_measuring() -> Trainer:
        return build(TorchMetrics({"accuracy": MulticlassAccuracy(num_classes=3)}, on="train"))

    first, second = build_measuring(), build_measuring()
    first.train(points, num_updates=3, batch_size=8)
    first.save(tmp_path / "first")
    torch.manual_seed(5)
    second.load(tmp_path / "first")
    second.save(tmp_path / "second")
    diff = diff_checkpoints(tmp_path / "first", tmp_path / "second")
    assert not [difference for difference in diff if "TorchMetrics" in difference.path]

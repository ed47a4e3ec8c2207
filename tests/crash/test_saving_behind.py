"""Saving behind the training saves the state of that update; kept models are the best few, whatever
the metric."""

from __future__ import annotations

from pathlib import Path

from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import EMA, Checkpoints
from loopwright.checkpoint import diff_checkpoints, update_name

from ..loops import build_net
from ..runs import adam, cross_entropy


def test_what_is_written_behind_the_training_is_what_waiting_for_it_would_have_written(
    points: TensorDataset, tmp_path: Path
) -> None:
    for name, asynchronous in (("behind", True), ("waited", False)):
        callbacks = [EMA(0.9), Checkpoints(every_updates=1, keep=20, asynchronous=asynchronous)]
        trainer = Trainer(
            build_net(),
            adam,
            cross_entropy,
            run_dir=tmp_path / name,
            callbacks=callbacks,
            progress="silent",
        )
        trainer.train(points, 2, batch_size=8)
    for update in range(1, 11):
        behind, waited = (
            tmp_path / name / "checkpoints" / update_name(update) for name in ("behind", "waited")
        )
        assert diff_checkpoints(behind, waited) == ()

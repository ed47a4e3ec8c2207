"""Saving behind the training saves the state of that update; kept models are the best few, whatever
the metric."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA, BestModel, Checkpoints
from loopwright.checkpoint import diff_checkpoints, list_checkpoints, update_name

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


class Scores(Callback):
    """A metric that takes these values, one an epoch."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def metric_names(self, known: set[str]) -> set[str]:
        return {"score"}

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log({"score": self.values[trainer.progress.epoch]})


@pytest.mark.parametrize(
    ("mode", "scores", "kept"),
    [
        ("max", (nan, -3.0, -1.0, nan, -2.0), [3, 5]),
        ("min", (nan, -3.0, inf, -inf, 5.0), [2, 4]),
        ("max", (-inf, nan, nan, nan, inf), [1, 5]),
        ("min", (nan, nan, nan, nan, nan), [1, 2]),
        ("min", (1.0, 1.0, 1.0, 0.5, 0.5), [4, 5]),
    ],
)
def test_the_best_few_are_kept_with_their_metric(
    mode: str, scores: tuple[float, ...], kept: list[int], points: TensorDataset, tmp_path: Path
) -> None:
    callbacks = [Scores(*scores), BestModel("score", mode, keep=2)]  # type: ignore[arg-type]
    trainer = Trainer(
        build_net(), adam, cross_entropy, run_dir=tmp_path, callbacks=callbacks, progress="silent"
    )
    trainer.train(points, 5, batch_size=40)
    found = [info for info in list_checkpoints(tmp_path, verify=True) if info.kind == "kept"]
    assert sorted(info.meta["epoch"] for info in found) == kept
    for info in found:
        assert info.is_sound
        assert str(info.meta["metric"]["value"]) == str(scores[info.meta["epoch"] - 1])

"""A run that is continued with other options of its curve, or was recorded before options of curves
were described."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError, Trainer
from loopwright.checkpoint import read_checkpoint, write_checkpoint
from loopwright.schedules import Cosine, Curve, Linear, MultiStep, Sequential, WarmupCosine

from ..loops import build_net
from ..mistakes import raises

CURVES: dict[str, tuple[Curve, Curve, str]] = {
    "end": (Cosine(end=0.1), Cosine(end=0.2), r"scheduler\.end: 0\.1 -> 0\.2"),
    "warm-up": (
        WarmupCosine(0.1),
        WarmupCosine(warmup_updates=2),
        r"scheduler\.warmup: 0\.1 -> None",
    ),
    "points": (
        MultiStep(at=[0.5]),
        MultiStep(at=[0.5, 0.75]),
        r"scheduler\.at: \[0\.5\] -> \[0\.5, 0\.75\]",
    ),
    "a curve inside": (
        Sequential([Linear(), Cosine(end=0.1)], [0.5]),
        Sequential([Linear(), Cosine(end=0.2)], [0.5]),
        r"scheduler\.schedules\.1\.end: 0\.1 -> 0\.2",
    ),
    "another curve": (Cosine(), Linear(), r"scheduler: 'Cosine' -> 'Linear'\nYou can"),
}


def train(
    folder: Path, points: TensorDataset, scheduler: Any, num_epochs: int, **given: Any
) -> Trainer:
    parts: dict[str, Any] = {"progress": "silent", "run_dir": folder, "scheduler": scheduler}
    net = build_net()
    trainer = Trainer(net, torch.optim.Adam(net.parameters(), 0.01), F.cross_entropy, **parts)
    trainer.train(points, num_epochs, batch_size=8, **given)
    return trainer


@pytest.mark.parametrize("name", CURVES)
def test_other_options_of_a_curve_are_refused_by_name(
    points: TensorDataset, tmp_path: Path, name: str
) -> None:
    before, now, said = CURVES[name]
    train(tmp_path, points, before, 1)
    with pytest.raises(ConfigurationError, match=said):
        train(tmp_path, points, now, 2)
    train(tmp_path, points, before, 2)  # the same options continue


def test_accepted_options_of_a_curve_set_the_learning_rate(
    points: TensorDataset, tmp_path: Path
) -> None:
    train(tmp_path, points, Cosine(end=0.1), 1)
    with raises("program-changed"):
        train(tmp_path, points, Cosine(end=0.2), 2)
    trainer = train(tmp_path, points, Cosine(end=0.2), 2, changes="accept")
    assert trainer.optimizers["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 * 0.2)


@dataclass(frozen=True, slots=True)
class SlottedLoss:
    """A loss of the user's without `__dict__`."""

    scale: float

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.scale * F.cross_entropy(outputs, targets)


def test_options_of_a_slotted_loss_are_compared(points: TensorDataset, tmp_path: Path) -> None:
    def run(scale: float, num_epochs: int) -> None:
        net = build_net()
        adam = torch.optim.Adam(net.parameters(), 0.01)
        trainer = Trainer(net, adam, SlottedLoss(scale), run_dir=tmp_path, progress="silent")
        trainer.train(points, num_epochs, batch_size=8)

    run(1.0, 1)
    with raises("program-changed"):
        run(2.0, 2)


def test_a_run_recorded_without_options_of_its_curve_continues(
    points: TensorDataset, tmp_path: Path
) -> None:
    """The first edition recorded the name of the curve only; its options count as unknown."""
    curve = Sequential([Linear(), Cosine(end=0.1)], [0.5])
    train(tmp_path, points, curve, 1)
    _forget_options(tmp_path)
    trainer = train(tmp_path, points, curve, 2)
    assert trainer.progress.epoch == 2


def test_a_run_recorded_without_options_still_notices_another_curve(
    points: TensorDataset, tmp_path: Path
) -> None:
    train(tmp_path, points, Cosine(), 1)
    _forget_options(tmp_path)
    with raises("program-changed", "'Cosine'", "'Linear'"):
        train(tmp_path, points, Linear(), 2)


def _forget_options(folder: Path) -> None:
    """Make the recorded descriptions those of the first edition."""

    def forget(description: dict[str, Any]) -> None:
        options = [key for key in description if key.startswith("scheduler.")]
        assert options
        for key in options:
            del description[key]

    manifest = json.loads((folder / "run.json").read_text())
    forget(manifest["fingerprint"])
    (folder / "run.json").write_text(json.dumps(manifest))
    for path in (folder / "checkpoints").iterdir():
        saved = read_checkpoint(path)
        forget(saved.tree["fingerprint"])
        write_checkpoint(path, saved.tree, saved.meta)

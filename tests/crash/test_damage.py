"""Damaged and half-written resume points: named, passed over, cleaned up; the run comes to the same
end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import CheckpointError, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.checkpoint import list_checkpoints, update_name, verify_checkpoint

from ..checkpoint.helpers import resign
from ..loops import assert_same_model, build_net
from ..runs import adam, assert_same_run, cross_entropy, rows


def build(run_dir: Path | None) -> Trainer:
    callbacks = [] if run_dir is None else [Checkpoints(every_updates=1, keep=3)]
    return Trainer(
        build_net(), adam, cross_entropy, run_dir=run_dir, callbacks=callbacks, progress="silent"
    )


def train(trainer: Trainer, points: TensorDataset, **limits: int) -> Trainer:
    trainer.train(points, batch_size=8, **limits)
    return trainer


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    "file", ["manifest.json", "state.json", "state.safetensors", "model.safetensors"]
)
def test_a_damaged_newest_is_named_and_removed_and_the_run_is_the_same(
    damage: Callable[[Path], None],
    file: str,
    points: TensorDataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = train(build(tmp_path / "whole"), points, num_epochs=2)
    train(build(tmp_path / "cut"), points, num_updates=6)
    damaged = tmp_path / "cut" / "checkpoints" / update_name(6)
    damage(damaged / file)
    trainer = build(tmp_path / "cut")
    with caplog.at_level(logging.WARNING, "loopwright"):
        trainer.train(points, 2, batch_size=8)
    assert "Checkpoint update-00000006 is skipped" in caplog.text
    assert file in caplog.text
    assert_same_run(trainer, whole)
    assert rows(trainer) == rows(whole)
    assert [
        info.name for info in list_checkpoints(tmp_path / "cut", verify=True) if not info.is_sound
    ] == []


def test_what_was_damaged_is_gone_before_the_run_goes_on(
    points: TensorDataset, tmp_path: Path
) -> None:
    train(build(tmp_path), points, num_updates=6)
    (tmp_path / "checkpoints" / update_name(6) / "manifest.json").unlink()
    train(build(tmp_path), points, num_updates=5)  # which is done: nothing is trained or saved
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [update_name(4), update_name(5)]


def test_where_nothing_is_sound_the_run_starts_over_and_what_may_be_rescued_stays(
    points: TensorDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(build(tmp_path), points, num_updates=2)
    for update in (1, 2):
        flip(tmp_path / "checkpoints" / update_name(update) / "state.safetensors")
    trainer = build(tmp_path)
    with caplog.at_level(logging.WARNING, "loopwright"):
        trainer.train(points, num_updates=1, batch_size=8)
    assert caplog.text.count("is skipped") == 2
    assert trainer.progress.update == 1
    assert verify_checkpoint(tmp_path / "checkpoints" / update_name(1)) == []
    assert (tmp_path / "checkpoints" / update_name(2) / "model.safetensors").is_file()


def test_a_resume_point_of_a_newer_version_is_refused_and_left_alone(
    points: TensorDataset, tmp_path: Path
) -> None:
    train(build(tmp_path), points, num_updates=3)
    newest = tmp_path / "checkpoints" / update_name(3)
    resign(newest, {"format": 4})
    trainer = build(tmp_path)
    before = build_net()
    with pytest.raises(
        CheckpointError, match=r"newer version of Loopwright \(format 4; .*: upgrade Loopwright"
    ):
        trainer.train(points, num_updates=5, batch_size=8)
    assert_same_model(trainer.model, before)
    assert newest.is_dir()


def test_half_written_kept_models_and_manifests_are_cleaned_up(
    points: TensorDataset, tmp_path: Path
) -> None:
    """As a process leaves them that is killed while it writes; there is none with so high a
    number."""
    train(build(tmp_path), points, num_updates=3)
    for litter in (
        "kept/.update-00000009.tmp-4194399-0a1b2c3d",
        "checkpoints/.update-00000007.tmp-4194399-0a1b2c3d",
    ):
        (tmp_path / litter).mkdir()
        (tmp_path / litter / "state.json").write_text("{")
    (tmp_path / ".run.json.tmp-4194399-0a1b2c3d").write_text("{")
    trainer = build(tmp_path)
    trainer.train(points, num_updates=5, eval_data=points, batch_size=8)
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob(".*.tmp-*")]
    assert left == []


def test_a_file_from_elsewhere_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    torch.save(build_net().state_dict(), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"model\.pt is a file, .*load_weights"):
        build(None).load(tmp_path / "model.pt")

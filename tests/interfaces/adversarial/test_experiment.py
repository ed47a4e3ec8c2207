"""Experiment directories and their versions."""

from __future__ import annotations

from pathlib import Path

from loopwright.interfaces.adversarial import Trainer
from tests.mistakes import raises

from .runs import tiny


def directory(config: dict) -> str:
    return Trainer(config).experiment_dir.name


def test_versions_go_on_past_ten(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    assert [directory(config) for _ in range(12)] == [f"tiny_v{number}" for number in range(1, 13)]


def test_without_counting_up_an_experiment_is_not_written_over(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path, save={"auto_increment_version": False})
    Trainer(config)
    with raises("experiment-exists", "tiny_v1"):
        Trainer(config)

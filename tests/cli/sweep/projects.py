"""A project whose runs can be held in their middle, for sweeps that are interrupted."""

from __future__ import annotations

from pathlib import Path

from tests.cli.projects import MODULE

CONFIG = """\
seed: 3
name: points
model: {kind: cli_project.Net, width: 8, optimizer: {kind: AdamW, lr: 0.01}}
datasets: {train: {kind: cli_project.Points, n: 24}, test: {kind: cli_project.Points, n: 16}}
trainer:
  kind: cli_project.PointTrainer
  max_updates: 9
  effective_batch_size: 8
  forward_properties: [x]
  target_properties: [y]
  callbacks:
    - {kind: OfflineLoss, dataset_key: test, every_n_updates: 3}
"""


def write_project(folder: Path) -> Path:
    (folder / "cli_project.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    return folder

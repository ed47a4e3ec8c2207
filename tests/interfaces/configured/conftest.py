"""A folder with a run file and the module beside it, as a user has them."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULE = Path(__file__).with_name("parts.py")

RUN = """\
seed: 0
output_path: out
model: {kind: mine.Net, width: 16, optimizer: {kind: torch.optim.AdamW, lr: 0.01, betas: [0.9, 0.95]}}
datasets: {train: {kind: mine.Points, n: 64}, test: {kind: mine.Points, n: 32, seed: 1}}
trainer: {kind: mine.CustomTrainer, max_updates: 37, effective_batch_size: 8, weight: 0.25,
          forward_properties: [coordinates, features], target_properties: [labels],
          callbacks: [{kind: loopwright.callbacks.OfflineLoss, dataset_key: test, every_n_updates: 10}]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE.read_text())
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path

"""The example on real photographs, in small: what it prints and writes, and that what it tests on
is unseen."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLE = Path(__file__).parents[3] / "examples" / "pix2pix"


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in ("photographs", "train"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("on_path")
def test_it_learns_and_reports_and_goes_on_when_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    example = importlib.import_module("train")
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--out", str(tmp_path), "--epochs", "5", "--limit", "16"]
    )
    example.main()
    written = capsys.readouterr().out
    names = ("trained generator", "untrained generator", "mean image")
    trained, untrained, mean = (float(re.search(rf"{name} ([\d.]+)", written)[1]) for name in names)
    assert trained < min(untrained, mean) - 0.02
    with Image.open(tmp_path / "triplets.jpg") as picture:
        assert picture.size == (2 * (12 * 32 + 11 * 2), 2 * (6 * 32 + 5 * 2))
    example.main()
    again = capsys.readouterr().out
    assert "Beginning epoch" not in again
    assert f"trained generator {trained:.3f}" in again


@pytest.mark.usefixtures("on_path")
def test_no_pixel_that_is_tested_on_was_trained_on():
    photographs = importlib.import_module("photographs")
    pixels = np.arange(200 * 300).reshape(200, 300)
    seen: dict[str, set[int]] = {split: set() for split in photographs.SPLITS}
    for split, square in photographs.squares(pixels):
        for patch in photographs.patches(square, 16):
            seen[split].update(patch.flatten().tolist())
    assert all(seen.values())
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]

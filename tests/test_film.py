"""The film in the README shows what really happens: a kill, the same command, and the curve of a
run nobody touched."""

import os
import signal
from pathlib import Path

import pytest

import loopwright

from .film import EPOCHS, draw, record


@pytest.mark.long  # kills are tested in tests/crash; this one draws the picture of the README
def test_a_killed_and_restarted_run_of_the_film_has_the_curve_of_an_untouched_one(
    tmp_path: Path,
) -> None:
    for name in ("film", "untouched"):
        (tmp_path / name).mkdir()
    takes = [record(tmp_path / "film", is_killed=True), record(tmp_path / "film")]
    assert [take.code for take in takes] == [-signal.SIGKILL, 0]
    assert any(line.startswith("Resuming runs/digits") for _, line in takes[1].lines)
    assert record(tmp_path / "untouched").code == 0

    curves = [
        loopwright.runs(tmp_path / name / "runs")["digits"].metrics("eval_loss", by="epoch")[
            "value"
        ]
        for name in ("film", "untouched")
    ]
    assert len(curves[0]) == EPOCHS
    assert curves[0] == curves[1]

    film = draw(takes, curves[0])
    assert film.count("<circle") >= EPOCHS
    if folder := os.environ.get("LOOPWRIGHT_SCREENSHOTS"):
        (Path(folder) / "film.svg").write_text(film)

"""`loopwright.runs`: recorded runs as plain columns and frames."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas
import polars
import pytest

import loopwright
from loopwright.run import Run
from tests.demo_runs import make_demo_run
from tests.mistakes import raises

STORED = Path(__file__).parents[1] / "stored" / "v0_first_edition"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_demo_run(root / "first", steps=300, epochs=3, config={"optimizer.lr": 0.1})
    make_demo_run(
        root / "deep" / "second", steps=200, epochs=2, state="failed", media=False, resumed=False
    )
    return root


def test_runs_are_a_sequence_newest_first(root):
    runs = loopwright.runs(root)
    assert [run.name for run in runs] == ["second", "first"]
    assert (len(runs), runs[0].state, runs[-1].state) == (2, "failed", "finished")
    assert [run.name for run in runs[1:]] == ["first"]
    assert runs["first"].path == runs[1].path
    assert runs["deep/second"].name == "second"
    assert repr(runs).splitlines()[1:] == ["  deep/second: failed", "  first: finished"]


def test_a_metric_is_columns_of_every_value_and_its_place(root):
    run = loopwright.runs(root)["first"]
    found = run.metrics("loss")
    points = Run(run.path).metrics.steps("loss")
    assert list(found) == ["step", "update", "epoch", "samples", "seconds", "wall", "value"]
    assert found["step"] == [point.at for point in points] == list(range(1, 301))
    assert [value.hex() for value in found["value"]] == [point.value.hex() for point in points]
    assert any(map(math.isnan, found["value"]))
    assert found["epoch"] == [(step - 1) // 100 for step in range(1, 301)]
    assert found["samples"] == [32 * step for step in range(1, 301)]
    assert found["seconds"] == pytest.approx([step / 100 for step in range(1, 301)])
    assert found["wall"][150] - found["wall"][149] == pytest.approx(600.01)  # it was resumed there


def test_columns_become_frames(root):
    run = loopwright.runs(root)["first"]
    columns = run.metrics("loss")
    frame = columns.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(columns)
    assert frame["step"].to_list() == columns["step"]
    assert polars.DataFrame(columns).shape == (300, len(columns))
    assert run.events.to_pandas()["kind"].iloc[0] == "started"


def test_the_table_has_a_row_for_each_run_and_a_column_for_each_setting(root):
    table = loopwright.runs(root).table()
    assert table["config.optimizer.lr"] == [0.001, 0.1]
    assert table["path"] == ["deep/second", "first"]
    # of a program without a config
    assert "config.batch_size" in loopwright.runs(STORED / "plateau").table()
    assert table["best"][1] == loopwright.runs(root)["first"].best().value


def test_a_metric_that_is_not_there_is_named_with_those_that_are(root):
    run = loopwright.runs(root)["first"]
    with raises("unknown-metric", "'los'", "did you mean loss?"):
        run.metrics("los")
    with raises("unknown-metric", "'train/grad_norms' per epoch", "did you mean"):
        run.best("train/grad_norms")
    with raises("no-best-direction", "'lr'", "mode='min'"):
        run.best("lr")


def test_a_folder_or_a_run_that_is_not_there_is_named(root, tmp_path):
    with raises("no-runs-folder", "'nowhere'"):
        loopwright.runs("nowhere")
    with pytest.raises(KeyError, match=r"There is no run 'frist' in .*did you mean first"):
        loopwright.runs(root)["frist"]
    assert list(loopwright.runs(tmp_path)) == []


def test_reading_runs_imports_no_torch(root):
    program = (
        "import sys, loopwright; loopwright.runs(sys.argv[1]).table(); sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode == 0


def test_every_key_of_a_config_is_a_setting_whatever_its_name(tmp_path: Path):
    given = {
        "data.samples": 600,
        "trainer.every": 3,
        "callbacks.metric": "f1",
        "model.act": "GELU(tanh)",
        "model.d": [],
    }
    folder = make_demo_run(
        tmp_path / "run", steps=4, epochs=1, media=False, resumed=False, config=given
    )
    settings = Run(folder).settings
    assert {key: settings.get(key) for key in given} == given

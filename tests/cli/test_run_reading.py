"""Runs seen from outside: their state, progress and metrics, while others write and when files are
damaged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.run import MetricsStore, Run, RunManifest, find_runs
from loopwright.run.metrics_view import MetricsView
from tests.cli.gallery import locked_by_another_process
from tests.metrics.step_rows import rows_of

ASK = """
import sys
from pathlib import Path
from loopwright.run.directory import is_locked
print(is_locked(Path(sys.argv[1])))
"""


def unfinished(path: Path) -> Path:
    """A run that has begun and noted no end."""
    path.mkdir(parents=True)
    RunManifest.collect(seed=4).write(path / "run.json")
    return path


@pytest.mark.parametrize("state", ["finished", "stopped", "failed", "interrupted"])
def test_a_run_that_noted_its_end_is_in_that_state(gallery, state):
    assert Run(gallery / "runs" / state).state == state


def test_a_killed_run_has_crashed(gallery):
    run = Run(gallery / "runs/killed")
    assert json.loads((run.path / "run.json").read_text())["state"] == "running"
    assert run.state == "crashed"


def test_a_run_whose_lock_is_held_is_running_and_has_crashed_afterwards(tmp_path):
    path = unfinished(tmp_path / "run")
    with locked_by_another_process(path):
        assert Run(path).state == "running"
    assert Run(path).state == "crashed"


def test_looking_at_a_run_of_this_process_does_not_give_its_lock_away(tmp_path):
    seen = []

    class Look(Callback):
        def on_epoch_end(self, trainer: Trainer, metrics) -> None:
            seen.append(Run(trainer.run.files.directory.path).state)
            command = [sys.executable, "-c", ASK, str(trainer.run.files.directory.path / ".lock")]
            seen.append(
                subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=300
                ).stdout
            )

    data = TensorDataset(torch.zeros(8, 1), torch.zeros(8, 1))
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    trainer = Trainer(
        model,
        optimizer,
        nn.MSELoss(),
        run_dir=tmp_path / "run",
        callbacks=[Look()],
        progress="silent",
    )
    trainer.train(data, 1)
    assert seen == ["running", "True\n"]


def test_a_run_on_another_machine_is_running_while_it_writes(tmp_path):
    path = unfinished(tmp_path / "run")
    (path / ".lock").write_text("process 17 on another-machine\n")
    assert Run(path).state == "running"
    os.utime(path / "run.json", (0, 0))
    assert Run(path).state == "crashed"


def test_rows_are_seen_while_a_writer_has_the_file_open_and_it_goes_on_writing(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
    store.flush()
    view = MetricsView(tmp_path / "metrics.sqlite")
    assert [point.value for point in view.steps("loss")] == [0.5]
    store.add_steps(rows_of([(2, 2, "loss", 0.25)]))
    store.flush()
    assert [point.value for point in view.steps("loss")] == [0.5, 0.25]
    store.close()


DAMAGE = {
    "no json": b"{",
    "a list": b"[]",
    "no state": b'{"id": "x"}',
    "an unknown state": b'{"id": "x", "state": "dreaming"}',
    "not a string": b"\xff\xfe",
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_manifest_is_a_state_and_no_error(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    run = Run(tmp_path)
    assert run.state == "unreadable"
    assert run.progress.update is None


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path):
    connection = sqlite3.connect(tmp_path / "metrics.sqlite")
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS step, i "
        "AS name FROM n"
    )
    connection.execute(f"CREATE VIEW step_metrics AS {endless}")
    connection.execute("CREATE TABLE epoch_metrics (epoch)")
    connection.close()
    assert MetricsView(tmp_path / "metrics.sqlite").names_of("step") == []


def test_runs_are_found_in_all_folders_but_not_in_runs(gallery, tmp_path):
    shutil.copytree(gallery / "runs", tmp_path / "runs")
    shutil.copytree(gallery / "runs/finished", tmp_path / "runs/finished/artifacts/copy")
    (tmp_path / "runs/loop").symlink_to(tmp_path / "runs")
    found = [str(path.relative_to(tmp_path / "runs")) for path in find_runs(tmp_path / "runs")]
    assert found == ["deep/twin", "failed", "finished", "interrupted", "killed", "stopped"]

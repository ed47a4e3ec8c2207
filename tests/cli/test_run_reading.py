"""Runs seen from outside: their state, progress and metrics, while others write and when files are
damaged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import EarlyStopping
from loopwright.run import MetricsStore, RunManifest, RunView, find_runs, update_manifest
from loopwright.run.directory import is_locked
from loopwright.run.metrics_view import MetricsView
from tests.cli.gallery import locked_by_another_process, train_run
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
    assert RunView(gallery / "runs" / state).state == state


def test_a_killed_run_has_crashed(gallery):
    run = RunView(gallery / "runs/killed")
    assert json.loads((run.path / "run.json").read_text())["state"] == "running"
    assert run.state == "crashed"


def test_a_run_whose_lock_is_held_is_running_and_has_crashed_afterwards(tmp_path):
    path = unfinished(tmp_path / "run")
    with locked_by_another_process(path):
        assert RunView(path).state == "running"
    assert RunView(path).state == "crashed"


def test_looking_at_a_run_of_this_process_does_not_give_its_lock_away(tmp_path):
    seen = []

    class Look(Callback):
        def on_epoch_end(self, trainer: Trainer, metrics) -> None:
            seen.append(RunView(trainer.run.files.directory.path).state)
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


def test_a_reader_does_not_keep_a_trainer_from_the_lock(tmp_path):
    path = unfinished(tmp_path / "run")
    (path / ".lock").write_text("process 1 on elsewhere\n")
    assert is_locked(path / ".lock") is False
    with locked_by_another_process(path):
        assert is_locked(path / ".lock") is True


def test_a_run_on_another_machine_is_running_while_it_writes(tmp_path):
    path = unfinished(tmp_path / "run")
    (path / ".lock").write_text("process 17 on another-machine\n")
    assert RunView(path).state == "running"
    os.utime(path / "run.json", (0, 0))
    assert RunView(path).state == "crashed"


def test_progress_of_a_killed_run_is_what_its_metrics_and_checkpoints_tell(gallery):
    progress = RunView(gallery / "runs/killed").progress
    assert (progress.epoch, progress.update, progress.step) == (1, 8, 8)


def test_progress_of_a_finished_run_is_what_it_noted(gallery):
    progress = RunView(gallery / "runs/finished").progress
    assert (progress.epoch, progress.step, progress.update, progress.sample) == (3, 12, 12, 96)
    assert (progress.limit, progress.fraction) == (("epoch", 3), 1.0)


def test_progress_of_a_resumed_run_is_not_what_an_earlier_process_noted(tmp_path):
    train_run(tmp_path / "run", how="failed")
    update_manifest(
        tmp_path / "run/run.json", state="running", progress={"epoch": 90, "update": 900}
    )
    assert RunView(tmp_path / "run").progress.update == 8


def test_progress_with_a_config_knows_the_end(configured):
    run = RunView(find_runs(configured / "runs")[0])
    assert (run.progress.limit, run.progress.fraction) == (("epoch", 2), 1.0)


def test_name_id_and_tags_come_from_the_run(configured):
    path = find_runs(configured / "runs")[0]
    run = RunView(path)
    assert (run.name, run.id, run.tags) == ("points", path.name, ("small", "demo"))


def test_a_run_without_a_name_is_called_as_its_folder(gallery):
    assert RunView(gallery / "runs/deep/twin").name == "twin"


def test_best_is_the_smallest_loss_and_where_it_was(gallery):
    run = RunView(gallery / "runs/finished")
    rows = MetricsStore(run.path / "metrics.sqlite").epochs("eval_loss")
    epoch, _, _, value = min(rows, key=lambda row: row[3])
    best = run.best("eval_loss")
    assert (best.value, best.epoch, best.mode) == (value, epoch, "min")
    assert run.main_metric == "eval_loss"


@pytest.mark.parametrize("name", ["loss", "eval_loss", "test_error", "accuracy", "eval_f1", "rmse"])
def test_what_is_better_is_what_callbacks_take_for_better(gallery, name):
    assert RunView(gallery / "runs/finished").mode_of(name) == EarlyStopping(name).mode


def test_values_are_read_bit_for_bit(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    written = [0.1, float("nan"), -0.0, 0.0, float("inf"), 5e-324]
    store.add_steps(
        rows_of([(step, step, "x", value) for step, value in enumerate(written, start=1)])
    )
    store.flush()
    read = [point.value for point in MetricsView(tmp_path / "metrics.sqlite").steps("x")]
    assert [value.hex() for value in read] == [value.hex() for value in written]
    store.close()


def test_nan_is_never_the_best(tmp_path):
    with_nan = MetricsStore(tmp_path / "metrics.sqlite")
    for epoch, value in enumerate((float("nan"), 2.0, 1.0), start=1):
        with_nan.add_epoch(epoch, epoch, {"loss": value, "other": float("nan")})
    with_nan.close()
    view = MetricsView(tmp_path / "metrics.sqlite")
    assert view.best("loss", "min").value == 1.0
    assert view.best("other", "min") is None


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


def test_reading_leaves_no_file_behind(gallery, tmp_path):
    path = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    before = sorted(path.rglob("*"))
    run = RunView(path)
    assert run.best
    assert run.metrics.steps("loss")
    assert sorted(path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_in_a_folder_that_cannot_be_written_is_read(gallery, tmp_path):
    path = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert RunView(path).best()
    path.chmod(stat.S_IRWXU)


def test_a_run_before_its_first_metric_has_none(tmp_path):
    run = RunView(unfinished(tmp_path / "run"))
    assert (run.best(), run.main_metric, run.metrics.names(), run.metrics.last_step()) == (
        None,
        None,
        [],
        None,
    )


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
    run = RunView(tmp_path)
    assert run.state == "unreadable"
    assert run.progress.update is None


def test_damaged_metrics_are_a_problem_of_the_run(gallery, tmp_path):
    path = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    (path / "metrics.sqlite").write_bytes(b"no database at all" * 100)
    run = RunView(path)
    assert run.best() is None
    assert "metrics.sqlite cannot be read" in run.problems[0]


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path):
    connection = sqlite3.connect(tmp_path / "metrics.sqlite")
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS step, i "
        "AS name FROM n"
    )
    connection.execute(f"CREATE VIEW step_metrics AS {endless}")
    connection.execute("CREATE TABLE epoch_metrics (epoch)")
    connection.close()
    assert MetricsView(tmp_path / "metrics.sqlite").step_names() == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"is not a run directory: it has no run\.json"):
        RunView(tmp_path)


def test_runs_are_found_in_all_folders_but_not_in_runs(gallery, tmp_path):
    shutil.copytree(gallery / "runs", tmp_path / "runs")
    shutil.copytree(gallery / "runs/finished", tmp_path / "runs/finished/artifacts/copy")
    (tmp_path / "runs/loop").symlink_to(tmp_path / "runs")
    found = [str(path.relative_to(tmp_path / "runs")) for path in find_runs(tmp_path / "runs")]
    assert found == ["deep/twin", "failed", "finished", "interrupted", "killed", "stopped"]

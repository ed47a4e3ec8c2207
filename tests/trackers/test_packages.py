"""Weights & Biases, MLflow and Trackio: the real packages without a network, and what they wrote
read back.

Each test is one forked process with one import of the package: a run that fails, its resumption,
and the readers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sqlite3
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from loopwright import Callback
from loopwright.trackers import MLflow, Trackio, WandB
from loopwright.trackers.mlflow import _name as mlflow_name
from loopwright.trackers.wandb import last_step

from ..forked import call_forked
from ..runs import assert_same_run
from .packages import wandb_records, wandb_rows
from .runs import IMAGE, LogMedia, build, step_losses, train


class FailAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_step_start(self, trainer, batch):
        if trainer.progress.step == self.step:
            raise ZeroDivisionError("on purpose")


def fail_and_resume(tracker):
    """A run that fails at step 8, after the resume point at update 4, and goes on; with the one
    without a tracker."""

    def run(run_dir, *callbacks):
        random.seed(3)
        np.random.seed(3)
        trainer = build([LogMedia(at=6), *callbacks], run_dir=Path(run_dir))
        with suppress(ZeroDivisionError):
            train(trainer)
        return trainer

    failed = run("run", tracker, FailAt(8))
    assert failed.progress.step == 8
    resumed, state = run("run", tracker), (random.random(), np.random.random())
    whole = run("whole")
    assert_same_run(resumed, whole)
    assert (random.random(), np.random.random()) == state
    return resumed


def check(program, folder: Path) -> None:
    def run():
        warnings.simplefilter("ignore")  # those of the packages are not ours
        program()

    ended = call_forked(run, folder)
    assert ended.code == 0, ended.out + ended.err
    assert "The tracker" not in ended.err


class KillLate(Callback):
    """Ends the process by SIGKILL after update 9, with a resume point at update 8; `has_arrived`
    waits until the tracker's files have some of the rows."""

    precedence = 8

    def __init__(self, has_arrived):
        self.has_arrived = has_arrived

    def on_update_end(self, trainer):
        if trainer.progress.update == 3:
            trainer.run.flush()
            end = time.monotonic() + 120
            while not self.has_arrived():
                assert time.monotonic() < end
                time.sleep(0.05)
        if trainer.progress.update == 9:
            trainer.run.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def kill_and_resume(build_tracker, has_arrived, folder):
    """A run that SIGKILL ends after its resume point, before its tracker has written all rows; then
    it goes on in another process."""

    def killed():
        warnings.simplefilter("ignore")
        callbacks = [build_tracker(), KillLate(has_arrived)]
        train(build(callbacks, run_dir=Path("run"), every_updates=4))

    assert call_forked(killed, folder).code == -signal.SIGKILL


def test_wandb_offline_that_failed_has_every_step_once_under_one_id(tmp_path, monkeypatch):
    def program():
        tracker = WandB("project", mode="offline", folder=".", options={"tags": ["first"]})
        trainer = fail_and_resume(tracker)
        files = sorted(
            Path().glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime
        )
        assert [file.name for file in files] == [files[0].name] * 2, "the same id"
        check_wandb_rows(trainer, [row for file in files for row in wandb_rows(file)])
        records = [
            {record.WhichOneof("record_type"): record for record in wandb_records(file)}
            for file in files
        ]
        assert [found["exit"].exit.exit_code for found in records] == [1, 0]
        run = records[1]["run"].run
        assert {item.key: item.value_json for item in run.config.update}["optimizer.lr"] == "0.01"
        assert (run.project, list(run.tags)) == ("project", ["first"])

    monkeypatch.setenv("WANDB_SILENT", "true")
    check(program, tmp_path)


@pytest.mark.long  # wandb's own process, which lives on after the kill, writes when it likes
def test_wandb_offline_has_every_step_once_after_a_kill_that_cost_it_rows(tmp_path, monkeypatch):
    """What wandb had not written to its file is written again, also of the steps before the resume
    point."""

    def build_tracker():
        return WandB("project", mode="offline", folder=".")

    def files():
        return sorted(Path().glob("wandb/offline-run-*/*.wandb"))  # by the time of their beginning

    def resume():
        trainer = train(build([build_tracker()], run_dir=Path("run"), every_updates=4))
        first, second = [wandb_rows(file) for file in files()]
        assert second[0]["_step"] <= 8, "the kill cost nothing"
        rows = [*first, *second]
        assert [row["_step"] for row in rows] == list(range(1, 11))
        assert {row["_step"]: row["loss"] for row in rows} == step_losses(trainer)
        found = {row["_step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
        assert found == dict(zip((5, 10), trainer.history["eval_loss"], strict=True))

    monkeypatch.setenv("WANDB_SILENT", "true")
    kill_and_resume(
        build_tracker, lambda: any(last_step(f.read_bytes()) >= 2 for f in files()), tmp_path
    )
    check(resume, tmp_path)


def check_wandb_rows(trainer, rows):
    assert [row["_step"] for row in rows] == list(range(1, 11))
    assert {row["_step"]: row["loss"] for row in rows} == step_losses(trainer)
    found = {row["_step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    assert found == dict(zip((5, 10), trainer.history["eval_loss"], strict=True))
    for name in ("samples", "weights", "note", "errors"):
        assert [row["_step"] for row in rows if any(key.startswith(name) for key in row)] == [6]
    assert [row["progress/samples"] for row in rows] == [8 * step for step in range(1, 11)]
    assert list(Path("wandb").rglob("media/images/samples_6_*.png"))


def test_mlflow_has_every_step_once_in_one_run_with_params_artifacts_and_state(tmp_path):
    def program():
        logging.disable(logging.INFO)
        uri = f"sqlite:///{Path('mlflow.db').absolute()}"
        trainer = fail_and_resume(MLflow("experiment", uri=uri))
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("experiment")
        (run,) = client.search_runs([experiment.experiment_id])
        identity = run.info.run_id
        assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
        assert run.data.params["optimizer.lr"] == "0.01"
        found = [
            (metric.step, metric.value) for metric in client.get_metric_history(identity, "loss")
        ]
        assert found == list(step_losses(trainer).items())
        found = [
            (metric.step, metric.value)
            for metric in client.get_metric_history(identity, "eval_loss")
        ]
        assert found == list(zip((5, 10), trainer.history["eval_loss"], strict=True))
        assert "on purpose" in run.data.tags["loopwright.reason"]
        files = {
            item.path
            for name in ("samples", "weights", "note", "errors")
            for item in client.list_artifacts(identity, f"media/{name}")
        }
        images = {f"media/samples/samples-6-{number}.png" for number in (1, 2)}
        others = {"weights/weights-6.json", "note/note-6.txt", "errors/errors-6.csv"}
        assert files == images | {f"media/{name}" for name in others}
        assert mlflow_name("a//b (%)") == "a/_/b ___"
        assert mlflow_name("../x") == "_/x"
        assert mlflow_name("") == "_"
        image = Path(client.download_artifacts(identity, "media/samples/samples-6-1.png"))
        from PIL import Image

        assert Image.open(image).getpixel((0, 0)) == (255, 0, 0)

    check(program, tmp_path)


def test_trackio_has_every_step_once_in_one_run_with_media_and_config(tmp_path):
    def program():
        os.environ["TRACKIO_DIR"] = str(Path("store").absolute())
        trainer = fail_and_resume(Trackio("project"))
        from trackio import Api

        (run,) = Api().runs("project")
        assert run.name.startswith("run-")
        assert run.config["optimizer.lr"] == 0.01
        with closing(sqlite3.connect(next(Path("store").glob("*.db")))) as database:
            rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
        found = [(step, json.loads(metrics)) for step, metrics in rows]
        assert [(step, row["loss"]) for step, row in found if "loss" in row] == list(
            step_losses(trainer).items()
        )
        assert [step for step, row in found if "eval_loss" in row] == [5, 10]
        for name in ("note", "weights", "errors", "samples/1", "samples/2"):
            assert [step for step, row in found if name in row] == [6]
        images = list(Path("store/media").rglob("6/*.png"))
        assert len(images) == 2
        assert IMAGE[:8] == images[0].read_bytes()[:8]

    check(program, tmp_path)


def test_trackio_has_every_step_once_after_a_kill(tmp_path, monkeypatch):
    def rows():
        found = []
        for path in Path("store").glob("*.db"):
            with closing(sqlite3.connect(path)) as database, suppress(sqlite3.OperationalError):
                found += database.execute("SELECT step, metrics FROM metrics ORDER BY step")
        return [(step, json.loads(metrics)) for step, metrics in found]

    def build_tracker():
        os.environ["TRACKIO_DIR"] = str(Path("store").absolute())
        return Trackio("project")

    def resume():
        before = [step for step, _ in rows()]
        trainer = train(build([build_tracker()], run_dir=Path("run"), every_updates=4))
        found = [(step, row["loss"]) for step, row in rows() if "loss" in row]
        assert found == list(step_losses(trainer).items()), before
        assert [step for step, row in rows() if "eval_loss" in row] == [5, 10]

    kill_and_resume(build_tracker, rows, tmp_path)
    check(resume, tmp_path)

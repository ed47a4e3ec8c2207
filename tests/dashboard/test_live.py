from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.run import MetricsStore, update_manifest
from loopwright.run.directory import RunDirectory
from tests.forked import end_as_program

from .serving import SECONDS, Served, serving
from .small_runs import step_rows, write_run


class Slow(Callback):
    """Trains slowly, until a file says that it is enough."""

    def __init__(self, stop: Path) -> None:
        self.stop = stop

    def on_train_step_end(self, trainer, batch, result):
        time.sleep(0.01)
        if self.stop.exists():
            trainer.stop("enough")


@contextmanager
def training_process(folder: Path) -> Iterator[int]:
    """A process that trains in `runs/real` from the moment that there is a file `go` until there is
    a file `stop`."""
    if (pid := os.fork()) == 0:  # before the server has threads
        end_as_program(lambda: _train(folder), folder)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _train(folder: Path) -> None:
    until((folder / "go").exists)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
    callbacks = [Slow(folder / "stop")]
    sgd = partial(torch.optim.SGD, lr=0.01)
    run = {"run_dir": folder / "runs" / "real", "callbacks": callbacks, "progress": "silent"}
    Trainer(nn.Linear(4, 1), sgd, nn.functional.mse_loss, **run).train(
        data, 1000, eval_data=data, batch_size=8
    )


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something that must come, and return it."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


def wait_for(
    events: Iterator[tuple[str, Any]], kind: str, fits: Callable[[Any], bool] = lambda data: True
) -> Any:
    """The first event of a kind that fits; the connection has a time limit."""
    return next(data for name, data in events if name == kind and fits(data))


def cursor_of(served: Served, run: str) -> str:
    return served.data(f"/api/curves?run={run}&name=loss")["cursors"][run]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[MetricsStore]:
    """The metrics of a run that trains in this process: its lock is held."""
    run = write_run(tmp_path / "runs" / "a", media=False)
    update_manifest(run / "run.json", state="running")
    store = MetricsStore(run / "metrics.sqlite")
    with RunDirectory(run):
        yield store
        store.close()


def test_rows_come_once_and_only_those_that_are_new(tmp_path: Path, training: MetricsStore):
    with serving(tmp_path / "runs") as served:
        cursor = cursor_of(served, "a")
        with served.events(f"/api/live?run=a&cursor={cursor}&name=loss") as events:
            training.add_steps(step_rows(51, 53))
            training.add_event("checkpoint", "saved")
            training.flush()
            rows = wait_for(events, "rows")
            training.add_steps(step_rows(54, 54))
            training.flush()
            more = wait_for(events, "rows")
    assert rows["steps"]["loss"] == {
        "x": [51, 52, 53],
        "value": [1 / 51, 1 / 52, 1 / 53],
        "odd": {},
    }
    assert set(rows["steps"]) == {"loss"}
    assert [event["kind"] for event in rows["events"]] == ["checkpoint"]
    assert more["steps"]["loss"]["x"] == [54]


def test_a_lost_connection_goes_on_where_it_was(tmp_path: Path, training: MetricsStore):
    with serving(tmp_path / "runs") as served:
        path = "/api/live?run=a&name=loss&cursor="
        with served.events(path + cursor_of(served, "a")) as events:
            training.add_steps(step_rows(51, 52))
            training.flush()
            cursor = wait_for(events, "rows")["cursor"]
        training.add_steps(step_rows(53, 53))
        training.flush()
        with served.events(path + cursor) as events:
            assert wait_for(events, "rows")["steps"]["loss"]["x"] == [53]


def test_a_rewound_run_is_read_anew(tmp_path: Path, training: MetricsStore):
    with serving(tmp_path / "runs") as served:
        with served.events(f"/api/live?run=a&cursor={cursor_of(served, 'a')}&name=loss") as events:
            training.truncate(step=30, epoch=1)
            training.add_steps(step_rows(31, 32, offset=1.0))
            training.flush()
            told = wait_for(events, "reread")
        assert (told["run"], told["reason"]) == ("a", "rewound")
        curve = served.data("/api/curves?run=a&name=loss&level=step")["curves"][0]
        assert curve["columns"]["x"][-1] == 32
        assert curve["columns"]["mean"][-1] == 1 / 32 + 1.0


def test_a_client_that_is_far_behind_reads_its_curves_anew(tmp_path: Path, training: MetricsStore):
    with serving(tmp_path / "runs") as served:
        cursor = cursor_of(served, "a")
        training.add_steps(step_rows(51, 6000))
        training.flush()
        with served.events(f"/api/live?run=a&cursor={cursor}&name=loss") as events:
            assert wait_for(events, "reread")["reason"] == "behind"


def test_a_new_run_and_a_removed_one_reach_the_table(tmp_path: Path):
    write_run(tmp_path / "old", media=False)
    with serving(tmp_path) as served, served.events("/api/live") as events:
        until(lambda: [listener for listener in served.live.listeners if listener.summaries])
        write_run(tmp_path / "new", media=False)
        assert [
            run["id"] for run in wait_for(events, "runs", lambda data: data["runs"])["runs"]
        ] == ["new"]
        shutil.rmtree(tmp_path / "old")
        assert wait_for(events, "runs", lambda data: data["removed"])["removed"] == ["old"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_clients_that_leave_release_everything(tmp_path: Path, training: MetricsStore):
    with serving(tmp_path / "runs") as served:
        path = f"/api/live?run=a&cursor={cursor_of(served, 'a')}&name=loss"
        # the threads that read files are started with the first requests, and stay
        for _ in range(10):
            served.data("/api/runs")
        with served.events(path) as events:
            training.add_steps(step_rows(51, 51))
            training.flush()
            wait_for(events, "rows")
        until(lambda: not served.live.listeners)
        files, threads = open_files(), threading.active_count()
        streams = [served.events(path) for _ in range(20)]
        opened = [stream.__enter__() for stream in streams]
        assert until(lambda: len(served.live.listeners) == 20)
        training.add_steps(step_rows(52, 52))
        training.flush()
        for events in opened:
            wait_for(events, "rows", lambda data: data["steps"]["loss"]["x"][-1] == 52)
        for stream in streams:
            stream.__exit__(None, None, None)
        until(lambda: not served.live.listeners)
        # SQLite keeps a closed file open, to use it again, while this process's own training has it
        # open
        training.close()
        until(lambda: open_files() <= files)
        assert threading.active_count() <= threads + 4


@pytest.mark.parametrize("end", ["stopped", "crashed"])
def test_a_real_training_is_followed_to_its_end_and_leaves_no_log_of_sqlite(
    tmp_path: Path, end: str
):
    runs = tmp_path / "runs"
    with (
        training_process(tmp_path) as pid,
        serving(runs) as served,
        served.events("/api/live") as table,
    ):
        (tmp_path / "go").touch()
        summary = wait_for(table, "runs", lambda data: data["runs"])["runs"][0]
        assert (summary["id"], summary["state"]) == ("real", "running")
        with served.events(
            "/api/live?run=real&cursor=0.0.0.0.0.0&name=loss&name=eval_loss"
        ) as events:
            seen: list[int] = []
            while len(seen) < 30:
                seen += wait_for(events, "rows", lambda data: "loss" in data["steps"])["steps"][
                    "loss"
                ]["x"]
            (tmp_path / "stop").touch() if end == "stopped" else os.kill(pid, signal.SIGKILL)
            wait_for(table, "runs", lambda data: any(run["state"] == end for run in data["runs"]))
        answer = served.data("/api/run/real")
        curve = served.data("/api/curves?run=real&name=loss&level=step&points=20000")["curves"][0]
    assert seen == sorted(set(seen))
    assert curve["columns"]["x"][: len(seen)] == seen
    assert curve["columns"]["x"] == list(range(1, len(curve["columns"]["x"]) + 1))
    if end == "stopped":
        assert answer["sentences"][0].startswith("Stopped after ")
        assert "Reason: enough." in answer["sentences"]
        assert [path.name for path in (runs / "real").glob("metrics.sqlite*")] == ["metrics.sqlite"]
    else:
        assert any(
            "The same program or command resumes it" in sentence for sentence in answer["sentences"]
        )

"""The metrics store with several threads and processes: read while written, safe when killed."""

import math
import sqlite3
import threading
import time
from random import Random

import pytest

from loopwright.run import MetricsStore, MetricsView
from loopwright.run.schema import open_for_reading
from tests.forked import call_forked
from tests.metrics.step_rows import rows_of
from tests.run.run_helpers import (
    assert_summaries_are_those_of_the_values,
    start,
)
from tests.runs import steps_of


def test_rows_are_committed_behind_the_caller_without_being_asked_for(store):
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
    store.add_epoch(1, 1, {"eval_loss": 0.25})
    view = MetricsView(store.path)
    # until the thread has been there; a store without one makes this hang
    while not view.cursor().epoch:
        assert store._thread.is_alive()
    assert [point.value for point in view.steps("loss")] == [0.5]


def test_what_a_program_leaves_in_the_queue_is_written_when_it_ends(tmp_path):
    def program() -> None:
        store = MetricsStore("metrics.sqlite")
        store.add_steps(rows_of((step, step, "loss", step / 3) for step in range(1000)))
        store.add_event("started")

    assert call_forked(program, tmp_path).code == 0
    view = MetricsView(tmp_path / "metrics.sqlite")
    assert (len(view.steps("loss")), len(view.events())) == (1000, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.sqlite"]


def test_a_fork_leaves_the_queue_to_its_parent_and_writes_what_it_adds_itself(store, tmp_path):
    store.add_log_line("INFO", "before")
    store.flush()
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))

    def fork() -> None:
        store.add_log_line("INFO", "from the fork")
        store.close()

    assert call_forked(fork, tmp_path).code == 0
    assert [line.text for line in MetricsView(store.path).log_lines()] == [
        "before",
        "from the fork",
    ]
    store.add_steps(rows_of([(2, 2, "loss", 0.25)]))
    assert steps_of(store) == [(1, 1, "loss", 0.5), (2, 2, "loss", 0.25)]


def test_rows_of_many_threads_are_all_written_by_one(store):
    before = threading.active_count()
    together = threading.Barrier(8)

    def log(number: int) -> None:
        together.wait()
        for line in range(50):
            store.add_log_line("INFO", f"{number}: {line}")

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()
    assert threading.active_count() == before + 1
    lines = [line.text for line in MetricsView(store.path).log_lines(1000)]
    assert sorted(lines) == sorted(f"{number}: {line}" for number in range(8) for line in range(50))


def test_ctrl_c_while_rows_are_written_loses_none(store):
    class Interrupting:
        """A job in whose middle the signal comes, once."""

        is_first = True

        def __call__(self, tables):
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt

    with store._lock:  # so that not the thread gets it
        store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
        store._queue.append(Interrupting())
        store.add_steps(rows_of([(2, 2, "loss", 0.25)]))
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    assert steps_of(store) == [(1, 1, "loss", 0.5), (2, 2, "loss", 0.25)]


def add_steps_forever(path: str, first: str, connection) -> None:
    """Add a step after the other, as fast as the store takes them in, and tell which; until
    killed."""
    store = MetricsStore(path)
    store.truncate(step=int(first), epoch=0)
    connection.send("going")
    for step in range(int(first) + 1, 10_000_000):
        store.add_steps(rows_of([(step, step, "loss", step / 3), (step, step, "norm", math.nan)]))
        time.sleep(0)


def test_a_file_survives_many_kills_and_a_run_resumed_after_them_has_each_step_once(tmp_path):
    """What a reader has seen is never lost, and there is no gap: killed at any moment, also while
    cutting back."""
    random = Random(0)
    path = tmp_path / "metrics.sqlite"
    first = 0
    for number in range(7):
        process, connection = start(add_steps_forever, path, first)
        connection.recv()
        time.sleep(random.uniform(0, 0.4))
        # at the end there are steps, on any machine
        while number == 6 and MetricsView(path).last_step() is None:
            assert process.is_alive()
        seen = (MetricsView(path).last_step() or (0, 0))[0]
        process.kill()
        process.join()
        plain = sqlite3.connect(path)
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)], number
        plain.close()
        steps = [point.at for point in MetricsView(path).steps("loss")]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= seen
        first = random.randint(0, len(steps))
    store = MetricsStore(path)
    assert [row[3] for row in steps_of(store, "loss")] == [
        step / 3 for step in range(1, len(steps) + 1)
    ]
    assert_summaries_are_those_of_the_values(store)
    store.close()
    assert len(steps) > 0


def test_a_reader_at_the_end_of_a_run_leaves_no_log_behind(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
    store.flush()
    reader = open_for_reading(store.path)
    reader.execute("BEGIN")
    # has the file open while the store closes it
    reader.execute("SELECT * FROM step_values").fetchone()
    closing = threading.Thread(target=store.close)
    closing.start()
    reader.close()
    closing.join()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.sqlite"]


def test_a_view_that_is_kept_open_sees_what_is_written_later(tmp_path):
    path = tmp_path / "metrics.sqlite"
    with MetricsView(path) as view:
        assert view.curve("loss").places == []
        for step in range(1, 6):
            store = MetricsStore(path)
            store.add_steps(rows_of([(step, step, "loss", 1.0)]))
            store.flush()
            while_written = view.curve("loss").places
            store.close()
            assert while_written == view.curve("loss").places == list(range(1, step + 1))


def test_a_file_at_rest_that_is_written_while_it_is_read_is_read_again(tmp_path):
    path = tmp_path / "metrics.sqlite"
    found = []

    def add(step: int) -> None:
        store = MetricsStore(path)
        store.add_steps(rows_of([(step, step, "loss", 1.0)]))
        store.close()

    def read(file: sqlite3.Connection) -> list[tuple[int]]:
        rows = file.execute("SELECT step FROM step_values").fetchall()
        if not found:
            add(2)
        found.append(rows)
        return rows

    add(1)
    assert MetricsView(path)._read(read) == [(1,), (2,)]
    assert found[0] == [(1,)]

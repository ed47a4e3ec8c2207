"""The metrics store: exact values, cut back for a resume, read while written, safe when killed."""

import math
import sqlite3
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.errors import CheckpointError
from loopwright.run import MetricsStore
from tests.metrics.step_rows import rows_of
from tests.run.run_helpers import read_until, start, write_metrics_forever


@pytest.fixture
def store(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    yield store
    store.close()


def bits(rows):
    return [(*row[:3], struct.pack(">d", row[3])) for row in rows]


def test_rows_come_back_in_the_order_they_were_added(store):
    rows = [(1, 1, "loss", 0.5), (1, 2, "loss", 0.25), (1, 2, "accuracy", 0.75)]
    store.add_steps(rows_of(rows))
    assert store.steps() == rows
    assert store.steps("loss") == rows[:2]


def test_the_metrics_of_an_epoch_come_back_together(store):
    store.add_epoch(1, 120, {"eval_loss": 0.5, "loss": 0.25})
    assert store.epochs() == [(1, 120, "eval_loss", 0.5), (1, 120, "loss", 0.25)]
    assert store.epochs("loss") == [(1, 120, "loss", 0.25)]


def test_all_names_are_known(store):
    store.add_steps(rows_of([(1, 1, "loss", 1.0), (1, 1, "lr", 1.0)]))
    store.add_epoch(1, 1, {"eval_loss": 1.0, "loss": 1.0})
    assert store.names() == ["eval_loss", "loss", "lr"]


@given(st.lists(st.floats(), max_size=20))
@settings(max_examples=40, deadline=None)
def test_every_value_comes_back_bit_for_bit(tmp_path_factory, values):
    store = MetricsStore(tmp_path_factory.mktemp("metrics") / "metrics.sqlite")
    rows = [(step, step, "loss", value) for step, value in enumerate(values)]
    store.add_steps(rows_of(rows))
    assert bits(store.steps()) == bits(rows)
    store.close()


def test_plain_sql_sees_numbers_and_null_for_nan(store):
    store.add_steps(rows_of([(1, 1, "loss", 2.0), (2, 2, "loss", math.nan), (3, 3, "loss", 4.0)]))
    store.close()
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT avg(value), count(*) FROM step_metrics").fetchone() == (3.0, 3)
    connection.close()


def test_whole_numbers_come_back_as_floats(store):
    store.add_steps(rows_of([(1, 1, "n", 3), (1, 1, "b", True)]))
    assert [type(row[3]) for row in store.steps()] == [float, float]


def test_a_resumed_run_has_the_rows_of_one_that_was_not_interrupted(tmp_path):
    def add(store, first, last):
        for step in range(first, last + 1):
            store.add_steps(rows_of([(step // 2, step, "loss", 1 / step), (step // 2, step, "norm", math.nan)]))
            if step % 10 == 0:
                store.add_epoch(step // 10, step // 2, {"eval_loss": -0.0})

    straight, resumed = MetricsStore(tmp_path / "a"), MetricsStore(tmp_path / "b")
    add(straight, 1, 40)
    straight.flush()
    add(resumed, 1, 33)
    resumed.truncate(step=25, epoch=2)
    add(resumed, 26, 40)
    resumed.flush()
    for table in ("names", "step_values", "epoch_values", "summaries", "step_metrics", "epoch_metrics"):
        query = f"SELECT * FROM {table}"
        rows = [store._open().connection.execute(query).fetchall() for store in (straight, resumed)]
        assert rows[0] == rows[1]
        assert rows[0]
    straight.close()
    resumed.close()


def test_cutting_back_looks_only_at_the_rows_that_it_removes(store):
    """Counted in instructions of SQLite's own machine, hundreds at a time."""
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    costs = []
    for first in (1, 20_001):
        store.add_steps(rows_of((step, step, "loss", 1.0) for step in range(first, first + 20_000)))
        store.add_epoch(first, first, {"loss": 1.0})
        store.flush()
        store._open().connection.set_progress_handler(count, 100)
        counted[0] = 0
        store.truncate(step=first + 19_989, epoch=first)
        costs.append(counted[0])
        store._open().connection.set_progress_handler(None, 0)
    assert len(store.steps()) == 40_000 - 20
    assert max(costs) <= 40


def test_a_batch_that_fails_adds_nothing(store):
    def rows():
        yield (1, 1, "loss", 1.0)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        store.add_steps(rows_of(rows()))
    assert store.steps() == []


def test_rows_are_there_after_closing_and_opening_again(store):
    store.add_steps(rows_of([(1, 1, "loss", 1.0)]))
    store.sync()
    store.close()
    assert store.steps() == [(1, 1, "loss", 1.0)]


def test_nothing_is_created_before_it_is_used(store):
    assert not store.path.exists()


def test_looking_at_metrics_that_are_not_there_creates_nothing(tmp_path):
    store = MetricsStore(tmp_path / "absent.sqlite", read_only=True)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        store.steps()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "metrics.sqlite").write_bytes(b"not a database" * 500)
    with pytest.raises(CheckpointError, match=r"metrics\.sqlite cannot be opened"):
        MetricsStore(tmp_path / "metrics.sqlite").steps()


def test_another_process_reads_while_rows_are_added(store):
    store.add_steps([])
    store.flush()
    process, connection = start(read_until, store.path, 6400)
    connection.recv()
    for first in range(0, 6400, 64):
        store.add_steps(rows_of((step, step, "loss", 1.0) for step in range(first, first + 64)))
        store.flush()
    seen = connection.recv()
    process.join()
    assert seen == sorted(seen)
    assert all(count % 64 == 0 for count in seen)


def test_a_kill_loses_no_batch_that_was_added_and_leaves_no_half(tmp_path):
    process, connection = start(write_metrics_forever, tmp_path / "metrics.sqlite")
    for _ in range(20):
        committed = connection.recv()
    process.kill()
    process.join()
    store = MetricsStore(tmp_path / "metrics.sqlite")
    count = len(store.steps("loss"))
    store.close()
    assert count >= committed
    assert count % 64 == 0


def test_importing_the_package_does_not_import_sqlite():
    program = "import sys, loopwright.run; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

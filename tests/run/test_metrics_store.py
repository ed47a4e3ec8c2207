"""The metrics store: exact values, cut back for a resume, read while written, safe when killed."""

import math
import sqlite3
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.run import MetricsStore, MetricsView, StepRow
from loopwright.run.metrics_store import LogPoint, Tables, write_steps
from loopwright.run.schema import TABLES
from tests.metrics.step_rows import rows_from, rows_of
from tests.mistakes import raises
from tests.run.run_helpers import assert_summaries_are_those_of_the_values
from tests.runs import steps_of


def bits(rows):
    return [(*row[:3], struct.pack(">d", row[3])) for row in rows]


@given(st.lists(st.floats() | st.integers(0, 2**64 - 1), max_size=20))
@settings(max_examples=40, deadline=None)
def test_every_value_comes_back_bit_for_bit(tmp_path_factory, values):
    """Any eight bytes: NaN with any content, both zeros, subnormal and infinite numbers."""
    values = [
        struct.unpack(">d", value.to_bytes(8))[0] if isinstance(value, int) else value
        for value in values
    ]
    store = MetricsStore(tmp_path_factory.mktemp("metrics") / "metrics.sqlite")
    rows = [(step, step, "loss", value) for step, value in enumerate(values)]
    store.add_steps(rows_of(rows))
    assert bits(steps_of(store)) == bits(rows)
    store.close()


def test_plain_sql_sees_numbers_and_null_for_nan(store):
    store.add_steps(rows_of([(1, 1, "loss", 2.0), (2, 2, "loss", math.nan), (3, 3, "loss", 4.0)]))
    store.close()
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT avg(value), count(*) FROM step_values").fetchone() == (
        3.0,
        3,
    )
    connection.close()


def test_a_resumed_run_has_the_rows_of_one_that_was_not_interrupted(tmp_path):
    def add(store, first, last):
        for step in range(first, last + 1):
            store.add_steps(
                rows_of([(step // 2, step, "loss", 1 / step), (step // 2, step, "norm", math.nan)])
            )
            if step % 10 == 0:
                store.add_epoch(step // 10, step // 2, {"eval_loss": -0.0})

    straight, resumed = MetricsStore(tmp_path / "a"), MetricsStore(tmp_path / "b")
    add(straight, 1, 40)
    straight.flush()
    add(resumed, 1, 33)
    resumed.truncate(step=25, epoch=2)
    add(resumed, 26, 40)
    resumed.flush()
    for table in ("names", "step_values", "epoch_values", "summaries"):
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
    assert len(steps_of(store)) == 40_000 - 20
    assert max(costs) <= 40


class Texts(sqlite3.Connection):
    """A connection that notes the texts of its statements."""

    def execute(self, text, *values):
        self.texts = {*getattr(self, "texts", ()), text}
        return super().execute(text, *values)


def test_there_are_few_statements_however_many_rows_are_written_at_once(tmp_path):
    """SQLite compiles a statement once, and keeps it: one per number of rows took 200 MB in a long
    run."""
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Texts)
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} {columns}")
    tables, step, connection.texts = Tables(connection, tmp_path), 1, set()
    for size in [*range(1, 40), 4097]:
        rows = rows_from(step, [{"loss": step + at + 0.25, "zero": 0.0} for at in range(size)])
        write_steps(tables, [LogPoint(rows, wall=step)])
        step += size
    # 1, 2, 4, ... 64, and 4096
    assert sum("step_values VALUES" in text for text in connection.texts) == 2 * 8
    assert len(connection.texts) < 30, "of 128 that Python's sqlite3 keeps"
    query = (
        "SELECT step, value FROM step_values v JOIN names n ON v.name = n.id WHERE n.name = "
        "'loss' ORDER BY step"
    )
    assert connection.execute(query).fetchall() == [(at, at + 0.25) for at in range(1, step)]
    connection.close()


def test_looking_at_metrics_that_are_not_there_creates_nothing(tmp_path):
    assert steps_of(MetricsStore(tmp_path / "absent.sqlite")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "metrics.sqlite").write_bytes(b"not a database" * 500)
    with raises("metrics-unreadable", "metrics.sqlite"):
        steps_of(MetricsStore(tmp_path / "metrics.sqlite"))


def test_a_row_that_can_never_be_written_is_named_and_keeps_no_other_back(store):
    with store._lock:  # so that the thread does not write them one by one
        store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
        store.add_steps([StepRow(2, 2, 0, 0, 0.0, {"loss": "high"})])
        store.add_steps(rows_of([(3, 3, "loss", 0.25)]))
        with pytest.raises(ValueError, match="could not convert string to float: 'high'"):
            store.flush()
    assert steps_of(store) == [(1, 1, "loss", 0.5), (3, 3, "loss", 0.25)]


def test_a_step_that_is_added_again_replaces_itself_and_readers_start_again(store):
    store.add_steps(rows_of((step, step, "loss", 1.0) for step in range(20)))
    store.flush()
    view = MetricsView(store.path)
    cursor = view.cursor()
    store.add_steps(rows_of([(7, 7, "loss", 50.0)]))
    store.flush()
    assert [row[3] for row in steps_of(store)] == [1.0] * 7 + [50.0] + [1.0] * 12
    assert view.since(cursor, ["loss"]).is_reset
    assert_summaries_are_those_of_the_values(store)


ADDED = st.tuples(st.just("add"), st.integers(1, 90), st.integers(0, 3))
CUT = st.tuples(st.just("cut"), st.integers(0, 300), st.just(0))
AGAIN = st.tuples(st.just("again"), st.integers(0, 300), st.integers(1, 20))


@given(st.lists(ADDED | CUT | AGAIN, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_summaries_are_those_of_the_values_whatever_was_added_and_cut(
    tmp_path_factory, actions, random
):
    store = MetricsStore(tmp_path_factory.mktemp("metrics") / "metrics.sqlite")
    last = 0
    for action, number, other in actions:
        if action == "cut":
            store.truncate(step=number, epoch=0)
            last = min(last, number)
            continue
        first = last + 1 + other if action == "add" else min(number, last)
        steps = range(first, first + (number if action == "add" else other))
        pick = [1.0, -2.5, 1e300, math.nan, math.inf, -math.inf, -0.0, 5e-324]
        store.add_steps(
            rows_of((step, step, random.choice("ab"), random.choice(pick)) for step in steps)
        )
        last = max(last, *steps)
    store.flush()
    assert_summaries_are_those_of_the_values(store)
    store.close()


def test_a_file_of_a_later_version_is_refused(store):
    store.add_epoch(1, 1, {"loss": 1.0})
    store.close()
    plain = sqlite3.connect(store.path)
    plain.execute("PRAGMA user_version=3")
    plain.close()
    for use in (
        MetricsView(store.path).names,
        lambda: store.truncate(step=0, epoch=0),
        store.close,
    ):
        with raises("metrics-version", "version 3", "0 and 2"):
            use()
    store._queue.clear()

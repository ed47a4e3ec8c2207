"""The metrics store: exact values, cut back for a resume, read while written, safe when killed."""

import math
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.errors import CheckpointError
from loopwright.metrics.media import Histogram, Images, Media, Table
from loopwright.run import MetricsStore, MetricsView, StepRow
from loopwright.run.metrics_writing import LogPoint, Tables, write_steps
from loopwright.run.schema import TABLES
from tests.forked import call_forked
from tests.metrics.step_rows import rows_from, rows_of
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


@given(st.lists(st.floats() | st.integers(0, 2**64 - 1), max_size=20))
@settings(max_examples=40, deadline=None)
def test_every_value_comes_back_bit_for_bit(tmp_path_factory, values):
    """Any eight bytes: NaN with any content, both zeros, subnormal and infinite numbers."""
    values = [struct.unpack(">d", value.to_bytes(8))[0] if isinstance(value, int) else value for value in values]
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


class Texts(sqlite3.Connection):
    """A connection that notes the texts of its statements."""

    def execute(self, text, *values):
        self.texts = {*getattr(self, "texts", ()), text}
        return super().execute(text, *values)


def test_there_are_few_statements_however_many_rows_are_written_at_once(tmp_path):
    """SQLite compiles a statement once, and keeps it: one per number of rows took 200 MB in a long run."""
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Texts)
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} {columns}")
    tables, step, connection.texts = Tables(connection, tmp_path), 1, set()
    for size in [*range(1, 40), 4097]:
        rows = rows_from(step, [{"loss": step + at + 0.25, "zero": 0.0} for at in range(size)])
        write_steps(tables, [LogPoint(rows, wall=step)])
        step += size
    assert sum("step_values VALUES" in text for text in connection.texts) == 2 * 8  # 1, 2, 4, ... 64, and 4096
    assert len(connection.texts) < 30, "of 128 that Python's sqlite3 keeps"
    query = "SELECT step, value FROM step_values v JOIN names n ON v.name = n.id WHERE n.name = 'loss' ORDER BY step"
    assert connection.execute(query).fetchall() == [(at, at + 0.25) for at in range(1, step)]
    connection.close()


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


def test_rows_are_committed_behind_the_caller_without_being_asked_for(store):
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
    store.add_epoch(1, 1, {"eval_loss": 0.25})
    view = MetricsView(store.path)
    while not view.cursor().epoch:  # until the thread has been there; a store without one makes this hang
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
    assert [line.text for line in MetricsView(store.path).log_lines()] == ["before", "from the fork"]
    store.add_steps(rows_of([(2, 2, "loss", 0.25)]))
    assert store.steps() == [(1, 1, "loss", 0.5), (2, 2, "loss", 0.25)]


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


def test_a_row_that_can_never_be_written_is_named_and_keeps_no_other_back(store):
    with store._lock:  # so that the thread does not write them one by one
        store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
        store.add_steps([StepRow(2, 2, 0, 0, 0.0, {"loss": "high"})])
        store.add_steps(rows_of([(3, 3, "loss", 0.25)]))
        with pytest.raises(ValueError, match="could not convert string to float: 'high'"):
            store.flush()
    assert store.steps() == [(1, 1, "loss", 0.5), (3, 3, "loss", 0.25)]


def test_a_step_that_is_added_again_replaces_itself_and_readers_start_again(store):
    store.add_steps(rows_of((step, step, "loss", 1.0) for step in range(20)))
    store.flush()
    view = MetricsView(store.path)
    cursor = view.cursor()
    store.add_steps(rows_of([(7, 7, "loss", 50.0)]))
    store.flush()
    assert [row[3] for row in store.steps()] == [1.0] * 7 + [50.0] + [1.0] * 12
    assert view.since(cursor, ["loss"]).is_reset
    assert_summaries_are_those_of_the_values(store)


def test_events_of_what_is_done_again_are_removed_and_history_stays(store):
    kinds = ("started", "evaluation", "checkpoint", "best", "rewind", "micro_batches", "signal", "resumed")
    for step in (5, 15):
        for kind in kinds:
            store.add_event(kind, f"at {step}", place=(step, step, 0, step, 0.5), detail={"step": step})
    store.add_log_line("INFO", "hello")
    store.truncate(step=10, epoch=0)
    events = MetricsView(store.path).events()
    assert [event.kind for event in events if event.step == 5] == list(kinds)
    assert [event.kind for event in events if event.step == 15] == [*kinds[:1], *kinds[4:]]
    assert events[0].detail == {"step": 5}
    assert [line.text for line in MetricsView(store.path).log_lines()] == ["hello"]


def test_details_and_tables_are_strict_json_for_sql(store):
    store.add_event("best", detail={"loss": math.nan, "all": [math.inf, -math.inf, 1.5]})
    store.add_media(media("table", Table(("a",), ((math.nan,), (None,))), 1))
    store.flush()
    view = MetricsView(store.path)
    assert view.events()[0].detail == {"loss": "nan", "all": ["inf", "-inf", 1.5]}
    assert view.query("SELECT detail ->> 'loss', json_valid(detail) FROM events").rows == [("nan", 1)]
    assert view.media()[0].content == {"columns": ["a"], "rows": [["nan"], [None]]}


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
    assert store.steps() == [(1, 1, "loss", 0.5), (2, 2, "loss", 0.25)]


def media(name, content, step):
    return Media(name, content, step, step, 0, step, 0.5, 1e9)


def test_media_come_back_and_images_are_files(store, tmp_path):
    contents = {
        "images": Images((b"first", b"second", b"first"), ("a", "", "c")),
        "weights": Histogram((0.0, 0.5, 1.0), (3, 4)),
        "note": "some <text>",
        "table": Table(("a", "b"), ((1, "x"), (None, True))),
    }
    for name, content in contents.items():
        store.add_media(media(name, content, 3))
    store.flush()
    view = MetricsView(store.path)
    images = view.media("images")
    assert [(tmp_path / item.file).read_bytes() for item in images] == [b"first", b"second", b"first"]
    assert [(item.position, item.caption, item.step) for item in images] == [(0, "a", 3), (1, "", 3), (2, "c", 3)]
    assert view.media("weights")[0].content == {"edges": [0.0, 0.5, 1.0], "counts": [3, 4]}
    assert view.media("note")[0].content == "some <text>"
    assert view.media("table")[0].content == {"columns": ["a", "b"], "rows": [[1, "x"], [None, True]]}
    assert view.media_names() == {"images": "image", "weights": "histogram", "note": "text", "table": "table"}
    assert view.media_item(images[1].id) == images[1]


def test_media_of_a_step_that_is_trained_again_are_replaced_with_their_files(store, tmp_path):
    for step in (1, 2):
        store.add_media(media("images", Images((b"same", b"%d" % step), ("", "")), step))
    store.truncate(step=1, epoch=0)
    kept = {item.file for item in MetricsView(store.path).media()}
    assert {f"media/{path.name}" for path in (tmp_path / "media").iterdir()} == kept
    assert len(kept) == 2
    store.add_media(media("images", Images((b"new",), ("",)), 1))
    store.flush()
    (item,) = MetricsView(store.path).media()
    assert [path.read_bytes() for path in (tmp_path / "media").iterdir()] == [b"new"]
    assert (tmp_path / item.file).is_file()


def test_several_items_of_one_name_and_step_are_kept_until_the_step_is_taken_again(store):
    place = (3, 3, 0, 3, 0.5, 1e9)
    for number in range(3):
        store.add_media(Media("images", Images((b"%d" % number, b"x"), ("", "")), *place, position=2 * number))
    store.flush()
    view = MetricsView(store.path)
    assert [item.position for item in view.media()] == [0, 1, 2, 3, 4, 5]
    store.add_media(Media("images", Images((b"again",), ("",)), *place))
    store.flush()
    assert [item.position for item in view.media()] == [0]


ADDED = st.tuples(st.just("add"), st.integers(1, 90), st.integers(0, 3))
CUT = st.tuples(st.just("cut"), st.integers(0, 300), st.just(0))
AGAIN = st.tuples(st.just("again"), st.integers(0, 300), st.integers(1, 20))


@given(st.lists(ADDED | CUT | AGAIN, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_summaries_are_those_of_the_values_whatever_was_added_and_cut(tmp_path_factory, actions, random):
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
        store.add_steps(rows_of((step, step, random.choice("ab"), random.choice(pick)) for step in steps))
        last = max(last, *steps)
    store.flush()
    assert_summaries_are_those_of_the_values(store)
    store.close()


def assert_summaries_are_those_of_the_values(store):
    expected = {}
    for _, step, name, value in store.steps():
        for level in range(1, 7):
            expected.setdefault((name, level, step >> 3 * level), []).append((step, value))
    query = "SELECT n.name, level, bucket, first_step, last_step, count, nonfinite, min, max, total FROM summaries s"
    rows = store._open().connection.execute(f"{query} JOIN names n ON n.id = s.name").fetchall()
    found = {row[:3]: row[3:] for row in rows}
    assert found.keys() == expected.keys()
    for key, points in expected.items():
        values = [value for _, value in points]
        numbers = [value for value in values if value == value]
        finite = [value for value in values if math.isfinite(value)]
        first, last, count, nonfinite, low, high, total = found[key]
        assert (first, last) == (points[0][0], points[-1][0])
        assert (count, nonfinite) == (len(values), len(values) - len(finite))
        assert (low, high) == ((min(numbers), max(numbers)) if numbers else (None, None))
        assert math.isclose(total, sum(finite), rel_tol=1e-12)


def add_steps_forever(path: str, first: str, connection) -> None:
    """Add a step after the other, as fast as the store takes them in, and tell which; until killed."""
    store = MetricsStore(path)
    store.truncate(step=int(first), epoch=0)
    connection.send("going")
    for step in range(int(first) + 1, 10_000_000):
        store.add_steps(rows_of([(step, step, "loss", step / 3), (step, step, "norm", math.nan)]))
        time.sleep(0)


def test_a_file_survives_many_kills_and_a_run_resumed_after_them_has_each_step_once(tmp_path):
    """What a reader has seen is never lost, and there is no gap: killed at any moment, also while cutting back."""
    random = Random(0)
    path = tmp_path / "metrics.sqlite"
    first = 0
    for number in range(7):
        process, connection = start(add_steps_forever, path, first)
        connection.recv()
        time.sleep(random.uniform(0, 0.4))
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
    assert [row[3] for row in store.steps("loss")] == [step / 3 for step in range(1, len(steps) + 1)]
    assert_summaries_are_those_of_the_values(store)
    store.close()
    assert len(steps) > 0


def test_a_reader_at_the_end_of_a_run_leaves_no_log_behind(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    store.add_steps(rows_of([(1, 1, "loss", 0.5)]))
    store.flush()
    rows = MetricsView(store.path).by_place("steps")
    next(rows)  # has the file open while the store closes it
    closing = threading.Thread(target=store.close)
    closing.start()
    rows.close()
    closing.join()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.sqlite"]


def test_a_file_of_a_later_version_is_refused(store, mistake):
    store.add_epoch(1, 1, {"loss": 1.0})
    store.close()
    plain = sqlite3.connect(store.path)
    plain.execute("PRAGMA user_version=3")
    plain.close()
    with mistake("Files", "`metrics.sqlite` of a later Loopwright", CheckpointError, match="have version 3"):
        MetricsView(store.path).names()
    for use in (lambda: store.truncate(step=0, epoch=0), store.close):
        with pytest.raises(CheckpointError, match=r"reads the versions 0 and 2\. Install the version"):
            use()
    store._queue.clear()

"""Metrics of the first edition: read as they are, and brought to today's tables when their run goes
on."""

from __future__ import annotations

import math
import shutil
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from loopwright.run import MetricsStore, MetricsView
from loopwright.run.schema import VIEWS
from tests.metrics.step_rows import rows_of
from tests.run.run_helpers import start
from tests.runs import steps_of

STORED = sorted((Path(__file__).parents[1] / "stored" / "v0_first_edition").rglob("metrics.sqlite"))
OLD = 'SELECT {0}, "update", name, value, exact FROM {0}_metrics ORDER BY {0}, name'
NEW = (
    'SELECT v.{0}, v."update", n.name, v.value, v.exact FROM {0}_values v '
    "JOIN names n ON n.id = v.name ORDER BY v.{0}, n.name"
)


def write_old(path: Path, rows: list[tuple[int, int, str, float]]) -> Path:
    """A file as the first edition wrote it."""
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("PRAGMA journal_mode=WAL")
        old.execute(
            'CREATE TABLE step_metrics ("update" INTEGER, step INTEGER, name TEXT, value REAL, '
            "exact BLOB)"
        )
        old.execute(
            'CREATE TABLE epoch_metrics (epoch INTEGER, "update" INTEGER, name TEXT, value REAL, '
            "exact BLOB)"
        )
        odd = (value != value or (value == 0 and math.copysign(1, value) < 0) for *_, value in rows)
        cells = [
            (*row, struct.pack(">d", row[3]) if is_odd else None)
            for row, is_odd in zip(rows, odd, strict=True)
        ]
        old.executemany("INSERT INTO step_metrics VALUES (?, ?, ?, ?, ?)", cells)
        old.execute("INSERT INTO epoch_metrics VALUES (1, 8, 'eval_loss', 0.5, NULL)")
    return path


def rows_in(path: Path) -> list[list[tuple]]:
    with closing(sqlite3.connect(path)) as plain:
        (version,) = plain.execute("PRAGMA user_version").fetchone()
        query = NEW if version else OLD
        return [plain.execute(query.format(level)).fetchall() for level in ("step", "epoch")]


def copied(path: Path, folder: Path) -> Path:
    return Path(shutil.copy(path, folder / "metrics.sqlite"))


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.parts[-3])
def test_a_stored_run_is_read_without_being_changed_and_keeps_its_rows_when_it_goes_on(
    stored, tmp_path
):
    path = copied(stored, tmp_path)
    before, content = rows_in(copied(stored, tmp_path)), path.read_bytes()
    view = MetricsView(path)
    read = {name: (view.steps(name), view.epochs(name), view.curve(name)) for name in view.names()}
    store = MetricsStore(path)
    assert len(steps_of(store)) == len(before[0])
    store.close()
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.sqlite"]
    last = view.last_step()[0]
    store = MetricsStore(path)
    store.truncate(step=last, epoch=100)
    store.add_steps(rows_of([(last + 1, last + 1, "loss", 0.5)]))
    store.truncate(step=last, epoch=100)
    store.close()
    assert rows_in(path) == before
    now = MetricsView(path)
    assert {
        name: (now.steps(name), now.epochs(name), now.curve(name)) for name in now.names()
    } == read
    assert sum(map(len, before)) > 0


def test_values_are_the_same_bit_for_bit_before_and_after(tmp_path):
    values = [
        0.1,
        math.nan,
        -0.0,
        0.0,
        math.inf,
        -math.inf,
        5e-324,
        struct.unpack(">d", b"\x7f\xf0" + b"\0" * 5 + b"\7")[0],
    ]
    path = write_old(
        tmp_path / "metrics.sqlite", [(i, i, "x", value) for i, value in enumerate(values, start=1)]
    )
    expected = [struct.pack(">d", value) for value in values]
    assert [struct.pack(">d", point.value) for point in MetricsView(path).steps("x")] == expected
    store = MetricsStore(path)
    assert [struct.pack(">d", row[3]) for row in steps_of(store, "x")] == expected
    store.close()


def test_every_view_answers_for_a_file_of_either_edition(tmp_path):
    old = write_old(
        tmp_path / "old.sqlite", [(step, step, "loss", 1 / step) for step in range(1, 100)]
    )
    new = Path(shutil.copy(old, tmp_path / "new.sqlite"))
    store = MetricsStore(new)
    store.truncate(step=1000, epoch=1000)
    store.close()
    for name in VIEWS:
        answers = [MetricsView(path).query(f"SELECT * FROM {name}") for path in (old, new)]
        assert answers[0].columns == answers[1].columns
        assert answers[0].rows == answers[1].rows
        assert len(answers[0].rows) == (99 if name == "metrics" else 1)


def test_curves_of_a_file_of_the_first_edition_are_those_of_today(tmp_path):
    rows = [
        ((step + 1) // 2, step, "loss", math.sin(step) if step % 700 else math.nan)
        for step in range(1, 5000)
    ]
    old = write_old(tmp_path / "old.sqlite", rows)
    new = Path(shutil.copy(old, tmp_path / "new.sqlite"))
    store = MetricsStore(new)
    store.truncate(step=10_000, epoch=10)
    store.close()
    ours, theirs = (MetricsView(path).curve("loss", points=100) for path in (new, old))
    for curve in (ours, theirs):
        assert (sum(curve.count), sum(curve.nonfinite), len(curve.places)) == (4999, 7, 100)
        assert (min(curve.min), max(curve.max)) == (
            min(map(math.sin, range(1, 5000))),
            max(map(math.sin, range(1, 5000))),
        )
    assert MetricsView(old).curve("loss", x="update", points=100).places[-1] > 2400
    unknown = MetricsView(old).curve("loss", x="wall")
    assert (unknown.places, unknown.unplaced) == ([], 4999)


def go_on(path: str, connection) -> None:
    connection.send("going")
    MetricsStore(path).truncate(step=10**9, epoch=10**9)
    connection.send("done")


def test_a_kill_while_a_file_is_brought_to_todays_tables_leaves_one_or_the_other(tmp_path):
    rows = [(step, step, name, step / 7) for step in range(1, 6000) for name in ("loss", "norm")]
    template = write_old(tmp_path / "template", rows)
    before = rows_in(template)
    random, versions = Random(1), set()
    for number in range(8):
        path = Path(shutil.copy(template, tmp_path / f"{number}.sqlite"))
        process, connection = start(go_on, path)
        connection.recv()
        time.sleep(random.uniform(0, 0.12))
        process.kill()
        process.join()
        assert rows_in(path) == before
        with closing(sqlite3.connect(path)) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            versions.add(plain.execute("PRAGMA user_version").fetchone()[0])
    assert versions <= {0, 2}

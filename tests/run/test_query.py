"""SQL over a run's metrics, read only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loopwright.errors import ConfigurationError
from loopwright.run import MetricsStore, MetricsView
from loopwright.run.metrics_view import QUERIED
from tests.demo_runs import make_demo_run
from tests.metrics.step_rows import rows_of
from tests.mistakes import raises

STORED = Path(__file__).parents[1] / "stored" / "v0_first_edition" / "plateau" / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_run(tmp_path_factory.mktemp("runs") / "run", steps=300, epochs=3)


def test_each_view_can_be_asked(run):
    for view in QUERIED:
        answer = MetricsView(run / "metrics.sqlite").query(f"SELECT count(*) AS number FROM {view}")
        assert answer.columns == ("number",)
        assert answer.rows[0][0] > 0


def test_wrong_sql_is_answered_with_the_views_and_their_columns(run):
    view = MetricsView(run / "metrics.sqlite")
    with raises("query-failed", "no such column: valu"):
        view.query("SELECT valu FROM metrics")
    with pytest.raises(
        ConfigurationError, match=r"no such table: steps.*\n  metrics\(name, step, update, epoch"
    ):
        view.query("SELECT * FROM steps")
    with pytest.raises(ConfigurationError, match="syntax error"):
        view.query("SELEC")


WRITING = [
    "INSERT INTO names VALUES (99, 'x')",
    "DELETE FROM step_values",
    "UPDATE facts SET value = 7",
    "DROP TABLE names",
    "DELETE FROM metrics",
    "CREATE TABLE other (a)",
    "CREATE TEMP TABLE other (a)",
    "PRAGMA user_version = 9",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "ATTACH 'other.sqlite' AS other",
    "VACUUM INTO 'copy.sqlite'",
    "BEGIN",
    "REINDEX",
    "SELECT load_extension('x')",
    "SELECT 1; DROP TABLE names",
]


@pytest.mark.parametrize("sql", WRITING)
def test_nothing_can_be_written_or_opened(run, tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copy(run / "metrics.sqlite", tmp_path / "metrics.sqlite"))
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="It can only read: write one SELECT statement"):
        MetricsView(path).query(sql)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.sqlite"]


def test_a_run_that_is_being_written_is_asked(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    for step in range(1, 4):
        store.add_steps(rows_of([(step, step, "loss", 1.0)]))
        store.flush()
        assert MetricsView(store.path).query("SELECT max(step) FROM metrics").rows == [(step,)]
    store.close()


def test_a_run_of_the_first_edition_is_asked_by_the_same_views():
    sql = "SELECT step, wall FROM metrics WHERE name = 'loss'"
    rows = MetricsView(STORED / "metrics.sqlite").query(sql).rows
    assert rows == [(step, None) for step in range(1, len(rows) + 1)]

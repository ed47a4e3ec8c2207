"""`loopwright query`: SQL over a run's metrics, read only."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from loopwright.cli import main
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


def ask(run: Path, sql: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["query", str(run), sql, *options]) == 0
    return capsys.readouterr().out


def test_rows_are_a_table_json_or_csv(run, capsys):
    sql = "SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY step LIMIT 2"
    points = MetricsView(run / "metrics.sqlite").steps("loss")[:2]
    assert json.loads(ask(run, sql, capsys, "--json")) == [
        {"step": p.at, "value": p.value} for p in points
    ]
    rows = list(csv.reader(io.StringIO(ask(run, sql, capsys, "--csv"))))
    assert rows == [["step", "value"], *([str(p.at), repr(p.value)] for p in points)]
    table = ask(run, sql, capsys).splitlines()
    assert table[0].split() == ["step", "value"]
    assert table[1].split() == ["1", f"{points[0].value:.6g}"]


def test_each_view_can_be_asked(run, capsys):
    for view in QUERIED:
        answer = ask(run, f"SELECT count(*) AS number FROM {view}", capsys, "--json")
        assert json.loads(answer)[0]["number"] > 0


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


def test_a_run_of_the_first_edition_is_asked_by_the_same_views(capsys):
    rows = json.loads(
        ask(
            STORED,
            "SELECT name, step, value, wall FROM metrics WHERE name = 'loss'",
            capsys,
            "--json",
        )
    )
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["wall"] for row in rows} == {None}


def test_sql_alone_is_about_the_last_run_and_may_come_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_demo_run(tmp_path / "runs/first", steps=10, epochs=1, resumed=False, media=False)
    for words in (["SELECT 1 AS one"], ["SELECT 1 AS one", "first"], ["first", "SELECT 1 AS one"]):
        assert main(["query", *words]) == 0
        assert capsys.readouterr().out.split() == ["one", "1"]

"""`loopwright query RUN "SELECT ..."`: SQL over what a run has logged, read only."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

from ..run.querying import Answer, list_views, run_query
from ..run.reading import METRICS
from .arguments import LAST, add_command, add_run
from .exits import OK
from .output import number_text, print_fitted, print_json, print_table, printable
from .selection import find_run

MORE = """\
Without SQL the tables are listed with their columns: metrics, epochs, events, media, log_lines, clock and others.
NaN is NULL. Queries only read, also while the run is training."""
EXAMPLE = """\
query
query "SELECT name, min(value) FROM epochs GROUP BY name"
query runs/first "SELECT * FROM epochs WHERE name = 'loss'" --csv"""
MOST_ROWS = 1000  # of a table for people


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Query the metrics of a run with SQL."
    parser = add_command(
        parsers, common, "query", run=query_command, what=what, more=MORE, example=EXAMPLE
    )
    add_run(parser, "run_name")
    parser.add_argument(
        "sql", metavar="SQL", nargs="?", help="one SELECT statement (default: list the tables)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print a JSON list with one object per row"
    )
    form.add_argument("--csv", action="store_true", help="print CSV, with the column names first")


def query_command(options: argparse.Namespace) -> int:
    name = options.run_name
    sql = options.sql
    if len(name.split()) > 1 and not Path(name).exists():  # SQL alone, or SQL first
        name, sql = sql or LAST, name
    path = find_run(name, options.root).path / METRICS
    if not (sql or "").strip():
        views = [(name, ", ".join(columns), what) for name, columns, what in list_views(path)]
        answer = Answer(("table", "columns", "content"), list(views))
        if not (options.json or options.csv):
            print_fitted(answer.columns, views, fold="12")
            return OK
    else:
        answer = run_query(path, sql)
    if options.json:
        print_json(
            [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows]
        )
    elif options.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows(
            [answer.columns, *([_plain(value) for value in row] for row in answer.rows)]
        )
    else:
        _print_rows(answer)
    return OK


def _print_rows(answer: Answer) -> None:
    rows = [[_text(value) for value in row] for row in answer.rows[:MOST_ROWS]]
    numeric = [
        all(isinstance(row[index], int | float) for row in answer.rows)
        for index in range(len(answer.columns))
    ]
    right = "".join(
        str(index) for index, is_number in enumerate(numeric) if is_number and index < 10
    )
    print_table(answer.columns, rows, right=right if answer.rows else "")
    if (left_out := len(answer.rows) - MOST_ROWS) > 0:
        print(
            f"and {left_out} more rows: --csv and --json print all of them; LIMIT in the query "
            "returns fewer",
            file=sys.stderr,
        )


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _text(value: object) -> str:
    if value is None:
        return "-"
    return number_text(value) if isinstance(value, float) else printable(str(_plain(value)))

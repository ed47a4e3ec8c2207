"""`loopwright query RUN "SELECT ..."`: SQL over what a run has logged, read only."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from ..run.metrics_view import Answer
from .commands import LAST
from .output import OK, number_text, print_fitted, print_json, print_table, printable
from .selection import find_run

MOST_ROWS = 1000  # of a table for people


def query_command(options: argparse.Namespace) -> int:
    name = options.run_name
    sql = options.sql
    if len(name.split()) > 1 and not Path(name).exists():  # SQL alone, or SQL first
        name, sql = sql or LAST, name
    metrics = find_run(name, options.root).metrics
    if not (sql or "").strip():
        views = [(name, ", ".join(columns), what) for name, columns, what in metrics.views()]
        answer = Answer(("table", "columns", "content"), list(views))
        if not (options.json or options.csv):
            print_fitted(answer.columns, views, fold="12")
            return OK
    else:
        answer = metrics.query(sql)
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
    right = "".join(str(index) for index, is_number in enumerate(numeric[:10]) if is_number)
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

"""`loopwright query RUN "SELECT ..."`: SQL over what a run has logged, read only."""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

from ..errors import ConfigurationError
from ..run.querying import Answer, list_views, run_query
from ..run.reading import METRICS
from .arguments import RUN, add_command, add_root, find_run
from .exits import OK
from .output import number_text, print_json, print_table, printable

MORE = """\
The views are metrics(name, step, update, epoch, samples, seconds, wall, value), epochs, events, media, log_lines and
clock; without a query they are listed with their columns. NaN is NULL. Nothing is written, and the run may go on
meanwhile."""
EXAMPLE = """\
query last
query last "SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY value DESC LIMIT 5"
query runs/first "SELECT * FROM epochs WHERE name LIKE 'eval_%'" --csv"""
MOST_ROWS = 1000  # of a table for people


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Ask a run's metrics by SQL."
    parser = add_command(parsers, common, "query", run=query_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("run_name", metavar="RUN", help=RUN)
    parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT statement (default: list the views)")
    add_root(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: a list of objects")
    form.add_argument("--csv", action="store_true", help="print CSV, with a line of names first")


def query_command(options: argparse.Namespace) -> int:
    path = find_run(options.run_name, options.root).path / METRICS
    if not (options.sql or "").strip():
        if not path.is_file():
            raise ConfigurationError(f"There are no metrics to ask: {path} is not there. The run has not logged yet.")
        views = [(name, ", ".join(columns), what) for name, columns, what in list_views(path)]
        answer = Answer(("view", "columns", "what"), list(views))
    else:
        answer = run_query(path, options.sql)
    if options.json:
        print_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    elif options.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([answer.columns, *([_plain(value) for value in row] for row in answer.rows)])
    else:
        _print_rows(answer)
    return OK


def _print_rows(answer: Answer) -> None:
    rows = [[_text(value) for value in row] for row in answer.rows[:MOST_ROWS]]
    numeric = [all(isinstance(row[index], int | float) for row in answer.rows) for index in range(len(answer.columns))]
    right = "".join(str(index) for index, is_number in enumerate(numeric) if is_number and index < 10)
    print_table(answer.columns, rows, right=right if answer.rows else "")
    if (left_out := len(answer.rows) - MOST_ROWS) > 0:
        print(
            f"and {left_out} more rows: --csv and --json print all, LIMIT in the query asks for fewer", file=sys.stderr
        )


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _text(value: object) -> str:
    if value is None:
        return "-"
    return number_text(value) if isinstance(value, float) else printable(str(_plain(value)))

"""`loopwright query RUN "SELECT ..."`: SQL over what a run has logged, read only."""

from __future__ import annotations

import argparse

from .output import OK, number_text, print_json, print_table
from .selection import find_run


def query_command(options: argparse.Namespace) -> int:
    answer = find_run(options.run_name, options.root).metrics.query(options.sql)
    if options.json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        print_table(answer.columns, [[number_text(value) for value in row] for row in answer.rows])
    return OK

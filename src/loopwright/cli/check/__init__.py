"""`loopwright check`: a run file tried on a few samples, or a program on simulated processes."""

from __future__ import annotations

import argparse
from pathlib import Path

from .config import check_config_command
from .program import check_program_command

__all__ = ["check_command"]

SUFFIXES = (".yaml", ".yml", ".json")


def check_command(options: argparse.Namespace) -> int:
    program = Path(options.program)
    if program.suffix in SUFFIXES:
        return check_config_command(program, options.arguments, as_json=options.json)
    return check_program_command(program, options)

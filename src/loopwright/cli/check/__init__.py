"""`loopwright check`: a run file tried on a few samples, or a program on simulated processes."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from ...errors import ConfigurationError
from .config import check_config
from .program import check_program

__all__ = ["check_command"]

SUFFIXES = (".yaml", ".yml", ".json")
OPTIONS = ("--json", "--debug")  # which may also come after a run file
OF_PROGRAMS = ("--processes", "--runtime", "--mesh", "--all", *OPTIONS)  # only before a program


def check_command(options: argparse.Namespace) -> int:
    program = Path(options.program)
    if not program.is_file():
        raise ConfigurationError(
            "no-program",
            f"{program} is no file: name a run file (YAML), or the Python program that trains.",
        )
    is_config = program.suffix in SUFFIXES
    as_json = options.json or (is_config and "--json" in options.arguments)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        if is_config:
            overrides = [text for text in options.arguments if text not in OPTIONS]
            report = check_config(program, overrides)
        else:
            report = check_program(program, options)
            late = [t for t in options.arguments if t.partition("=")[0] in OF_PROGRAMS]
            if late:
                what = "was passed to the program: options of `check` come before its name."
                report.note("", f"{', '.join(late)} {what}")
    return report.print(as_json=as_json)

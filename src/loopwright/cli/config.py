"""`loopwright config show|validate`: print a run file resolved, or its mistakes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import yaml

from ..config import (
    Config,
    ConfigError,
    Problem,
    ValueRange,
    expand_sweep,
    load_config,
    load_variant,
    read_sweep,
)
from ..errors import ConfigurationError, LoopwrightError
from ..interfaces.configured import Experiment
from ..text import counted
from .app import is_override
from .output import FOUND, OK, RED, print_json, printable, say
from .selection import check_run_file

MAX_RUNS = 500


def show_command(options: argparse.Namespace) -> int:
    check_run_file(options.config, "config show")
    config = load_config(options.config, options.overrides)
    if options.json:
        print_json(yaml.safe_load(config.to_yaml()))  # in which values of the environment are not
        return OK
    print(printable(config.to_yaml(), keep="\n"), end="")
    return OK


def validate_command(options: argparse.Namespace) -> int:
    given = [*options.files, *options.overrides]
    overrides = [text for text in given if is_override(text) and not Path(text).exists()]
    files = list(dict.fromkeys(text for text in given if text not in overrides))
    if not files:
        raise ConfigurationError("no-run-file-named", "Name at least one run file to check.")
    found = {file: mistakes_in(file, overrides) for file in files}
    if options.json:
        print_json(
            [
                {"file": file, "problems": list(map(asdict, problems))}
                for file, problems in found.items()
            ]
        )
    else:
        _print_report(found)
    return FOUND if any(found.values()) else OK


def mistakes_in(file: str, overrides: list[str]) -> list[Problem]:
    """All mistakes of a file, and of the runs of its sweep if it describes one."""
    try:
        check_run_file(file, "config validate")
        configs = _configs_of(file, overrides)
    except ConfigError as error:
        return list(error.problems)
    except (LoopwrightError, OSError) as error:
        return [Problem(file, None, "", str(error))]
    problems: list[Problem] = []
    for config in configs:
        try:
            Experiment.from_config(config)
        except ConfigError as error:
            problems += error.problems
    return list(dict.fromkeys(problems))


def _configs_of(file: str, overrides: list[str]) -> list[Config]:
    """The configs of a file: one, or one for each run of its sweep (of an Optuna sweep, the
    first)."""
    sweep = read_sweep(file, overrides)
    if not sweep.space:
        return [load_config(file, overrides)]
    if sweep.method == "optuna":
        first = {
            key: v.low if isinstance(v, ValueRange) else v[0] for key, v in sweep.space.items()
        }
        return [load_variant(file, overrides, first).config]
    return [variant.config for variant in expand_sweep(file, overrides)[:MAX_RUNS]]


def _print_report(found: dict[str, list[Problem]]) -> None:
    for file, problems in found.items():
        if not problems:
            say(f"{file}: no mistakes")
            continue
        say(f"{file}: {counted(len(problems), 'mistake')}", RED)
        for problem in problems:
            say(f"  {problem}".replace("\n", "\n  "), keep="\n")

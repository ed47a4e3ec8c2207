"""`loopwright check ...`: a run file tried out on a few samples, or a program for several processes
on one."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError, LoopwrightError
from ..arguments import add_command
from ..exits import FOUND, OK, described

__all__ = ["add_to"]
MORE = """\
A run file (.yaml, .yml, .json): does everything that `train` would do, once, on a few samples of the real data, in a
temporary folder. It checks the config, builds all objects, trains a few updates with accumulation, evaluates and
predicts on every data set, calls every callback, saves and loads a checkpoint, compares a resumed run with an
uninterrupted one, and follows the schedule to the end. It reports all mistakes at once, then the time and memory that
the run will need. KEY=VALUE changes the config.

A program (.py): runs it on the CPU as the first of several processes, with the others simulated, up to the second
update of its first `train` call. Callbacks are not called, and the run directory is not written. It prints the device
mesh, which process holds which parameters, bytes per process, how a batch is divided, and the collectives of an update
beside the estimate of `loopwright scale`.

Exit code 1: a mistake was found, or the program failed before the end of its second update."""
EXAMPLE = """\
check run.yaml trainer.max_updates=500
check run.yaml --json
check --processes 8 --runtime fsdp train.py --epochs 3"""
SUFFIXES = (".yaml", ".yml", ".json")


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Try a run file on a few samples, or simulate several processes of a program."
    parser = add_command(
        parsers, common, "check", run=check_command, what=what, more=MORE, example=EXAMPLE
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="the number of processes (default: as the program says, or 2)",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--runtime", choices=("ddp", "fsdp"), help="replace the runtime of the program"
    )
    instead.add_argument(
        "--mesh",
        metavar="AXES",
        help="replace the device mesh of the program: replicate=2,shard=4,tensor=2",
    )
    parser.add_argument(
        "--all", action="store_true", help="list every parameter, and every process separately"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a run file, or a Python program that torchrun could start",
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="KEY=VALUE for a run file; arguments for a program",
    )


def check_command(options: argparse.Namespace) -> int:
    program = Path(options.program)
    if program.suffix in SUFFIXES:
        from .config import check_config_command

        return check_config_command(program, options.arguments, as_json=options.json)
    return _check_program(program, options)


def _check_program(program: Path, options: argparse.Namespace) -> int:
    from ...runtime.dry_run import DryRun
    from .dry_run import DryRunProbe, add_facts
    from .report import Report, print_report

    if not program.is_file():
        raise ConfigurationError(_not_a_file(program))
    report = Report("program", str(program))
    probe = DryRunProbe(report)
    strategy = parse_mesh(options.mesh) if options.mesh else options.runtime
    dry_run = DryRun(probe.watch, world=options.processes, strategy=strategy)
    with dry_run.running(), redirect_stdout(sys.stderr) if options.json else nullcontext():
        error = _run_dry(program, options.arguments)
    if error is not None:
        # its message says all that matters, without a traceback
        is_own = isinstance(error, LoopwrightError)
        if options.debug or not is_own:
            traceback.print_exception(error)
        report.mistake("", str(error) if is_own else "\n  ".join(described(error)))
    add_facts(report, probe.layout, is_full=options.all)
    print_report(report, as_json=options.json)
    return FOUND if report.mistakes else OK


def _not_a_file(program: Path) -> str:
    what = "is a folder" if program.is_dir() else "does not exist"
    return f"{program} {what}: name a run file (YAML), or the Python program that trains."


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes that `replicate=2,shard=4` names."""
    from ...runtime.dry_run import AXES

    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name.strip() not in AXES or not number.strip().isdecimal() or name.strip() in sizes:
            raise ConfigurationError(
                f"--mesh {text}: {part!r} is not one of {'=N, '.join(AXES)}=N, each at most once."
            )
        sizes[name.strip()] = int(number)
    return sizes


def _run_dry(program: Path, arguments: Sequence[str]) -> Exception | None:
    """Run the program up to its second update; the exception that it raised, if any."""
    from ...runtime.dry_run import DryRunDone

    try:
        with _as_main(program, arguments):
            runpy.run_path(str(program), run_name="__main__")
    except DryRunDone:
        return None
    except SystemExit as left:
        raise ConfigurationError(
            f"{program} exited with code {left.code} before it trained: put its arguments after "
            "its name."
        ) from None
    except Exception as error:
        return error
    raise ConfigurationError(
        f"{program} ended without calling `train`, so there was nothing to check."
    )


@contextmanager
def _as_main(program: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as `python program arguments` would."""
    argv = sys.argv
    path = sys.path
    sys.argv, sys.path = [str(program), *arguments], [str(program.parent.absolute()), *path]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path = path

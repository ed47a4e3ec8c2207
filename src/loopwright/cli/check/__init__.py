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

from ...errors import ConfigurationError, LoopwrightError
from ..exits import FOUND, OK, described

SUFFIXES = (".yaml", ".yml", ".json")


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

"""Programs in a forked process: as `python script.py`, without the seconds that importing torch
takes."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

# the first optimizer imports it, which takes seconds: once here, not in every script
import torch._dynamo  # noqa: F401

LIMIT = 300.0


@dataclass(frozen=True)
class Ended:
    """How a program ended (negative: by that signal), and what it wrote."""

    code: int
    out: str
    err: str


def run_forked(script: Path, folder: Path, *arguments: str) -> str:
    """What a script that starts in `folder` prints; it must end well."""

    def run() -> None:
        # a test before this one may have imported a file of that name
        for beside in script.parent.glob("*.py"):
            sys.modules.pop(beside.stem, None)
        sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.parent)]
        runpy.run_path(str(script), run_name="__main__")

    ended = call_forked(run, folder)
    assert ended.code == 0, ended.out + ended.err
    return ended.out + ended.err


def call_forked(program: Callable[[], object], folder: Path) -> Ended:
    """Let a program start in `folder`, in a process that is forked from this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    with TemporaryFile() as out, TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            end_as_program(program, folder)
        code = _wait(pid)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    assert code is not None, f"The program did not end in {LIMIT:g} s:\n{texts}"
    return Ended(code, *texts)


def _wait(pid: int) -> int | None:
    """The exit code of a process; None where it had to be killed after all the time there is."""
    end = time.monotonic() + LIMIT
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1])


def end_as_program(program: Callable[[], object], folder: Path) -> NoReturn:
    """In a forked process, which must never come back to the tests: do all that a new process would
    do, and end."""
    code = 1
    try:
        leave_the_parents_behind(folder)
        code = _exit_code(program)
        threading._shutdown()  # what the interpreter does in the end: wait for threads, then this
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(program: Callable[[], object]) -> int:
    try:
        result = program()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return result if isinstance(result, int) else 0


def leave_the_parents_behind(folder: Path) -> None:
    """Make a forked process like a new one that starts in `folder`: streams, signals, logs, what is
    done in the end."""
    gc.freeze()
    atexit._clear()
    logging.getLogger().handlers.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (
        os.fdopen(1, "w", closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
    os.chdir(folder)

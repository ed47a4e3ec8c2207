"""A script in a forked process: as `python script.py`, without the seconds that importing torch takes."""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch._dynamo  # noqa: F401  (the first optimizer imports it, which takes seconds: once here, not in every script)

LIMIT = 300.0


def run_forked(script: Path, folder: Path, *arguments: str) -> str:
    """What a script that starts in `folder` prints; it must end well."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = folder / ".output"
    pid = os.fork()
    if pid == 0:
        os._exit(_run(script, folder, log, arguments))
    end = time.monotonic() + LIMIT
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"The script did not end in {LIMIT:g} s:\n{log.read_text()}")
        time.sleep(0.01)
    printed = log.read_text()
    assert os.waitstatus_to_exitcode(done[1]) == 0, printed
    return printed


def leave_the_parents_behind(folder: Path) -> None:
    """Make a forked process like a new one that starts in `folder`: streams, signals, what is done in the end."""
    gc.freeze()
    atexit._clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(folder)


def _run(script: Path, folder: Path, log: Path, arguments: tuple[str, ...]) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    leave_the_parents_behind(folder)
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.parent)]
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
        threading._shutdown()  # what the interpreter does in the end: wait for threads, then this
        atexit._run_exitfuncs()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code

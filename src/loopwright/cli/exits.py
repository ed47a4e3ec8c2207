"""Exit codes, files that commands write, and errors of the user's own code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigurationError, LoopwrightError

OK = 0
FOUND = 1
FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

# The only list of exit codes: `loopwright --help` and docs/cli.md print it.
EXIT_CODES = {
    OK: "success",
    FOUND: "success, but the answer is no: runs differ, a check found mistakes (the help of each "
    "command says which)",
    FAILED: "error; stderr says what went wrong",
    INTERRUPTED: "interrupted by Ctrl-C; `train` saves first, and the same command resumes the run",
    PIPE_CLOSED: "the reader of the output closed it, as `head` does",
    TERMINATED: "ended by SIGTERM; `train` saves first, and the same command resumes the run",
}
LOG = "log.txt"
PACKAGE = Path(__file__).resolve().parents[1]


class ProgramError(LoopwrightError):
    """Code that a config names has raised an error, which is the cause."""


def check_output(path: Path, *, force: bool, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, or that exists, before anything is computed."""
    if suffixes and path.suffix not in suffixes:
        ends = " or ".join(suffixes)
        raise ConfigurationError("output-suffix", f"{path}: the name must end in {ends}.")
    if path.exists() and not force:
        what = "choose another name, or add --force to replace it"
        raise ConfigurationError("output-exists", f"{path} exists: {what}.")
    if not path.absolute().parent.is_dir():
        raise ConfigurationError("no-output-folder", f"{path}: there is no folder {path.parent}.")


@contextmanager
def explained(run: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turn an error of the user's model, data or trainer into a ProgramError that says where it was
    raised.

    `run` returns the run directory, if there is one by then; its log has the traceback too.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of the output closed it: no error
        raise
    except LoopwrightError as error:
        if notes_of(error):
            text = "\n".join([str(error), *notes_of(error)])
            raise ProgramError("program-error", text) from error
        raise
    except Exception as error:
        log = None if (directory := run()) is None else directory / LOG
        kept = f"; it is also in {log}" if log is not None and log.is_file() else ""
        lines = [*described(error), f"(--debug shows the traceback{kept}.)"]
        raise ProgramError("program-error", "\n".join(lines)) from error


def described(error: BaseException) -> list[str]:
    """The error in a line, the place in the user's code, and the notes added to it."""
    place = own_place(error)
    head = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return [head, *([] if place is None else [f"  {place}"]), *notes_of(error)]


def notes_of(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def own_place(error: BaseException) -> str | None:
    """The innermost line of code that is neither ours nor an installed package's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_own(Path(frame.filename)):
            line = f": {frame.line}" if frame.line else ""
            return f"{frame.filename}:{frame.lineno}, in {frame.name}{line}"
    return None


def _is_own(path: Path) -> bool:
    if not path.is_file() or path.resolve().is_relative_to(PACKAGE):
        return False
    is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
    return not is_installed and not path.resolve().is_relative_to(
        Path(sys.base_prefix, "lib").resolve()
    )

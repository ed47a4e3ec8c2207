"""The errors of Loopwright. A message says what happened, what was expected and what to do.

Tracebacks of public functions show the user's own lines.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from numbers import Integral, Real
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_is_full: ContextVar[bool] = ContextVar("full_tracebacks", default=False)
VARIABLE = "LOOPWRIGHT_TRACEBACK"  # in the environment: "full" keeps every frame


class LoopwrightError(Exception):
    """Base class of all errors of Loopwright.

    Args:
        code: The short name of the mistake, which stays the same when its message is improved.
            docs/mistakes.md lists causes by code.
        message: What happened, with the value; what was expected; what to do.

    >>> print(ConfigurationError("no-optimizer", "Trainer has no optimizer: pass `optimizer=`."))
    Trainer has no optimizer: pass `optimizer=`. [no-optimizer]
    """

    def __init__(self, code: str, message: str | None = None, **given: Any) -> None:
        super().__init__(*((code,) if message is None else (code, message)), **given)
        self.code = code if message is not None else ""

    def __str__(self) -> str:
        return f"{self.args[1]} [{self.code}]" if self.code else str(self.args[0])


class ConfigurationError(LoopwrightError, ValueError):
    """An argument, an override or a combination of components that cannot work."""


class DataError(LoopwrightError, ValueError):
    """The data cannot be iterated, batched or resumed as asked."""


class CheckpointError(LoopwrightError):
    """A checkpoint is damaged, incomplete, or does not fit what it is loaded into."""


class NonFiniteLossError(LoopwrightError, FloatingPointError):
    """A loss or gradient norm was NaN or infinite; the optimizer step it belongs to was not
    taken."""


class Interrupted(SystemExit):
    """A signal ended training after the current update. The exit code is 130 (SIGINT) or 143
    (SIGTERM)."""


def is_notebook() -> bool:
    """Whether this program is the kernel of a notebook; IPython is imported already where it is."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find is not None and getattr(find(), "kernel", None) is not None


def interruption(exit_code: int, line: str) -> BaseException:
    """Return the exception that ends training after a signal: it ends the program, or the cell of a
    notebook.

    Args:
        exit_code: The exit code of the program.
        line: What a notebook shows in place of a traceback.
    """
    is_cell = exit_code == 128 + signal.SIGINT and is_notebook()
    return in_one_line(KeyboardInterrupt(line), line) if is_cell else Interrupted(exit_code)


def in_one_line(error: KeyboardInterrupt, line: str) -> KeyboardInterrupt:
    """Let a notebook show a line in place of the traceback of an interrupt; the first line that is
    given stays."""
    vars(error).setdefault("_render_traceback_", lambda: [line])
    return error


class CallError(LoopwrightError, TypeError):
    """A public function was called with arguments that it does not take."""


class MissingAttributeError(LoopwrightError, AttributeError):
    """A name of another framework; the message has what to write here."""


class MissingExtraError(LoopwrightError, ImportError):
    """An optional package is needed; the message names the pip command."""


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that users call: wrong arguments raise an error with advice, and
    tracebacks are short."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)  # LOOPWRIGHT_TRACEBACK=full shows every frame
        except KeyboardInterrupt as error:
            in_one_line(error, f"Interrupted: `{function.__name__}` did not finish.")
            raise
        except Exception as error:
            first = error.__traceback__
            assert first is not None  # this frame
            if isinstance(error, TypeError) and first.tb_next is None:  # the arguments do not fit
                from ._other_frameworks import explain_call

                raise explain_call(error, function, kwargs) from None
            if os.environ.get(VARIABLE) != "full" and not _is_full.get():
                error.__traceback__ = shortened(first, error)
            raise

    return call


def check_arguments(
    function: Callable[..., Any], expected: Iterable[str], label: str, advice: str = ""
) -> None:
    """Refuse a function that cannot be called with these arguments.

    Args:
        function: What would be called.
        expected: The arguments of the call; one that is passed by name ends with "=".
        label: The function as the error names it.
        advice: What else the error says.
    """
    expected = list(expected)
    by_name = {argument[:-1]: None for argument in expected if argument.endswith("=")}
    try:
        inspect.signature(function).bind(*expected[: len(expected) - len(by_name)], **by_name)
    except TypeError as error:
        raise ConfigurationError(
            "call-arguments",
            f"{label} does not take the arguments it is called with ({', '.join(expected)}): "
            f"{error}.{advice}",
        ) from None


def check_number(
    label: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    is_whole: bool = True,
    of: str = "",
    otherwise: str = "",
) -> None:
    """Refuse an argument that is not a number within these bounds.

    Args:
        label: The argument as the user writes it, such as "EMA(decay".
        value: What was given.
        least: The smallest number allowed.
        above: The number that it must exceed.
        most: The largest number allowed.
        is_whole: Whether it must be a whole number.
        of: What is counted, as "epochs".
        otherwise: What else may be given, as "None for no clipping".

    >>> check_number("EMA(decay", 1.5, least=0, most=1, is_whole=False, otherwise="a list")
    Traceback (most recent call last):
        ...
    loopwright.errors.ConfigurationError: EMA(decay=1.5): use a number from 0 to 1, or a list. [number]
    """
    is_number = not isinstance(value, bool) and isinstance(value, Integral if is_whole else Real)
    number = float(cast(Any, value)) if is_number else math.nan
    is_within = (
        math.isfinite(number)
        and (least is None or number >= least)
        and (above is None or number > above)
        and (most is None or number <= most)
    )
    if is_within:
        return
    if least is not None and most is not None:
        bounds = f" from {least:g} to {most:g}"
    elif above is not None:
        bounds = f" above {above:g}" + ("" if most is None else f", {most:g} at most")
    else:
        bounds = "" if least is None else f", {least:g} or more"
    counted = f" of {of}" if of else ""
    other = f", or {otherwise}" if otherwise else ""
    ending = ")" if "(" in label else ""
    raise ConfigurationError(
        "number",
        f"{label}={value!r}{ending}: use a {'whole ' if is_whole else ''}number{counted}{bounds}"
        f"{other}.",
    )


@contextmanager
def full_tracebacks() -> Iterator[None]:
    """Context in which errors keep every frame of their tracebacks."""
    token = _is_full.set(True)
    try:
        yield
    finally:
        _is_full.reset(token)


def shortened(traceback: TracebackType, error: BaseException) -> TracebackType:
    """Return the traceback without frames of this package, except the first and those that call
    other code.

    A traceback that ends in this package with an error of another class is not shortened: it may be
    a bug of ours.
    """
    entries = [traceback]
    while (following := entries[-1].tb_next) is not None:
        entries.append(following)
    if _is_ours(entries[-1]) and not isinstance(error, LoopwrightError):
        return traceback
    result: TracebackType | None = None
    is_followed = False  # by a frame of other code
    for entry in reversed(entries):
        if entry is traceback or is_followed or not _is_ours(entry):
            result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        is_followed = not _is_ours(entry)
    assert result is not None
    return result


def _is_ours(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).startswith("loopwright.")


class WaitInterrupted(BaseException):
    """A signal ended a wait for data between two updates; the loop leaves as after the update
    before.

    Not an `Exception`, so that no `except Exception` of a user's data set catches it.
    """


class Rewinding(BaseException):
    """Raised by a callback at the end of a step or update: the loop calls `undo` and continues from
    the state it loads.

    Not an `Exception`, so that no `except Exception` of a user's method catches it.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self.undo = undo

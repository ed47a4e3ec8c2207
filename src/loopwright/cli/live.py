"""A screen that is drawn again and again until `q`, Escape or Ctrl-C ends it; then the terminal is
as before."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LEAVING = frozenset(b"qQ\x03\x1b")
HINT = "q to quit"


def is_terminal() -> bool:
    """Whether stdout is a terminal that can draw over what it shows."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def show_live(draw: Callable[[Console], RenderableType], seconds: float) -> None:
    """Draw every few seconds on a screen of its own, until a key or Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with _keys() as is_over, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw(console), refresh=True)
                if is_over(seconds):
                    return
    except KeyboardInterrupt:
        return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Context with a function that waits, and returns whether a key was pressed that leaves."""
    try:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (
        ImportError,
        OSError,
        ValueError,
        AttributeError,
    ):  # no terminal to read from: only Ctrl-C leaves
        yield _only_wait
        return
    except termios.error:
        yield _only_wait
        return
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _is_left(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> bool:
    select.select([], [], [], seconds)
    return False


def _is_left(descriptor: int, seconds: float) -> bool:
    """Read keys for some seconds; a closed terminal leaves too."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if ready:
            pressed = os.read(descriptor, 64)
            if not pressed or LEAVING.intersection(pressed[:1]):
                return True
    return False

"""Signals that a program sends itself at a moment it was told: `step:5=KILL` is SIGKILL in its
fifth training step."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

FILE_EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
}

_moments: list[Moment] = []
_has_group: list[bool] = []
_seen: Counter[str] = Counter()


@dataclass(frozen=True)
class Moment:
    """The nth time that something happens: sample, step, eval, epoch, end, or an operation on a
    file of the run."""

    place: str
    number: int
    signal: signal.Signals

    @classmethod
    def of(cls, text: str) -> Moment:
        where, _, name = text.partition("=")
        place, _, number = where.partition(":")
        return cls(place, int(number), signal.Signals[f"SIG{name or 'KILL'}"])


def arm(moments: list[Moment], run_dir: str, *, has_group: bool = False) -> None:
    """Be ready; file operations are heard of before they are done, in every thread.

    With `has_group` signals go to a process group of its own, with all workers in it, as schedulers
    send them.
    """
    _moments.extend(moments)
    if has_group:
        os.setsid()
        _has_group.append(True)
    if any(moment.place == "file" for moment in moments):
        sys.addaudithook(lambda event, args: _on_audit(event, args, run_dir))


def happens(place: str) -> None:
    """Something happened: send what was asked for at this moment."""
    if not _moments:
        return
    _seen[place] += 1
    for moment in _moments:
        if moment.place == place and moment.number == _seen[place]:
            (os.killpg if _has_group else os.kill)(os.getpid(), moment.signal)


def _on_audit(event: str, args: tuple[Any, ...], run_dir: str) -> None:
    is_path = event in FILE_EVENTS and bool(args) and isinstance(args[0], str | bytes | os.PathLike)
    if is_path and os.fsdecode(args[0]).startswith(run_dir):
        happens("file")

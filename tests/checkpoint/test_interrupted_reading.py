"""Signals whose handlers raise while a checkpoint is read: the caller gets that exception, and no
damaged file."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from loopwright.checkpoint import read_checkpoint, write_checkpoint

NUM_TENSORS = 500


class Alarm(Exception):  # noqa: N818  (what a user's handler may raise)
    pass


@pytest.fixture
def alarms() -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def read_at_once(path: Path) -> None:
    assert len(read_checkpoint(path).tree) == NUM_TENSORS


def read_lazily(path: Path) -> None:
    for stored in read_checkpoint(path, lazy=True).tree.values():
        stored.read_box([0], [4])


# Python itself drops what a handler raises inside a callback of a weak reference, whoever runs.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("read", [read_at_once, read_lazily])
def test_an_exception_of_a_signal_handler_is_not_taken_for_a_damaged_file(
    read: Callable[[Path], None], alarms: None, tmp_path: Path
) -> None:
    write_checkpoint(
        tmp_path / "all", {f"tensor {i}": torch.full((4,), float(i)) for i in range(NUM_TENSORS)}
    )
    num_alarms, longest = 0, 0.02
    while num_alarms < 30:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, longest))
            read(tmp_path / "all")
            signal.setitimer(signal.ITIMER_REAL, 0)
            longest /= 1.2  # it was through before: sooner next time
        except Alarm:
            num_alarms += 1
            longest = min(longest * 1.2, 0.2)

"""The architecture document shows the code that is there."""

import inspect
from pathlib import Path

import pytest

from loopwright.training import steps as loop

DOCUMENT = Path(__file__).parent.parent / "docs" / "architecture.md"


SHOWN = [
    loop.train,
    loop.train_epoch,
    loop.begin_epoch,
    loop.record_epoch,
    loop.train_steps,
    loop.open_steps,
    loop.take_windows,
]


@pytest.mark.parametrize("function", SHOWN)
def test_the_loop_in_the_document_is_the_loop(function: object) -> None:
    assert inspect.getsource(function) in DOCUMENT.read_text()

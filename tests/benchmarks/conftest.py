"""The modules of `benchmarks`, which import each other by their names alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They can be imported in a test, and are gone after it: names such as `data` are too common to
    stay."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]

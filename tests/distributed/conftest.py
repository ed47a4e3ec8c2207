"""Processes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import SharedRanks


@pytest.fixture(scope="module")
def two() -> Iterator[SharedRanks]:
    """Two processes: `two(fn, *args)` is what `fn(rank, *args)` returns on each."""
    shared = SharedRanks(2)
    yield shared
    shared.close()

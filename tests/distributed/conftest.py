"""Processes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.distributed.ranks import RunRanks, SharedRanks


@pytest.fixture(scope="module")
def shared() -> Iterator[RunRanks]:
    """`shared(fn, world, *args)` is `run_ranks` on processes that other tests of the file use
    too."""
    pools: dict[int, SharedRanks] = {}

    def run(fn: Any, world: int, *args: Any) -> list[Any]:
        return pools.setdefault(world, SharedRanks(world))(fn, *args)

    yield run
    for pool in pools.values():
        pool.close()

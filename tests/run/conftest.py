"""A metrics store for each test, closed after it."""

from __future__ import annotations

import pytest

from loopwright.run import MetricsStore


@pytest.fixture
def store(tmp_path):
    store = MetricsStore(tmp_path / "metrics.sqlite")
    yield store
    store.close()

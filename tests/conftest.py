"""What every test has: one thread, so that sums are added in one order, and random numbers of its own; small data."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _random_numbers(request: pytest.FixtureRequest) -> None:
    """The same in every run of a test, whatever ran before it."""
    seed = crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture
def points() -> TensorDataset:
    """37 points of 6 numbers in three classes: a prime number, so that every batch size leaves a short batch."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(37, 6, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())

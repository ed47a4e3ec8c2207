"""What every test of the core may use: one thread, so that sums are added in one order, and small data."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

torch.set_num_threads(1)


@pytest.fixture
def points() -> TensorDataset:
    """37 points of 6 numbers in three classes: a prime number, so that every batch size leaves a short batch."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(37, 6, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())

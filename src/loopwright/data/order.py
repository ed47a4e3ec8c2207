"""The order of samples as a pure function of (seed, epoch), and the seeds of everything random."""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_STRIDE = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: consecutive inputs land far apart

# What a seed is for: two purposes never share one, so that no two streams of random numbers are the same.
ORDER, SAMPLE, COLLATE, SAMPLER, WORKER = 1, 2, 3, 4, 5


def derive_seed(seed: int, *parts: int) -> int:
    """Mix integers into one seed of 63 bits, the same on every platform and in every process."""
    state = _mix((seed + _STRIDE) & _MASK)
    for part in parts:
        state = _mix((state + part + _STRIDE) & _MASK)
    return state >> 1


def permutation(seed: int, epoch: int, length: int) -> Tensor:
    """The shuffled order of `length` samples in an epoch."""
    generator = torch.Generator().manual_seed(derive_seed(seed, ORDER, epoch))
    return torch.randperm(length, generator=generator)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)

"""Burgers' equation: pairs of fields at time 0 and time 1, computed with a pseudo-spectral solver.

The equation u_t + u u_x = nu u_xx on a circle turns smooth fields into steep fronts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset


def random_fields(count: int, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The grid, and smooth periodic fields with four random waves each."""
    grid = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    waves = torch.arange(1, 5, dtype=torch.float64)
    amplitudes = torch.randn(count, 4, generator=generator, dtype=torch.float64) / waves
    phases = 2 * math.pi * torch.rand(count, 4, generator=generator, dtype=torch.float64)
    angles = waves[:, None] * grid + phases[:, :, None]
    return grid, (amplitudes[:, :, None] * torch.sin(angles)).sum(1)


def solve_burgers(fields: Tensor, viscosity: float, time: float = 1.0, steps: int = 200) -> Tensor:
    """The fields after some time: Runge-Kutta of fourth order, with the viscous part solved
    exactly."""
    points = fields.shape[-1]
    waves = torch.arange(points // 2 + 1, dtype=fields.dtype)
    step = time / steps
    decay = torch.exp(-viscosity * waves**2 * step / 2)  # over half a step
    is_resolved = waves < points / 3  # products of the others would come back as something else

    def advect(spectrum: Tensor) -> Tensor:
        field = torch.fft.irfft(spectrum * is_resolved, n=points)
        return -0.5j * waves * torch.fft.rfft(field**2)

    spectrum = torch.fft.rfft(fields)
    for _ in range(steps):
        first = advect(spectrum)
        second = advect(decay * (spectrum + step / 2 * first))
        third = advect(decay * spectrum + step / 2 * second)
        fourth = advect(decay * (decay * spectrum + step * third))
        spectrum = decay**2 * spectrum + step / 6 * (
            decay**2 * first + 2 * decay * (second + third) + fourth
        )
    return torch.fft.irfft(spectrum, n=points)


class Burgers(Dataset[dict[str, Tensor]]):
    """Pairs of fields, before and after, on a grid."""

    def __init__(self, count: int, points: int = 64, viscosity: float = 0.1, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        grid, before = random_fields(count, points, generator)
        after = solve_burgers(before, viscosity)
        self.grid, self.before, self.after = grid.float(), before.float(), after.float()

    def __len__(self) -> int:
        return len(self.before)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"grid": self.grid, "before": self.before[index], "after": self.after[index]}

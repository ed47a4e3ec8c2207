"""Burgers' equation and a small Fourier neural operator that learns to solve it; `run.yaml` puts them together.

The equation u_t + u u_x = nu u_xx on a circle turns smooth fields into steep fronts. The operator sees a field at time
0 and gives the one at time 1; the pairs are computed here, with a pseudo-spectral solver.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Callback, Trainer
from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig


def random_fields(count: int, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The grid, and smooth periodic fields with four random waves each."""
    grid = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
    waves = torch.arange(1, 5, dtype=torch.float64)
    amplitudes = torch.randn(count, 4, generator=generator, dtype=torch.float64) / waves
    phases = 2 * math.pi * torch.rand(count, 4, generator=generator, dtype=torch.float64)
    angles = waves[:, None] * grid + phases[:, :, None]
    return grid, (amplitudes[:, :, None] * torch.sin(angles)).sum(1)


def solve_burgers(fields: Tensor, viscosity: float, time: float = 1.0, steps: int = 200) -> Tensor:
    """The fields after some time: Runge-Kutta of fourth order, with the viscous part solved exactly."""
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
        spectrum = decay**2 * spectrum + step / 6 * (decay**2 * first + 2 * decay * (second + third) + fourth)
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


class SpectralLayer(nn.Module):
    """Mixes channels wave by wave for the longest waves, and point by point for the rest."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(modes, width, width, 2) / width)
        self.pointwise = nn.Linear(width, width)

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values, dim=1)
        mixed = torch.zeros_like(spectrum)
        weight = torch.view_as_complex(self.weight)
        mixed[:, : self.modes] = torch.einsum("bmi,mio->bmo", spectrum[:, : self.modes], weight)
        return torch.fft.irfft(mixed, n=values.shape[1], dim=1) + self.pointwise(values)


class FourierOperator(nn.Module):
    """A Fourier neural operator on the circle."""

    def __init__(self, width: int = 24, modes: int = 12, depth: int = 3) -> None:
        super().__init__()
        self.lift = nn.Linear(3, width)
        self.layers = nn.ModuleList(SpectralLayer(width, modes) for _ in range(depth))
        self.project = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 1))

    def forward(self, grid: Tensor, before: Tensor) -> dict[str, Tensor]:
        values = self.lift(torch.stack([before, grid.sin(), grid.cos()], dim=-1))
        for layer in self.layers:
            values = nn.functional.gelu(layer(values))
        return {"after": before + self.project(values).squeeze(-1)}


class OperatorTrainerConfig(BaseTrainerConfig):
    slope_weight: float = 0.1


class OperatorTrainer(BaseTrainer):
    """Minimises the relative error of the field, and of its slope with a smaller weight."""

    def __init__(self, trainer_config: OperatorTrainerConfig, **kwargs: object) -> None:
        super().__init__(trainer_config, **kwargs)
        self.slope_weight = trainer_config.slope_weight

    def loss_compute(self, forward_output: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
        found, wanted = forward_output["after"], targets["after"]
        return {
            "relative_error": relative_error(found, wanted),
            "slope_error": self.slope_weight * relative_error(found.diff(dim=1), wanted.diff(dim=1)),
        }


def relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean over the samples of |found - wanted| / |wanted|."""
    return ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).mean()


class CompareWithBaseline(Callback):
    """Says at the end how much better the operator is than to guess that nothing changes."""

    def __init__(self, dataset_key: str = "test") -> None:
        self.dataset_key = dataset_key

    def on_train_end(self, trainer: Trainer) -> None:
        data = trainer.datasets[self.dataset_key]
        error = trainer.evaluate(data)["relative_error"]
        baseline = relative_error(data.before, data.after).item()
        trainer.say(f"Relative error on {self.dataset_key}: {error:.3f}; of leaving the field as it is: {baseline:.3f}")

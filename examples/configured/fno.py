"""A small Fourier neural operator that learns to solve Burgers' equation; `run.yaml` puts the parts
together.

The operator sees a field at time 0 and gives the one at time 1.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from loopwright import Callback
from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig


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
        self.project = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 1)
        )

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

    def loss_compute(
        self, forward_output: dict[str, Tensor], targets: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        found, wanted = forward_output["after"], targets["after"]
        return {
            "relative_error": relative_error(found, wanted),
            "slope_error": self.slope_weight
            * relative_error(found.diff(dim=1), wanted.diff(dim=1)),
        }


def relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean over the samples of |found - wanted| / |wanted|."""
    return ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).mean()


class CompareWithBaseline(Callback):
    """Says at the end how much better the operator is than to guess that nothing changes, and draws
    some fields."""

    def __init__(self, dataset_key: str = "test", picture: str = "burgers.png") -> None:
        self.dataset_key, self.picture = dataset_key, picture

    def on_train_end(self, trainer: OperatorTrainer) -> None:
        data = trainer.datasets[self.dataset_key]
        error = trainer.evaluate(data)["relative_error"]
        baseline = relative_error(data.before, data.after).item()
        trainer.say(
            f"Relative error on {self.dataset_key}: {error:.3f}; of leaving the field as it is: "
            f"{baseline:.3f}"
        )
        found = trainer.predict(data)["after"]
        figure, all_axes = plt.subplots(1, 3, figsize=(12, 3.5), sharey=True)
        for index, axes in enumerate(all_axes):
            for field, label in (
                (data.before, "time 0"),
                (data.after, "time 1"),
                (found, "operator"),
            ):
                axes.plot(
                    data.grid, field[index].cpu(), "--" if label == "operator" else "-", label=label
                )
        all_axes[0].legend()
        figure.savefig(self.picture)
        trainer.say(f"Three of the fields: {self.picture}")

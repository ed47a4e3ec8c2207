"""Outputs of training steps besides the loss, logged or written at an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .interval import Periodic

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.result import StepResult


class AdditionalOutputs(Periodic):
    """Records `StepResult.outputs` of the last step of an interval: by name if it is a dict, else
    as "outputs".

    Single numbers are logged under their names. Other tensors are written to
    `artifacts/outputs/update-<n>.safetensors` of the run directory; the attribute `latest` has the
    last ones. With several processes, numbers are averaged, weighted by samples, and tensors are
    concatenated.

    Args:
        keys: The names to record; all by default.
        every_n_epochs: The interval in epochs. Give one interval.
        every_n_updates: The interval in updates.
        every_n_samples: The interval in samples.

    >>> from loopwright.callbacks import AdditionalOutputs
    >>> callback = AdditionalOutputs(["logits"], every_n_updates=100)
    """

    def __init__(
        self,
        keys: Sequence[str] | None = None,
        *,
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        super().__init__(
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        self.keys = None if keys is None else tuple(keys)
        self.latest: dict[str, Tensor] = {}
        self._result: StepResult | None = None
        self._size = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self._result = result if trainer.run.window.is_last else None
        self._size = trainer.run.window.size

    def on_update_end(self, trainer: Trainer) -> None:
        super().on_update_end(trainer)
        self._result = None  # frees the memory before the next forward pass

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        super().on_train_epoch_end(trainer)
        self._result = None

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        """Return the single numbers; write the other tensors."""
        own = (
            {}
            if self._result is None
            else {k: v.cpu() for k, v in self._chosen(self._result.outputs).items()}
        )
        each = trainer.runtime.gather_each((self._size, own))
        # a rank may have no samples
        parts = [(size, found) for size, found in each if found and size > 0]
        if not parts:
            return {}
        numbers, self.latest = _joined(parts)
        if self.latest and trainer.run.directory is not None and trainer.runtime.is_main:
            self._write(trainer)
        return numbers

    def _chosen(self, outputs: Any) -> dict[str, Tensor]:
        named = outputs if isinstance(outputs, Mapping) else {"outputs": outputs}
        chosen = {str(k): v for k, v in named.items() if self.keys is None or k in self.keys}
        numbers = {
            k: torch.tensor(v, dtype=torch.float64)
            for k, v in chosen.items()
            if isinstance(v, int | float)
        }
        return numbers | {k: v.detach().clone() for k, v in chosen.items() if isinstance(v, Tensor)}

    def _write(self, trainer: Trainer) -> None:
        from ..checkpoint import save_weights, update_name

        assert trainer.run.directory is not None
        folder = trainer.run.directory.artifacts / "outputs"
        folder.mkdir(exist_ok=True)
        save_weights(folder / f"{update_name(trainer.progress.update)}.safetensors", self.latest)


def _joined(
    parts: Sequence[tuple[int, Mapping[str, Tensor]]],
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Average the numbers and concatenate the tensors of all processes, given with their numbers of
    samples."""
    numbers: dict[str, float] = {}
    tensors: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for _, found in parts for name in found):
        held = [(size, found[name]) for size, found in parts if name in found]
        values = [value for _, value in held]
        if all(value.dim() == 0 for value in values) or (
            len(parts) == 1 and values[0].numel() == 1
        ):
            numbers[name] = sum(size * value.item() for size, value in held) / sum(
                size for size, _ in held
            )
        elif all(value.dim() > 0 and value.shape[1:] == values[0].shape[1:] for value in values):
            tensors[name] = torch.cat(values) if len(values) > 1 else values[0]
        else:  # different shapes
            tensors |= {f"{name}.{number}": value for number, value in enumerate(values)}
    return numbers, tensors

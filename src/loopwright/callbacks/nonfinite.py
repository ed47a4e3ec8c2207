"""What happens when a loss or gradient norm is not finite, before it can reach the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..errors import ConfigurationError, NonFiniteLossError
from ..training.progress import counted

if TYPE_CHECKING:
    from ..trainer import Trainer


class NonFiniteGuard(Callback):
    """Refuses optimizer steps on NaN or infinite losses, and on such gradient norms where clipping computes them.

    `action` is "raise" (the default of every trainer), "skip" (leave the update out and go on; at most `max_skips`
    times), "stop" (leave it out and end training), or "off". On an accelerator a fused optimizer leaves the step out
    by itself and the host hears of it at the next log point; other optimizers cost a read before each step.
    """

    is_immediate = False
    precedence = 3  # after the checkpoints, since it may undo all of it

    def __init__(
        self, action: Literal["raise", "skip", "stop", "off"] = "raise", *, max_skips: int | None = None
    ) -> None:
        if action not in ("raise", "skip", "stop", "off"):
            raise ConfigurationError(f"NonFiniteGuard({action!r}): use 'raise', 'skip', 'stop' or 'off'.")
        self.action = action
        self.max_skips = max_skips
        self.num_skipped = 0
        self._trainer: Trainer | None = None

    @property
    def is_final(self) -> bool:
        return self.action != "skip"

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def refuse(self, what: str) -> None:
        assert self._trainer is not None
        progress = self._trainer.progress
        where = f"in update {progress.update + 1} (epoch {progress.epoch + 1})"
        if self.action == "skip":
            self.num_skipped += 1
            if self.max_skips is None or self.num_skipped <= self.max_skips:
                return
            where += f", after {counted(self.max_skips, 'skipped update')}"
        if self.action == "stop":
            self._trainer.stop(f"{what} {where}")
            return
        raise NonFiniteLossError(
            f"{what[0].upper()}{what[1:]} {where}; that optimizer step was not taken. {self._trainer.nonfinite_advice}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"num_skipped": self.num_skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_skipped = state["num_skipped"]

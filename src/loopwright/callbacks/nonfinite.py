"""The reaction to losses, gradients and learning rates that are not finite, before they reach the
weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ..callback import Callback
from ..errors import ConfigurationError, NonFiniteLossError
from ..text import counted

if TYPE_CHECKING:
    from ..callback import Trainer


class NonFiniteGuard(Callback):
    """Prevents optimizer steps on losses, gradients and learning rates that are NaN or infinite.

    Every trainer has one, with "raise". On an accelerator a fused optimizer skips the step by
    itself, and the host reads it at the next log point; other optimizers need a read from the
    device before each step. The gradients of a closure (`optimizer.step(closure)`) are computed
    inside the step, so that they are not looked at.

    Args:
        action: "raise" an error, "skip" the update and continue, "stop" training without the
            update, or "off".
        max_skips: With "skip", the number of skipped updates after which the next one is an error.

    >>> from loopwright.callbacks import NonFiniteGuard
    >>> callback = NonFiniteGuard("skip", max_skips=10)
    """

    is_immediate = False
    precedence = 3  # after the checkpoints, since `Rewind` may undo the update

    def __init__(
        self,
        action: Literal["raise", "skip", "stop", "off"] = "raise",
        *,
        max_skips: int | None = None,
    ) -> None:
        if action not in ("raise", "skip", "stop", "off"):
            raise ConfigurationError(
                "guard-action", f"NonFiniteGuard({action!r}): use 'raise', 'skip', 'stop' or 'off'."
            )
        self.action = action
        self.max_skips = max_skips
        self.num_skipped = 0
        self._trainer: Trainer | None = None

    @property
    def is_final(self) -> bool:
        return self.action != "skip"

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def name_of(self, param: nn.Parameter) -> str:
        return parameter_name({} if self._trainer is None else self._trainer.modules, param)

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
            "non-finite",
            f"{what[0].upper()}{what[1:]} {where}; that optimizer step was not taken. "
            f"{self._trainer._message_names.nonfinite}",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"num_skipped": self.num_skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_skipped = state["num_skipped"]


def parameter_name(modules: Mapping[str, nn.Module], param: nn.Parameter) -> str:
    """Return the name of a parameter for a message, with that of its model where there are
    several."""
    named = (
        (name, key)
        for name, module in modules.items()
        for key, p in module.named_parameters()
        if p is param
    )
    name, key = next(named, ("", "a parameter"))
    return repr(f"{name}.{key}" if len(modules) > 1 else key)

"""Freezing of model parts for fine-tuning, for some epochs or a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ..callback import Callback
from ..errors import ConfigurationError, check_number
from ..optim.groups import FoundParts, find_parts

if TYPE_CHECKING:
    from ..callback import Trainer


class Freeze(Callback):
    """Freezes parts of the models, for the whole run or for the first `until_epoch` epochs.

    The optimizer must contain parameters that are unfrozen later: build it from all parameters, or
    pass a factory.

    Args:
        parts: A part or a list of parts. A part is a module, or the name of a module or parameter;
            names may be patterns with `*`, `?` and `[...]`: "backbone", "layers.[0-3]", "*.bias".
            With several models, the model's name may come first: "encoder.layers.0".
        *more: More parts.
        until_epoch: The number of epochs after which the parts are unfrozen; None means never.
        norm_in_eval: Whether batch norms inside frozen parts are in eval mode: they use their
            running statistics and do not update them.

    >>> from loopwright.callbacks import Freeze
    >>> callback = Freeze("backbone", "*.bias", until_epoch=2)
    """

    def __init__(
        self,
        parts: str | nn.Module | Sequence[str | nn.Module],
        /,
        *more: str | nn.Module,
        until_epoch: int | None = None,
        norm_in_eval: bool = True,
    ) -> None:
        self.parts = (*([parts] if isinstance(parts, (str, nn.Module)) else parts), *more)
        if not self.parts:
            raise ConfigurationError(
                "nothing-to-freeze",
                "Freeze has no part to freeze: pass modules, names or patterns.",
            )
        if until_epoch is not None:
            check_number("Freeze(until_epoch", until_epoch, least=0, of="epochs", otherwise="None")
        self.until_epoch = until_epoch
        self.norm_in_eval = norm_in_eval
        self.is_frozen = False
        self._found = FoundParts()

    def on_train_start(self, trainer: Trainer) -> None:
        self._found = find_parts(trainer.modules, self.parts)
        if self.until_epoch is not None:
            self._check_held(trainer)
        self._apply(trainer)

    def on_epoch_start(self, trainer: Trainer) -> None:
        """Apply again in every epoch, since `model.train()` in user code puts batch norms back into
        train mode."""
        if self.is_frozen:
            self._apply(trainer)

    def holds(self, item: nn.Module | nn.Parameter) -> bool:
        """Whether this callback currently freezes a parameter or batch norm."""
        return self.is_frozen and (id(item) in self._found.params or id(item) in self._found.norms)

    def _apply(self, trainer: Trainer) -> None:
        self.is_frozen = self.until_epoch is None or trainer.progress.epoch < self.until_epoch
        others = [c for c in trainer.run.callbacks if isinstance(c, Freeze) and c is not self]
        for param in self._found.params.values():
            param.requires_grad_(
                not self.is_frozen and not any(other.holds(param) for other in others)
            )
        if self.norm_in_eval:
            for norm in self._found.norms.values():
                norm.training = not self.is_frozen and not any(
                    other.holds(norm) for other in others
                )
        trainer.run.updates.refresh(trainer.modules.values())

    def _check_held(self, trainer: Trainer) -> None:
        groups = [group for o in trainer.optimizers.values() for group in o.param_groups]
        held = {id(param) for group in groups for param in group["params"]}
        missing = sum(key not in held for key in self._found.params)
        if missing:
            raise ConfigurationError(
                "unfrozen-not-in-optimizer",
                f"Freeze(until_epoch={self.until_epoch}) will unfreeze {missing} parameters that "
                "no optimizer holds: build the optimizer from all parameters of the model, or "
                "pass it as a factory such as `partial(torch.optim.Adam, lr=1e-3)`.",
            )

"""Fine-tuning: parts of a model that are not trained, for a while or at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from ..callback import Callback
from ..errors import ConfigurationError
from ..optim.groups import BATCH_NORMS as BATCH_NORMS
from ..optim.groups import Found, find_parts, label_of
from ..optim.groups import param_groups as param_groups

if TYPE_CHECKING:
    from ..trainer import Trainer


class Freeze(Callback):
    """Keeps parts of the models from being trained, for good or for the first `until_epoch` epochs.

    Parts are given one after the other or in a list. A part is a module, or the name of a module or parameter, where
    `*`, `?` and `[...]` are patterns: "backbone", "layers.[0-3]", "*.bias". With several models, the model's name may
    come first: "encoder.layers.0". Batch norms inside frozen parts use their statistics and leave them as they are,
    unless `norm_in_eval` is False.

    The optimizer must hold the parameters that are unfrozen later: it does when it was built from all of them, or
    is given as a factory. At `until_epoch` all the parameters named here begin to be trained.
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
            raise ConfigurationError("Freeze() names nothing to freeze: pass modules, names or patterns.")
        if until_epoch is not None and (not isinstance(until_epoch, int) or until_epoch < 0):
            raise ConfigurationError(f"Freeze(until_epoch={until_epoch!r}): use a number of epochs, or None.")
        self.until_epoch = until_epoch
        self.norm_in_eval = norm_in_eval
        self.is_frozen = False
        self._found = Found()

    def on_train_start(self, trainer: Trainer) -> None:
        self._found = find_parts(trainer.modules, self.parts)
        if self.until_epoch is not None:
            self._check_held(trainer)
        self._apply(trainer)
        if not any(True for _ in trainer.parameters()):
            raise ConfigurationError(
                f"Freeze({', '.join(map(label_of, self.parts))}) leaves nothing to train: name fewer parts."
            )

    def on_epoch_start(self, trainer: Trainer) -> None:
        """Every epoch again, since `model.train()` in anybody's code wakes the batch norms up."""
        if self.is_frozen:
            self._apply(trainer)

    def holds(self, item: nn.Module | nn.Parameter) -> bool:
        """Whether this callback keeps a parameter or batch norm frozen at the moment."""
        return self.is_frozen and (id(item) in self._found.params or id(item) in self._found.norms)

    def _apply(self, trainer: Trainer) -> None:
        self.is_frozen = self.until_epoch is None or trainer.progress.epoch < self.until_epoch
        others = [c for c in trainer.run.callbacks if isinstance(c, Freeze) and c is not self]
        for param in self._found.params.values():
            param.requires_grad_(not self.is_frozen and not any(other.holds(param) for other in others))
        if self.norm_in_eval:
            for norm in self._found.norms.values():
                norm.training = not self.is_frozen and not any(other.holds(norm) for other in others)
        trainer.run.optimization.refresh(trainer.modules.values())

    def _check_held(self, trainer: Trainer) -> None:
        held = {id(p) for o in trainer.optimizers.values() for group in o.param_groups for p in group["params"]}
        missing = sum(key not in held for key in self._found.params)
        if missing:
            raise ConfigurationError(
                f"Freeze(until_epoch={self.until_epoch}) is to unfreeze {missing} parameters that no optimizer holds: "
                "build the optimizer from all parameters of the model, or pass it as a factory such as "
                "`partial(torch.optim.Adam, lr=1e-3)`."
            )


def freeze(model: nn.Module, parts: str | nn.Module | Iterable[str | nn.Module], *, norm_in_eval: bool = True) -> None:
    """Turn off training for the named parts of a model now; see `Freeze` for what names a part."""
    _switch(model, parts, trains=False, norms=norm_in_eval)


def unfreeze(model: nn.Module, parts: str | nn.Module | Iterable[str | nn.Module] = "*") -> None:
    """Turn training on again for the named parts of a model, batch norms included; for all of it by default."""
    _switch(model, parts, trains=True, norms=True)


def _switch(model: nn.Module, parts: str | nn.Module | Iterable[str | nn.Module], *, trains: bool, norms: bool) -> None:
    listed = [parts] if isinstance(parts, (str, nn.Module)) else list(parts)
    found = find_parts({"model": model}, listed)
    for param in found.params.values():
        param.requires_grad_(trains)
    if norms:
        for norm in found.norms.values():
            norm.training = trains

"""Fine-tuning: parts of a model that are not trained, for a while or at all, and learning rates for the others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn

from ..errors import ConfigurationError
from ..hooks import Callback

if TYPE_CHECKING:
    from ..trainer import Trainer

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Freeze(Callback):
    """Keeps parts of the models from being trained, for good or for the first `until_epoch` epochs.

    A part is a module, or the name of a module or parameter, where `*`, `?` and `[...]` are patterns: "backbone",
    "layers.[0-3]", "*.bias". With several models, the model's name may come first: "encoder.layers.0". Batch norms
    inside frozen parts use their statistics and leave them as they are, unless `norm_in_eval` is False.

    The optimizer must hold the parameters that are unfrozen later: it does when it was built from all of them, or
    is given as a factory. At `until_epoch` all the parameters named here begin to be trained.
    """

    def __init__(self, *parts: str | nn.Module, until_epoch: int | None = None, norm_in_eval: bool = True) -> None:
        if not parts:
            raise ConfigurationError("Freeze() names nothing to freeze: pass modules, names or patterns.")
        if until_epoch is not None and (not isinstance(until_epoch, int) or until_epoch < 0):
            raise ConfigurationError(f"Freeze(until_epoch={until_epoch!r}): use a number of epochs, or None.")
        self.parts = parts
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
                f"Freeze({', '.join(map(_label, self.parts))}) leaves nothing to train: name fewer parts."
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
        others = [c for c in trainer.active_callbacks if isinstance(c, Freeze) and c is not self]
        for param in self._found.params.values():
            param.requires_grad_(not self.is_frozen and not any(other.holds(param) for other in others))
        if self.norm_in_eval:
            for norm in self._found.norms.values():
                norm.training = not self.is_frozen and not any(other.holds(norm) for other in others)
        trainer.optimization.refresh(trainer.modules.values())

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


def param_groups(model: nn.Module, options: Mapping[str, float | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, with a learning rate for each part of the model.

    `options` maps names or patterns (as for `Freeze`) to a learning rate, or to a dict of optimizer options. A
    parameter goes with the first that matches it; those without any are in a last group, with the optimizer's own
    options: `Adam(param_groups(model, {"backbone": 1e-5}), lr=1e-3)`. Frozen parameters are included, so that they
    can be unfrozen later.
    """
    groups: list[dict[str, Any]] = []
    taken: set[int] = set()
    for pattern, given in options.items():
        params = [p for key, p in find_parts({"model": model}, [pattern]).params.items() if key not in taken]
        taken |= {id(p) for p in params}
        if params:
            groups.append({"params": params, **(given if isinstance(given, Mapping) else {"lr": given})})
    rest = [p for p in model.parameters() if id(p) not in taken]
    return [*groups, {"params": rest}] if rest else groups


@dataclass(frozen=True, slots=True)
class Found:
    """Parameters and batch norms by identity, each once however many names it has."""

    params: dict[int, nn.Parameter] = field(default_factory=dict)
    norms: dict[int, nn.Module] = field(default_factory=dict)


def find_parts(models: Mapping[str, nn.Module], parts: Iterable[str | nn.Module]) -> Found:
    """The parameters and batch norms of the named parts; a part that is not there is an error."""
    found = Found()
    for part in parts:
        roots, params = _inside(models, part) if isinstance(part, nn.Module) else _named(models, part)
        for root in roots:
            params += root.parameters()
            found.norms.update({id(m): m for m in root.modules() if isinstance(m, BATCH_NORMS)})
        found.params.update({id(p): p for p in params})
    for module in _all_modules(models):
        own = list(module.parameters(recurse=False))
        if isinstance(module, BATCH_NORMS) and own and all(id(p) in found.params for p in own):
            found.norms[id(module)] = module
    return found


def _named(models: Mapping[str, nn.Module], pattern: str) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """Modules and parameters by their name in a model; where none has it, by that name behind the model's."""
    for prefix in ("", "{}."):
        roots, params = [], []
        for model_name, model in models.items():
            front = prefix.format(model_name)
            roots += [m for n, m in _named_modules(model) if fnmatchcase((front + n).removesuffix("."), pattern)]
            params += [p for n, p in _named_params(model) if fnmatchcase(front + n, pattern)]
        if roots or params:
            return roots, params
    raise _not_found(models, pattern)


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    modules: Iterator[tuple[str, nn.Module]] = model.named_modules(remove_duplicate=False)
    return modules


def _named_params(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return model.named_parameters(remove_duplicate=False)


def _not_found(models: Mapping[str, nn.Module], pattern: str) -> ConfigurationError:
    names = [name for model in models.values() for name, _ in _named_modules(model) if name]
    names += [name for model in models.values() for name, _ in _named_params(model)]
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There is: {', '.join(names[:12])}."
    return ConfigurationError(f"No module or parameter of {', '.join(models)} is called {pattern!r}. {hint}")


def _inside(models: Mapping[str, nn.Module], module: nn.Module) -> tuple[list[nn.Module], list[nn.Parameter]]:
    if all(module is not other for other in _all_modules(models)):
        raise ConfigurationError(
            f"{_label(module)} is not a part of {', '.join(models)}: pass a module of the model that is trained."
        )
    return [module], []


def _all_modules(models: Mapping[str, nn.Module]) -> Iterator[nn.Module]:
    for model in models.values():
        yield from model.modules()


def _switch(model: nn.Module, parts: str | nn.Module | Iterable[str | nn.Module], *, trains: bool, norms: bool) -> None:
    listed = [parts] if isinstance(parts, (str, nn.Module)) else list(parts)
    found = find_parts({"model": model}, listed)
    for param in found.params.values():
        param.requires_grad_(trains)
    if norms:
        for norm in found.norms.values():
            norm.training = trains


def _label(part: str | nn.Module) -> str:
    return repr(part) if isinstance(part, str) else type(part).__name__

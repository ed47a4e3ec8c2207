"""Parameter groups: parts of a model by name, and optimizer options for each part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigurationError, check_number
from ..text import nearest

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
REGEX = "re:"


class GroupedOptimizer:
    """A factory for an optimizer with its own options for parts of the model, for
    `Trainer(optimizer=)`.

    Args:
        optimizer: The optimizer class, or another function of parameter groups and options.
        modifiers: Optimizer options by name or pattern of a part (as for `Freeze`, or "re:..." for
            a regular expression). A parameter gets the options of the first pattern that matches.
            The option `lr_scale` is a factor of the learning rate; others are options of the
            optimizer, such as `weight_decay`.
        no_decay: Whether biases and norms have no weight decay unless a modifier sets it.
        layer_factor: The ratio of the learning rates of consecutive direct children of the model:
            with 0.5, each has half the rate of the next one.
        **options: Options of the optimizer for all parameters.

    >>> import torch
    >>> from loopwright.callbacks import GroupedOptimizer
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> factory = GroupedOptimizer(torch.optim.SGD, modifiers={"0": {"lr_scale": 0.1}}, lr=1.0)
    >>> [group["lr"] for group in factory.build({"model": model}).param_groups]
    [0.1, 1.0]
    """

    def __init__(
        self,
        optimizer: Callable[..., Optimizer],
        *,
        modifiers: Mapping[str, Mapping[str, Any]] | None = None,
        no_decay: bool = False,
        layer_factor: float | None = None,
        **options: Any,
    ) -> None:
        if layer_factor is not None:
            check_number("GroupedOptimizer(layer_factor", layer_factor, above=0, is_whole=False)
        self.optimizer = optimizer
        self.modifiers = dict(modifiers or {})
        self.no_decay = no_decay
        self.layer_factor = layer_factor
        self.options = options

    def build(self, models: Mapping[str, nn.Module]) -> Optimizer:
        """Return the optimizer of all parameters, frozen ones included; a model that is frozen
        entirely is left out."""
        groups = self.groups(
            {name: m for name, m in models.items() if any(p.requires_grad for p in m.parameters())}
        )
        scales = [group.pop("lr_scale", 1.0) for group in groups]
        built = self.optimizer(groups, **self.options)
        for group, scale in zip(built.param_groups, scales, strict=True):
            if scale != 1.0:
                group["lr"] = group["lr"] * scale
        return built

    def groups(self, models: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
        """Return parameter groups, one for each combination of options, in the order of the models'
        parameters."""
        given = [
            (find_parts(models, [pattern]).params, options)
            for pattern, options in self.modifiers.items()
        ]
        plain = _plain_params(models) if self.no_decay else set()
        scales = _layer_scales(models, self.layer_factor)
        params = {id(p): p for model in models.values() for p in model.parameters()}
        groups: dict[str, dict[str, Any]] = {}
        for key, param in params.items():
            options = dict(next((own for named, own in given if key in named), {}))
            if key in plain:
                options.setdefault("weight_decay", 0.0)
            scale = options.pop("lr_scale", 1.0) * scales.get(key, 1.0)
            if scale != 1.0:
                options["lr_scale"] = scale
            group = groups.setdefault(repr(sorted(options.items())), {"params": [], **options})
            group["params"].append(param)
        return list(groups.values())


def _plain_params(models: Mapping[str, nn.Module]) -> set[int]:
    """Return the ids of biases and of parameters of norms, which weight decay does not help."""
    found: set[int] = set()
    for module in _all_modules(models):
        is_norm = "Norm" in type(module).__name__
        own = module.named_parameters(recurse=False)
        found |= {id(p) for name, p in own if is_norm or name == "bias" or name.startswith("bias_")}
    return found


def _layer_scales(models: Mapping[str, nn.Module], factor: float | None) -> dict[int, float]:
    """Return the factor of each parameter's learning rate; of a parameter shared by several
    children, that of the last one."""
    scales: dict[int, float] = {}
    if factor is None:
        return scales
    for model in models.values():
        children = [list(child.parameters()) for child in model.children()]
        layers = [params for params in children if params]
        for distance, params in enumerate(reversed(layers)):
            for param in params:
                scales.setdefault(id(param), factor**distance)
    return scales


@dataclass(frozen=True, slots=True)
class FoundParts:
    """Parameters and batch norms by id, each once, even if it has several names."""

    params: dict[int, nn.Parameter] = field(default_factory=dict)
    norms: dict[int, nn.Module] = field(default_factory=dict)


def find_parts(models: Mapping[str, nn.Module], parts: Iterable[str | nn.Module]) -> FoundParts:
    """Return the parameters and batch norms of the named parts; raise a `ConfigurationError` for an
    unknown part."""
    found = FoundParts()
    for part in parts:
        if isinstance(part, str):
            roots, params = _named(models, part)
        elif any(part is module for module in _all_modules(models)):
            roots, params = [part], []
        else:
            raise ConfigurationError(
                "foreign-module",
                f"{type(part).__name__} is not part of {', '.join(models)}: pass a module of the model "
                "that is trained.",
            )
        for root in roots:
            params += root.parameters()
            found.norms.update({id(m): m for m in root.modules() if isinstance(m, BATCH_NORMS)})
        found.params.update({id(p): p for p in params})
    for module in _all_modules(models):
        own = list(module.parameters(recurse=False))
        if isinstance(module, BATCH_NORMS) and own and all(id(p) in found.params for p in own):
            found.norms[id(module)] = module
    return found


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern: `*`, `?` and `[...]`, or a regular expression after
    "re:"."""
    if pattern.startswith(REGEX):
        return re.fullmatch(pattern.removeprefix(REGEX), name) is not None
    return fnmatchcase(name, pattern)


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, or the name of a module around it, matches a pattern: "head" matches
    "head.weight", too."""
    parts = name.split(".")
    fronts = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(matches(front, pattern) for pattern in patterns for front in fronts)


def _named(
    models: Mapping[str, nn.Module], pattern: str
) -> tuple[list[nn.Module], list[nn.Parameter]]:
    """Return modules and parameters by their name in a model, or else by model name and name in the
    model."""
    known: list[str] = []
    for has_prefix in (False, True):
        roots: list[nn.Module] = []
        params: list[nn.Parameter] = []
        for model_name, model in models.items():
            front = f"{model_name}." if has_prefix else ""
            for name, module in model.named_modules(remove_duplicate=False):
                known.append(name)
                if matches((front + name).removesuffix("."), pattern):
                    roots.append(module)
            for name, param in model.named_parameters(remove_duplicate=False):
                known.append(name)
                if matches(front + name, pattern):
                    params.append(param)
        if roots or params:
            return roots, params
    raise ConfigurationError(
        "unknown-part",
        f"No module or parameter of {', '.join(models)} matches {pattern!r}; "
        f"{nearest(pattern, filter(None, known), cutoff=0.4)}",
    )


def _all_modules(models: Mapping[str, nn.Module]) -> Iterator[nn.Module]:
    for model in models.values():
        yield from model.modules()

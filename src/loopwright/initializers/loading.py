"""Weights of one model put into another: what fits by name and shape, with a report of what happened to the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..checkpoint.placing import place_like
from ..errors import CheckpointError, ConfigurationError
from ..param_groups import matches_any
from ..run.weights import Choice, find_weights, load_weights

SHOWN = 8


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of each entry, by its name in the model; `unused` and `removed` are names in the source."""

    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # in the model only
    kept: tuple[str, ...] = ()  # left as they were, because that was asked for
    unused: tuple[str, ...] = ()  # in the source only
    removed: tuple[str, ...] = ()  # from the source, because that was asked for
    mismatched: tuple[str, ...] = ()  # of another shape, both shapes said
    source: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether everything that was not excepted fitted."""
        return not (self.missing or self.unused or self.mismatched)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.kept) + len(self.mismatched)
        lines = [f"Loaded {len(self.loaded)} of {total} entries of the model from {self.source}"]
        for name in ("missing", "mismatched", "kept", "unused", "removed"):
            entries: tuple[str, ...] = getattr(self, name)
            if entries:
                more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
                lines.append(f"  {name} ({len(entries)}): {', '.join(entries[:SHOWN])}{more}")
        return "\n".join(lines)


def load_matching(
    model: nn.Module,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    rename: Mapping[str, str] | None = None,
    remove: Sequence[str] = (),
    reinit: Sequence[str] = (),
    strict: bool = False,
    use: Choice = "newest",
    source_model: str | None = None,
) -> LoadReport:
    """Load what fits from a run, a checkpoint, a file of weights or a state dict into a model.

    `remove` leaves out entries of the source: names of parameters or modules, patterns with `*`, or "re:..." for a
    regular expression. Then `rename` maps regular expressions to replacements, as `re.sub` does, each in turn. `reinit`
    names entries of the model that stay as they are. What is left over on either side, or has another shape, is part
    of the report; with `strict` it is an error. Nothing fitting at all always is, and nothing is changed then.

    Of a run, `use` the newest resume point or the best kept model, or "any" for the best if there is one and the newest
    otherwise; `source_model` names one of several models.
    """
    if isinstance(source, Mapping):
        weights, label = dict(source), "a state dict"
    else:
        found = find_weights(source, use=use)
        weights, label = load_weights(found, model=source_model), str(found)
    removed = tuple(name for name in weights if matches_any(name, remove))
    offered = _renamed({n: v for n, v in weights.items() if n not in set(removed)}, rename or {}, label)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    report, chosen = _match(own, offered, reinit, removed, label)
    _check(report, strict, offered, model)
    _load(model, chosen)
    return report


def read_weights(
    path: str | os.PathLike[str], *, use: Choice = "newest", model: str | None = None
) -> dict[str, Tensor]:
    """The weights in a run directory, a checkpoint, a safetensors file, or somebody's `.pt`, which runs no code."""
    return load_weights(path, model=model, use=use)


def _renamed(weights: Mapping[str, Tensor], rename: Mapping[str, str], label: str) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for name, value in weights.items():
        new = name
        for pattern, replacement in rename.items():
            try:
                new = re.sub(pattern, replacement, new)
            except re.error as error:
                raise ConfigurationError(f"rename {pattern!r} -> {replacement!r}: {error}.") from None
        if new in origin:
            raise ConfigurationError(
                f"rename makes {new!r} of both {origin[new]!r} and {name!r} of {label}: make the patterns tell them "
                "apart, or `remove` one."
            )
        result[new], origin[new] = value, name
    return result


def _match(
    own: Mapping[str, Tensor],
    offered: Mapping[str, Tensor],
    reinit: Sequence[str],
    removed: tuple[str, ...],
    label: str,
) -> tuple[LoadReport, dict[str, Tensor]]:
    kept = {name for name in own if matches_any(name, reinit)}
    shared = [name for name in own if name in offered and name not in kept]
    fitting = [name for name in shared if own[name].shape == offered[name].shape]
    mismatched = tuple(
        f"{name} {tuple(own[name].shape)} (source {tuple(offered[name].shape)})"
        for name in shared
        if own[name].shape != offered[name].shape
    )
    report = LoadReport(
        loaded=tuple(fitting),
        missing=tuple(name for name in own if name not in offered and name not in kept),
        kept=tuple(name for name in own if name in kept),
        unused=tuple(name for name in offered if name not in own),
        removed=removed,
        mismatched=mismatched,
        source=label,
    )
    return report, {name: offered[name] for name in fitting}


def _check(report: LoadReport, strict: bool, offered: Mapping[str, Tensor], model: nn.Module) -> None:
    if not report.loaded:
        raise CheckpointError(
            f"Nothing in {report.source} fits the model.\n  source: {_some(offered)}\n  model: "
            f"{_some(model.state_dict())}\nUse `rename` to map the names of one to those of the other.\n{report}"
        )
    if strict and not report.is_complete:
        raise CheckpointError(
            f"{report.source} does not fit the model, and nothing was changed.\n{report}\nName what is not to be taken "
            "from the source in `remove`, and what is to stay as the model has it in `reinit`; map names with "
            "`rename`; or say strict=False to take what fits (arguments of `loopwright.initializers.load_matching`)."
        )


def _some(names: Mapping[str, Tensor]) -> str:
    return ", ".join(list(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


@torch.no_grad()
def _load(model: nn.Module, chosen: Mapping[str, Tensor]) -> None:
    """In place, also where this process holds only a part of an entry."""
    own = model.state_dict()
    model.load_state_dict({name: place_like(value, own[name]) for name, value in chosen.items()}, strict=False)

"""Weights of one model put into another: what fits by name and shape, with a report of what happened to the rest."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from ..callback import Callback
from ..checkpoint.sharded import place_like
from ..errors import CheckpointError, ConfigurationError
from ..run.weights import Choice, find_weights, load_weights
from .groups import matches_any

if TYPE_CHECKING:
    from ..trainer import Trainer


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


class Initializer(Callback):
    """Changes the models of a trainer before the first step of a run. Override `initialize`.

    It is a callback that hears of the start before all others, so that averages and the like begin with its weights.
    """

    precedence = -1

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.progress.step == 0:
            self.initialize(trainer)

    def initialize(self, trainer: Trainer) -> None:
        """Give the models the weights to begin with."""


class FromCheckpoint(Initializer):
    """Begins with the weights of an earlier run, a checkpoint, or a safetensors or `.pt` file.

    `rename`, `remove`, `reinit`, `strict` and `use` are those of `load_matching`; by default everything has to fit
    that is not excepted. With several models, `model` names the one that is loaded into and `source_model` the one in
    the source. `report` says what was loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rename: Mapping[str, str] | None = None,
        remove: Sequence[str] = (),
        reinit: Sequence[str] = (),
        strict: bool = True,
        use: Literal["newest", "best", "any"] = "newest",
        model: str | None = None,
        source_model: str | None = None,
    ) -> None:
        if use not in ("newest", "best", "any"):
            raise ConfigurationError(f"FromCheckpoint(use={use!r}): say 'newest', 'best' or 'any'.")
        self.path = Path(path)
        self.rename = dict(rename or {})
        self.remove, self.reinit = tuple(remove), tuple(reinit)
        self.strict = strict
        self.use: Literal["newest", "best", "any"] = use
        self.model = model
        self.source_model = source_model
        self.report: LoadReport | None = None

    def apply(self, model: nn.Module) -> LoadReport:
        """Load into this model now."""

        self.report = load_matching(
            model,
            self.path,
            rename=self.rename,
            remove=self.remove,
            reinit=self.reinit,
            strict=self.strict,
            use=self.use,
            source_model=self.source_model,
        )
        return self.report

    def initialize(self, trainer: Trainer) -> None:
        trainer.run.say(str(self.apply(self._target(trainer))))

    def _target(self, trainer: Trainer) -> nn.Module:
        models = {n: m for n, m in trainer.models.items() if any(True for _ in m.parameters())}
        if self.model is None and len(models) == 1:
            return next(iter(models.values()))
        if self.model is None or self.model not in models:
            near = difflib.get_close_matches(self.model or "", models, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(
                f"FromCheckpoint(model={self.model!r}): say which of the models {', '.join(models)} to load into.{hint}"
            )
        return models[self.model]


class Resume:
    """Begins with the complete state of another run: `trainer.train(..., resume=Resume("runs/a").point(run_dir))`.

    The other run is read and not touched. Once the new run has resume points of its own, it goes on from those.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def point(self, run_dir: str | Path | None = None) -> str | Path:
        """What to give to `train(resume=)`."""
        from ..checkpoint.inspect import find_checkpoint, list_checkpoints

        has_folder = run_dir is not None and (Path(run_dir) / "checkpoints").is_dir()
        if run_dir is not None and has_folder and any(i.kind == "resume" for i in list_checkpoints(run_dir)):
            return "auto"
        return find_checkpoint(self.path)

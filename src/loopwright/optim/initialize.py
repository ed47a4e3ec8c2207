"""Initial weights from another run or file: entries that match by name and shape, and a report of
the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from ..callback import Callback
from ..errors import CheckpointError, ConfigurationError
from ..text import listed, nearest
from .groups import matches_any

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..run.best import Choice


SHOWN = 8


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of loading weights: the names of entries by what happened to them; `str` makes a
    summary.

    Args:
        loaded: Entries of the model that were loaded.
        missing: Entries of the model that the source does not have.
        kept: Entries of the model that were kept by `reinit`.
        unused: Entries of the source that the model does not have.
        removed: Entries of the source that were excluded by `remove`.
        mismatched: Entries with different shapes, with both shapes.
        source: The description of the source.

    >>> from loopwright.initializers import LoadReport
    >>> print(LoadReport(loaded=("weight",), missing=("bias",), source="model.safetensors"))
    Loaded 1 of 2 entries of the model from model.safetensors
      missing (1): bias
    """

    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether all entries matched, except those named in `reinit` and `remove`."""
        return not (self.missing or self.unused or self.mismatched)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.kept) + len(self.mismatched)
        lines = [f"Loaded {len(self.loaded)} of {total} entries of the model from {self.source}"]
        for name in ("missing", "mismatched", "kept", "unused", "removed"):
            entries: tuple[str, ...] = getattr(self, name)
            if entries:
                lines.append(f"  {name} ({len(entries)}): {listed(entries, most=SHOWN)}")
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
    """Load the entries that match by name and shape into a model.

    Args:
        model: The model to load into.
        source: A run directory, a checkpoint, a file of weights (`.safetensors` or `.pt`), or a
            state dict.
        rename: Regular expressions and their replacements, applied to names of the source in turn,
            as by `re.sub`.
        remove: Entries of the source to exclude, before renaming: names of parameters or modules,
            patterns with `*`, or "re:..." for a regular expression.
        reinit: Entries of the model to keep, named as in `remove`.
        strict: Whether entries that are missing, unused or of another shape are an error. If no
            entry matches at all, it is always an error. The model is not changed in case of an
            error.
        use: Which weights of a run: of the "newest" resume point, of the "best" kept model, or
            "any" (the best model if there is one, otherwise the newest).
        source_model: The name of the model in a source with several models.

    Returns:
        A report of what was loaded and what was not.

    >>> import torch
    >>> from loopwright.initializers import load_matching
    >>> model = torch.nn.Linear(2, 1)
    >>> report = load_matching(model, {"weight": torch.ones(1, 2), "scale": torch.ones(1)})
    >>> report.loaded, report.missing, report.unused
    (('weight',), ('bias',), ('scale',))
    """
    from ..checkpoint.sharded import place_like
    from ..run.best import find_weights, load_weights

    if isinstance(source, Mapping):
        weights = dict(source)
        label = "a state dict"
    else:
        found = find_weights(source, use=use)
        weights = load_weights(found, model=source_model)
        label = str(found)
    removed = tuple(name for name in weights if matches_any(name, remove))
    offered = _renamed(
        {n: v for n, v in weights.items() if n not in set(removed)}, rename or {}, label
    )
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    kept = [name for name in own if matches_any(name, reinit)]
    loaded, mismatched = _fitting(own, offered, kept)
    # a file has one name of tied weights
    ties = {name: id(param) for name, param in model.named_parameters(remove_duplicate=False)}
    covered = {ties[name] for name in loaded if name in ties}
    tied = [n for n in own if n not in offered and n not in kept and ties.get(n) in covered]
    report = LoadReport(
        loaded=(*loaded, *tied),
        missing=tuple(name for name in own if name not in {*offered, *kept, *tied}),
        kept=tuple(kept),
        unused=tuple(name for name in offered if name not in own),
        removed=removed,
        mismatched=mismatched,
        source=label,
    )
    _check(report, strict, offered, model)
    with torch.no_grad():  # in place, also into sharded parameters
        chosen = {name: place_like(offered[name], own[name]) for name in loaded}
        model.load_state_dict(chosen, strict=False)
    return report


def _renamed(
    weights: Mapping[str, Tensor], rename: Mapping[str, str], label: str
) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for name, value in weights.items():
        new = name
        for pattern, replacement in rename.items():
            new = re.sub(pattern, replacement, new)
        if new in origin:
            raise ConfigurationError(
                "rename-collision",
                f"rename maps both {origin[new]!r} and {name!r} of {label} to {new!r}: change the "
                "patterns so that the names differ, or `remove` one.",
            )
        result[new] = value
        origin[new] = name
    return result


def _fitting(
    own: Mapping[str, Tensor], offered: Mapping[str, Tensor], kept: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """The names of entries that fit, and descriptions of those of another shape."""
    fitting: list[str] = []
    others: list[str] = []
    for name, value in own.items():
        if name not in offered or name in kept:
            continue
        if value.shape == offered[name].shape:
            fitting.append(name)
        else:
            others.append(f"{name} {tuple(value.shape)} (source {tuple(offered[name].shape)})")
    return fitting, tuple(others)


def _check(
    report: LoadReport, strict: bool, offered: Mapping[str, Tensor], model: nn.Module
) -> None:
    if not report.loaded:
        raise CheckpointError(
            "no-weight-fits",
            f"Nothing in {report.source} matches the model.\n"
            f"  source: {listed(offered, most=SHOWN)}\n"
            f"  model: {listed(model.state_dict(), most=SHOWN)}\n"
            "Use `rename` to map the names of one to those of the other.\n"
            f"{report}",
        )
    if strict and not report.is_complete:
        raise CheckpointError(
            "weights-do-not-fit",
            f"{report.source} does not match the model; nothing was changed.\n"
            f"{report}\n"
            "List entries of the source to ignore in `remove`, and parts of the model to leave "
            "unchanged in `reinit`; map names with `rename`; or pass strict=False to load "
            "whatever matches (arguments of `loopwright.initializers.load_matching`).",
        )


class Initializer(Callback):
    """A callback that changes the models before the first step of a run: the base class; override
    `initialize`.

    It runs before all other callbacks, so that averages and the like begin with its weights.

    >>> import torch
    >>> from loopwright.initializers import Initializer
    >>> class Zero(Initializer):
    ...     def initialize(self, trainer):
    ...         torch.nn.init.zeros_(trainer.model.weight)
    """

    precedence = -1

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.progress.step == 0:
            self.initialize(trainer)

    def initialize(self, trainer: Trainer) -> None:
        """Set the initial weights of the trainer's models."""


class FromCheckpoint(Initializer):
    """A callback that loads the initial weights from an earlier run, a checkpoint, or a safetensors
    or `.pt` file.

    By default every entry has to match, except those in `reinit` and `remove`. The attribute
    `report` is the `LoadReport` afterwards.

    Args:
        path: The run directory, checkpoint or file.
        rename: As for `load_matching`, like `remove`, `reinit`, `strict` and `use`.
        remove: Entries of the source to exclude.
        reinit: Entries of the model to keep.
        strict: Whether entries that do not match are an error.
        use: Which weights of a run: "newest", "best" or "any".
        model: The name of the trainer's model to load into, if there are several.
        source_model: The name of the model in the source, if there are several.

    >>> import pathlib, tempfile, torch
    >>> from loopwright.initializers import FromCheckpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "weights.pt"
    ...     torch.save(torch.nn.Linear(2, 1).state_dict(), path)
    ...     FromCheckpoint(path).apply(torch.nn.Linear(2, 1)).loaded
    ('weight', 'bias')
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
        self.path = Path(path)
        self.rename = dict(rename or {})
        self.remove = tuple(remove)
        self.reinit = tuple(reinit)
        self.strict = strict
        self.use: Literal["newest", "best", "any"] = use
        self.model = model
        self.source_model = source_model
        self.report: LoadReport | None = None

    def apply(self, model: nn.Module) -> LoadReport:
        """Load into this model now, and return the report."""
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
            raise ConfigurationError(
                "from-checkpoint-model",
                f"FromCheckpoint(model={self.model!r}): choose one of the models to load into; "
                f"{nearest(self.model, models)}",
            )
        return models[self.model]

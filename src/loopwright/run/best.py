"""Which kept model of a run is the best one, and the weights that a run has come to. Torch is
imported with weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..checkpoint.inspect import (
    CheckpointInfo,
    find_checkpoint,
    is_checkpoint,
    list_checkpoints,
    published_file,
)
from ..errors import CheckpointError, ConfigurationError
from ..metrics.best import Mode, direction_of, headline, ranked
from .directory import MANIFEST
from .reading import Run

if TYPE_CHECKING:
    from torch import Tensor

Choice = Literal["any", "best", "newest"]


def choose(run: str | os.PathLike[str] | Run, metric: str | None = None) -> CheckpointInfo | None:
    """The best sound model that a run kept; None where it kept none.

    Everything that asks for the best model of a run asks here. Where models were kept by several
    metrics, the run's main metric (`Run.main_metric`) decides. Of kept models that were copied
    without their run, the metric that would come first by its name decides. Of models that are
    equally good, the earliest is the best.

    Args:
        run: A run directory, or a directory with kept models.
        metric: The metric to choose by, if not the run's main metric.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from loopwright.run import choose
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "kept").mkdir()
        ...     print(choose(folder))
        None
    """
    path = run.path if isinstance(run, Run) else Path(run)
    kept = [
        info
        for info in list_checkpoints(path)
        if info.kind == "kept" and info.is_sound and info.metric
    ]
    if not kept:
        return None
    has_run = isinstance(run, Run) or (path / MANIFEST).is_file()
    view = None if not has_run else run if isinstance(run, Run) else Run(path)
    names = list(dict.fromkeys(_metric(info) for info in kept))
    if metric is None:
        main = None if view is None else view.main_metric
        metric = main if main in names else headline(names, () if view is None else view.eval_keys)
    by_metric = [info for info in kept if _metric(info) == metric]
    if not by_metric:
        raise CheckpointError(
            "no-such-kept-metric",
            f"{path} has no model kept by {metric!r}; models were kept by {', '.join(names)}.",
        )
    return ranked(sorted(by_metric, key=_age), _value, _mode_of(by_metric, view))[0]


def _mode_of(kept: list[CheckpointInfo], view: Run | None) -> Mode:
    """Which values of the metric are better: `Run.mode_of`, or without a run the note of the
    newest model."""
    metric = _metric(kept[0])
    mode = kept[-1].mode or direction_of(metric) if view is None else view.mode_of(metric)
    if mode is None and len(kept) > 1:
        raise CheckpointError(
            "unrecorded-direction",
            f"Models were kept by {metric!r}, but it was not recorded whether smaller or larger "
            f"values are better: name one of {', '.join(info.name for info in kept)}.",
        )
    return mode or "min"


def _metric(info: CheckpointInfo) -> str:
    return "" if info.metric is None else info.metric[0]


def _value(info: CheckpointInfo) -> float | None:
    return None if info.metric is None else info.metric[1]


def _age(info: CheckpointInfo) -> tuple[int, str]:
    return int(info.meta.get("update") or 0), info.name


def load_weights(
    path: str | os.PathLike[str], *, model: str | None = None, use: Choice = "any"
) -> dict[str, Tensor]:
    """The tensors of one model: `model.load_state_dict(load_weights("runs/first"))`.

    Of a run directory, the best kept model is taken, or the newest resume point where no model was
    kept, and a line says which. A checkpoint, a kept model and a file of weights are taken as they
    are; the content of a file decides how it is read, whatever its name ends in. A torch file is
    read with torch's restricted reader, which runs no code.

    Args:
        path: A run directory, a checkpoint, a kept model, a folder of Hugging Face's, or a file of
            weights (also a `.ckpt` of Lightning).
        model: The name of the model, where a checkpoint holds several.
        use: Of a run directory, "best" for the best kept model, "newest" for the newest resume
            point, "any" for the best kept model if there is one.

    Example:
        >>> import tempfile, torch
        >>> from loopwright import load_weights
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save(torch.nn.Linear(2, 1).state_dict(), f"{folder}/model.pt")
        ...     sorted(load_weights(f"{folder}/model.pt"))
        ['bias', 'weight']
    """
    from ..checkpoint.weights import load_weights as load_stored_weights

    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(
            "weights-path",
            f"load_weights was given a {type(path).__name__}, but it takes a path: write "
            "`model.load_state_dict(load_weights('runs/first'))`.",
        )
    source = find_weights(path, use=use)
    if use == "any" and source != Path(path):
        print(f"Weights of {Path(path)}: {_label(source)}.", flush=True)
    return load_stored_weights(source, model=model)


def find_weights(path: str | os.PathLike[str], *, use: Choice = "any") -> Path:
    """The checkpoint or file at a path; of a run, its best kept model or its newest resume
    point."""
    source = Path(path)
    if not source.is_dir() or is_checkpoint(source) or _is_published(source):
        return source
    if use not in ("any", "best", "newest"):
        raise ConfigurationError(
            "weights-choice",
            f"use={use!r}: use 'best', 'newest' or 'any'.",
        )
    best = None if use == "newest" else choose(source)
    if best is not None:
        return best.path
    if use == "best":
        raise CheckpointError(
            "no-best-model",
            f"{source} has no kept model: train with BestModel, or pass use='newest'.",
        )
    return find_checkpoint(source)


def _is_published(folder: Path) -> bool:
    """Whether it is a model as Hugging Face saves it, and no run."""
    return published_file(folder) is not None and not (folder / MANIFEST).is_file()


def _label(checkpoint: Path) -> str:
    """ "the best kept model, update-00000040 (eval_loss 0.31)"."""
    (info,) = list_checkpoints(checkpoint)
    if info.metric is None:
        return f"the newest resume point, {info.name}"
    return f"the best kept model, {info.name} ({info.metric[0]} {info.metric[1]:.4g})"

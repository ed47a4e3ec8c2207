"""The keys of a run file: what may stand where, and every mistake in one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from ...config import Config, Entry, Place, Problem, Schema, check, mapping_of, one_of_kind
from ...config.kinds import describes_several, names_in, names_of, shipped_names
from ...schedules import Curve
from .trainer import INITIALIZER, BaseTrainer

DEPENDENCIES = (
    "model",
    "datasets",
    "optimizer",
    "scheduler",
    "seed",
    "run_dir",
    "runtime",
    "progress",
)

GROUPING = {
    "modifiers": Entry(dict[str, dict[str, Any]]),
    "no_decay": Entry(bool),
    "layer_factor": Entry(float),
}
OPTIMIZER = Place(
    "optimizer",
    Optimizer,
    given=("params",),
    default="torch.optim.AdamW",
    also=GROUPING,
)
SCHEDULER = Place(
    "scheduler",
    (Curve, LRScheduler),
    given=("optimizer",),
    short={**shipped_names((LRScheduler,)), **names_in("loopwright.schedules")},
    also={
        "every": Entry(Literal["update", "epoch"]),
    },
)
MODEL = Place(
    "model",
    nn.Module,
    also={
        "optimizer": Entry(one_of_kind(OPTIMIZER)),
        "scheduler": Entry(one_of_kind(SCHEDULER)),
    },
    several=True,
)
DATASET = Place("dataset", Dataset)
TRAINER = Place("trainer", BaseTrainer, given=DEPENDENCIES)


def model_names(config: Config) -> list[str]:
    """The names of the models, where a run file describes several; none where it describes one."""
    model = config.at("model").tree
    return [str(name) for name in names_of(model, MODEL)] if describes_several(model, MODEL) else []


@cache
def schema() -> Schema:
    """The keys of a run file of this interface."""
    data: Any = dict[str, Any]
    return Schema(
        {
            "name": Entry(str | None),
            "seed": Entry(int | None),
            "output_path": Entry(Path | None),
            "tags": Entry(list[str]),
            "resume": Entry(bool | str | None),
            "vars": Entry(data),
            "defaults": Entry(list[Any] | str),
            "modules": Entry(str),
            "sweep": Entry(data),
            "model": Entry(one_of_kind(MODEL), required=True),
            "datasets": Entry(mapping_of(DATASET), required=True),
            "trainer": Entry(one_of_kind(TRAINER), required=True),
            "optimizer": Entry(one_of_kind(OPTIMIZER)),
            "scheduler": Entry(one_of_kind(SCHEDULER)),
            "initializer": Entry(one_of_kind(INITIALIZER)),
        }
    )


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def find_problems(config: Config) -> Iterator[Problem]:
    """Every mistake in a run file."""
    yield from check(config, schema())
    name = config.get("name")
    if isinstance(name, str) and not NAME.fullmatch(name):
        yield config.problem(
            "name",
            f"{name!r} must be usable as the name of a folder: use letters, digits, '.', '-' and "
            "'_'.",
        )
    datasets = config.get("datasets")
    if isinstance(datasets, Mapping) and "train" not in datasets:
        known = ", ".join(map(str, datasets)) or "none"
        yield config.problem(
            "datasets", f"there is no data set `train` to train on, only: {known}."
        )
    if isinstance(config.get("model"), Mapping):
        yield from _wrong_parts(config, model_names(config))
    if config.get("initializer") is not None and config.get("trainer.initializer") is not None:
        yield config.problem(
            "initializer",
            "there is another one in `trainer` (trainer.initializer): keep only one of them.",
        )


def _wrong_parts(config: Config, names: Sequence[str]) -> Iterator[Problem]:
    """Optimizers and schedulers that are there twice, or not where they would be needed."""
    owners = [f"model.{name}" for name in names] or ["model"]
    for part in ("optimizer", "scheduler"):
        own = [f"{owner}.{part}" for owner in owners if config.get(f"{owner}.{part}") is not None]
        if own and config.get(part) is not None:
            yield config.problem(
                part, f"there is another one in `model` ({', '.join(own)}): keep only one of them."
            )
    with_optimizer = [name for name in names if config.get(f"model.{name}.optimizer") is not None]
    for name in names:
        key = f"model.{name}"
        if not name.isidentifier():
            yield config.problem(
                key, f"{name!r} must be a name as in Python: use letters, digits and '_'."
            )
        if with_optimizer and f"{key}.optimizer" not in config:
            yield config.problem(
                key,
                f"has no optimizer, but model.{with_optimizer[0]} has one: give it its own "
                "`optimizer:`, or write `optimizer: null` for a model that is not trained.",
            )

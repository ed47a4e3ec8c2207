"""The run that a config of this interface describes: mistakes in the config, and the objects that
are built from it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from ...config import (
    Config,
    Entry,
    Place,
    Problem,
    Schema,
    beside,
    build,
    check,
    mapping_of,
    one_of_kind,
)
from ...config.kinds import (
    describes_several,
    names_in,
    names_of,
    resolve_kind,
    shipped_names,
)
from ...data.order import derive_seed
from ...data.random import preserved_rng, seed_generators
from ...optim.build import Schedule
from ...optim.groups import GroupedOptimizer
from ...run.experiment import ConfiguredRun
from ...schedules import Curve
from .trainer import INITIALIZER, UNITS, BaseTrainer

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


def optimizer_of(node: Config) -> Any:
    """A factory, which the core calls once the model is where it computes."""

    def make(params: Any) -> Optimizer:
        optimizer: Optimizer = build(node, OPTIMIZER, params=params)
        return optimizer

    grouping = {name: node.get(name) for name in GROUPING if node.get(name)}
    return GroupedOptimizer(make, **grouping) if grouping else make


def scheduler_of(node: Config) -> Any:
    """A curve over the run as it is; of torch's schedulers a factory, with how often it is stepped
    if that is said."""
    kind = resolve_kind(node.get("kind"), SCHEDULER, node.folder)
    if isinstance(kind, type) and issubclass(kind, Curve):
        return build(node, SCHEDULER)
    return Schedule(
        lambda optimizer: build(node, SCHEDULER, optimizer=optimizer), every=node.get("every")
    )


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

CHANGEABLE = {
    "name",
    "output_path",
    "resume",
    "tags",
    "vars",
    "sweep",
    "trainer.num_workers",
    "trainer.save_on_sigint",
}
CHANGEABLE |= {f"trainer.max_{unit}" for unit in UNITS}
CHANGEABLE |= {f"trainer.{what}_every_n_{unit}" for what in ("log", "track") for unit in UNITS}


class Experiment(ConfiguredRun):
    """A run as its config describes it. Nothing is built before `build`, or before something needs
    it.

    `trainer` is the trainer once it is built, and `run` the run directory once there is one.
    """

    changeable = frozenset(CHANGEABLE)
    trainer: BaseTrainer | None

    @classmethod
    def find_problems(cls, config: Config) -> Iterator[Problem]:
        yield from check(config, schema())
        yield from _other_problems(config)

    def build_dataset(self, key: str) -> Any:
        """One of the data sets, by itself."""
        with beside(self.config.folder), preserved_rng():
            # a data set that draws is not the same as the next one
            self._seed(zlib.crc32(key.encode()))
            return build(self.config.at("datasets").at(key), DATASET)

    def build_trainer(self, datasets: Mapping[str, Any]) -> BaseTrainer:
        """The model and its trainer, for data sets that are there already."""
        config = self.config
        with beside(config.folder), preserved_rng():
            self._seed()
            model = build(config.at("model"), MODEL)
            trainer: BaseTrainer = build(
                config.at("trainer"),
                TRAINER,
                model=model,
                datasets=datasets,
                optimizer=self._part("optimizer", optimizer_of),
                scheduler=self._part("scheduler", scheduler_of),
                seed=self.seed,
                run_dir=None,
                runtime=None,
                progress=self.progress,
            )
            if config.get("initializer") is not None:
                trainer.engine.add_callback(build(config.at("initializer"), INITIALIZER))
        return trainer

    def _part(self, part: str, make: Callable[[Config], Any]) -> Any:
        """The optimizers or schedulers by the names of their models, the model's own, or the one
        that is for all."""
        config = self.config
        keys = {name: f"model.{name}.{part}" for name in model_names(config)}
        found = {
            name: make(config.at(key)) for name, key in keys.items() if config.get(key) is not None
        }
        if found:
            return found
        key = next((key for key in (f"model.{part}", part) if config.get(key) is not None), None)
        return None if key is None else make(config.at(key))

    def _seed(self, *purpose: int) -> None:
        if self.seed is not None:
            seed_generators(derive_seed(self.seed, *purpose) if purpose else self.seed)


def _other_problems(config: Config) -> Iterator[Problem]:
    """Mistakes that the types of single values do not show."""
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

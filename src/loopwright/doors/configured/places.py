"""What a run file describes for this door: which objects, of which kinds, and what is given to them."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from ...config import Config, Entry, Place, Schema, build, one_of_kind, run_schema
from ...config.kinds import resolve_kind, schedule_names, scheduler_names
from ...config.places import describes_several, names_of
from ...optim.build import Schedule
from ...optim.groups import GroupedOptimizer
from ...schedules import Curve
from .config import INITIALIZER
from .trainer import BaseTrainer

DEPENDENCIES = ("model", "datasets", "optimizer", "scheduler", "seed", "run_dir", "runtime", "progress")

GROUPING = {
    "modifiers": Entry(
        dict[str, dict[str, Any]],
        description="Options for the parameters whose names match a pattern; `lr_scale` is a factor of `lr`.",
    ),
    "no_decay": Entry(bool, description="Leave biases and normalisation layers without weight decay."),
    "layer_factor": Entry(float, description="Factor of the learning rate from each layer to the one before."),
}
OPTIMIZER = Place(
    "optimizer",
    Optimizer,
    given=("params",),
    default="torch.optim.AdamW",
    also=GROUPING,
    description="What updates the weights; AdamW where nothing is said.",
)
SCHEDULER = Place(
    "scheduler",
    (Curve, LRScheduler),
    given=("optimizer",),
    short={**scheduler_names(), **schedule_names()},
    also={
        "every": Entry(
            Literal["update", "epoch"], description="How often a scheduler of torch is stepped; a curve needs no steps."
        )
    },
    description="How the learning rate changes: a curve over the run, or a scheduler of torch.",
)
MODEL = Place(
    "model",
    nn.Module,
    also={
        "optimizer": Entry(one_of_kind(OPTIMIZER), description="What updates its weights."),
        "scheduler": Entry(one_of_kind(SCHEDULER), description="How the learning rate changes."),
    },
    several=True,
    description="The model, any torch.nn.Module; or several by their names, each with its optimizer.",
)
DATASET = Place("dataset", Dataset, description="A data set whose samples are dicts.")
TRAINER = Place("trainer", BaseTrainer, given=DEPENDENCIES, description="The trainer and its settings.")


def model_names(config: Config) -> list[str]:
    """The names of the models, where a run file describes several; none where it describes one."""
    model = config.at("model").tree
    return [str(name) for name in names_of(model, MODEL)] if describes_several(model, MODEL) else []


@cache
def schema() -> Schema:
    """The keys of a run file of this door."""
    return run_schema(
        model=MODEL,
        dataset=DATASET,
        trainer=TRAINER,
        optimizer=OPTIMIZER,
        scheduler=SCHEDULER,
        initializer=INITIALIZER,
    )


def optimizer_of(node: Config) -> Any:
    """A factory, which the core calls once the model is where it computes."""

    def make(params: Any) -> Optimizer:
        optimizer: Optimizer = build(node, OPTIMIZER, params=params)
        return optimizer

    grouping = {name: node.get(name) for name in GROUPING if node.get(name)}
    return GroupedOptimizer(make, **grouping) if grouping else make


def scheduler_of(node: Config) -> Any:
    """A curve over the run as it is; of torch's schedulers a factory, with how often it is stepped if that is said."""
    kind = resolve_kind(node.get("kind"), SCHEDULER, node.folder)
    if isinstance(kind, type) and issubclass(kind, Curve):
        return build(node, SCHEDULER)
    return Schedule(lambda optimizer: build(node, SCHEDULER, optimizer=optimizer), every=node.get("every"))

"""`loopwright tune CONFIG`: try settings of a run for their speed, and print what is worth it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..interfaces.configured.config import BaseTrainerConfig
from ..interfaces.configured.core import ConfiguredCore
from ..tuning.tune import Tuner
from ..tuning.tune_table import summary_of
from .finders import built
from .output import INTERRUPTED, OK, print_json, printable

COMPILED = ("model",)  # the values of `compile` that a run file has a setting for
IN_CODE = {
    "channels_last": "self.to(memory_format=torch.channels_last)  # at the end of the model's __init__",
    "fused": "fused: true  # among the settings of the optimizer in the run file",
    "pin_memory": "pin_memory=True  # in your own DataLoader",
}


def tune_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        data, size = _data_of(engine)
        tuner = Tuner(
            engine,
            data,
            batch_size=size,
            seconds=options.seconds,
            only=options.only,
            compile_choices=COMPILED,
            is_silent=options.json,
        )
        tuning = tuner.run()
        config = engine.config
    if options.json:
        print_json(
            tuning.to_dict() | {"lines": lines_for(tuning.suggestion, options.config, config)}
        )
    else:
        print()
        for line in summary_of(
            tuning, lambda settings: lines_for(settings, options.config, config)
        ):
            print(printable(line))
    return OK if tuning.is_complete else INTERRUPTED


def _data_of(engine: ConfiguredCore) -> tuple[Any, int | None]:
    """The training data in a loader that has its collate function, and the batch size of data that
    has no loader."""
    data = engine.training_data()
    if isinstance(data, DataLoader) or not isinstance(data, Dataset):
        return data, None
    if isinstance(data, IterableDataset):
        return data, engine.config.batch_size
    return engine._loader(data, shuffle=True), None


def lines_for(settings: Mapping[str, Any], path: str, config: BaseTrainerConfig) -> list[str]:
    """What to write for some settings: a command with overrides of the run file, and lines of
    code."""
    overrides = overrides_for(settings, config)
    threads = f"OMP_NUM_THREADS={settings['threads']} " if "threads" in settings else ""
    command = [f"{threads}loopwright train {path}{''.join(f' {text}' for text in overrides)}"]
    return [
        *(command if overrides or threads else []),
        *(IN_CODE[name] for name in settings if name in IN_CODE),
    ]


def overrides_for(settings: Mapping[str, Any], config: BaseTrainerConfig) -> list[str]:
    """The overrides of a run file for some settings; `+` adds a key that the file does not have."""
    values: dict[str, Any] = {}
    if "workers" in settings:
        values["num_workers"] = settings["workers"]
    if "batch_size" in settings:
        values["effective_batch_size"] = settings["batch_size"] * config.accumulate
        if config.max_batch_size is not None:
            values["max_batch_size"] = settings["batch_size"]
    if "precision" in settings:
        values["precision"] = settings["precision"]
    if "compile" in settings:
        values["use_torch_compile"] = {None: "false", "step": "step"}.get(
            settings["compile"], "true"
        )
    given = config.model_fields_set
    return [
        f"{'' if name in given else '+'}trainer.{name}={value}" for name, value in values.items()
    ]

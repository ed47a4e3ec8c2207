"""A whole run from one config: its objects, its directory, its training, and what can be asked of it afterwards."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import yaml

from ...config import Config, ConfigError, Problem, beside, build, check, load_config, nearest
from ...data.order import derive_seed
from ...data.random import preserved_rng, seed_everything
from ...errors import ConfigurationError
from ...metrics.history import History
from ...run import RunDirectory, RunManifest
from ...run.directory import logging_to
from ...runtime import dry_run
from ...runtime.base import move_to
from ...training.evaluate import predict as predict_batches
from ...training.program import Changes, Display
from .config import INITIALIZER
from .data import describe_dataset
from .engine import Engine
from .places import DATASET, MODEL, TRAINER, model_names, optimizer_of, scheduler_of, schema
from .recording import (
    Destination,
    RunLog,
    choose,
    config_text,
    copy_modules,
    noting_failure,
    record_continuation,
    record_start,
    settings_of,
)
from .stored import load_for_use
from .trainer import BaseTrainer

READERS = {"OfflineLoss": "eval", "DatasetStatistics": "train"}  # callbacks that name a data set, with the default
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Experiment:
    """A run as its config describes it. Nothing is built before `build`, or before something needs it.

    `trainer` is the trainer once it is built, and `run` the run directory once there is one.
    """

    def __init__(self, config: Config, *, run: str | Path | None = None, progress: Display = "auto") -> None:
        self.config = config
        self.run = None if run is None else Path(run)
        self.progress = progress
        self.seed: int | None = config.get("seed", 0)
        self.name: str = config.get("name") or Path(config.place("")[0]).stem
        self.trainer: BaseTrainer | None = None
        self._has_trained = False
        self._reader: tuple[str, BaseTrainer] | None = None  # with the weights of a checkpoint

    @classmethod
    def from_config(cls, config: Config, *, progress: Display = "auto") -> Self:
        """The run of a config; every mistake in it is in one ConfigError."""
        problems = [*check(config, schema()), *_other_problems(config)]
        if problems:
            raise ConfigError(problems)
        return cls(config, progress=progress)

    @classmethod
    def from_run(cls, run: str | Path, *, progress: Display = "auto") -> Self:
        """The run in a directory, from the config and the code that were kept there."""
        directory = RunDirectory.open(run)
        if not directory.config_path.is_file():
            raise ConfigurationError(f"{run} was not started from a config: there is no config.yaml in it.")
        experiment = cls.from_config(load_config(directory.config_path), progress=progress)
        experiment.run = directory.path
        return experiment

    def build(self) -> None:
        """Build the data sets, the model and the trainer."""
        self.trainer, self._has_trained = self._build(), False

    def train(self, *, resume: bool | str | Path = "auto", changes: Changes = "refuse") -> History:
        """Train, in a run directory. An unfinished run of the same name and config is continued.

        `resume=False` starts a run of its own; a path goes on from that run, or from that checkpoint in a new run.
        `changes="accept"` goes on with the newest unfinished run although its config, code or data have changed.
        """
        if resume == "auto":
            given = self.config.get("resume")
            resume = "auto" if given is None else given
        if self.trainer is None or (self._has_trained and resume is False):
            self.build()
        trainer = self.trainer
        assert trainer is not None
        with beside(self.config.folder):
            if dry_run.current is not None:  # which takes one update and touches no directory
                return trainer.train()
            destination = self._open(trainer, resume, accepts=changes == "accept")
            self._has_trained = True
            assert self.run is not None
            if not trainer.engine.runtime.is_main:
                return trainer.train(resume=destination.resume, changes=changes)
            run, log = RunDirectory.open(self.run), self._add_log(trainer.engine, destination)
            with logging_to(run.log_path), noting_failure(run) if destination.is_new else nullcontext():
                try:
                    return trainer.train(resume=destination.resume, changes=changes)
                finally:
                    if log.record is None:  # unless the run was left as it is
                        copy_modules(self.config.folder, run.path)  # those imported late

    def evaluate(self, dataset_key: str | None = None, *, checkpoint: str | Path = "newest") -> dict[str, float]:
        """The losses on a data set; without a key, what the run's evaluation callbacks measure, once.

        `checkpoint` is "newest", "best" (by the metric that models were kept for) or a path.
        """
        trainer = self.ready(checkpoint)
        with beside(self.config.folder):
            if dataset_key is not None:
                return trainer.evaluate(dataset_key)
            return trainer.eval()

    def predict(self, dataset_key: str, *, checkpoint: str | Path = "newest") -> list[Any]:
        """The model's outputs for a data set, one entry for each batch, in order and in main memory."""
        trainer = self.ready(checkpoint)
        with beside(self.config.folder):
            engine = trainer.engine
            engine.setup()
            stream = engine._open(engine.dataset(dataset_key), None, shuffle=False)
            return [move_to(output, torch.device("cpu")) for output in predict_batches(engine.run, stream)]

    def ready(self, checkpoint: str | Path) -> BaseTrainer:
        """A trainer with the weights of the run, for use: the one that trained, or one that loads a checkpoint."""
        if self._has_trained and checkpoint == "newest":
            assert self.trainer is not None
            return self.trainer
        if self.run is None:
            raise ConfigurationError(
                "There is nothing to evaluate yet: call `train` first, or take a run that is there with "
                "Experiment.from_run(directory)."
            )
        if self._reader is None or self._reader[0] != str(checkpoint):
            trainer = self._build()
            load_for_use(trainer.engine, self.run, checkpoint)
            self._reader = str(checkpoint), trainer
        return self._reader[1]

    # Objects

    def build_dataset(self, key: str) -> Any:
        """One of the data sets, by itself."""
        with beside(self.config.folder), preserved_rng():
            self._seed(zlib.crc32(key.encode()))  # a data set that draws is not the same as the next one
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

    def _build(self) -> BaseTrainer:
        return self.build_trainer({key: self.build_dataset(str(key)) for key in self.config.get("datasets", {})})

    def _part(self, part: str, make: Callable[[Config], Any]) -> Any:
        """The optimizers or schedulers by the names of their models, the model's own, or the one that is for all."""
        config = self.config
        keys = {name: f"model.{name}.{part}" for name in model_names(config)}
        found = {name: make(config.at(key)) for name, key in keys.items() if config.get(key) is not None}
        if found:
            return found
        key = next((key for key in (f"model.{part}", part) if config.get(key) is not None), None)
        return None if key is None else make(config.at(key))

    def _seed(self, *purpose: int) -> None:
        if self.seed is not None:
            seed_everything(derive_seed(self.seed, *purpose) if purpose else self.seed)

    # The run directory

    def _open(self, trainer: BaseTrainer, resume: bool | str | Path, *, accepts: bool) -> Destination:
        """Choose the directory and write down what goes on in it; the first process does, the others follow."""
        engine = trainer.engine
        destination: Destination | None = None
        if engine.runtime.is_main:
            destination = self._prepare(trainer, resume, accepts=accepts)
        destination = engine.runtime.broadcast_object(destination)
        assert destination is not None
        self.run = engine.run_dir = destination.path.absolute()
        engine.settings = settings_of(yaml.safe_load(config_text(self.config, self.name)))
        return destination

    def _add_log(self, engine: Engine, destination: Destination) -> RunLog:
        log = next((callback for callback in engine.run.callbacks if isinstance(callback, RunLog)), None)
        if log is None:
            log = RunLog()
            engine.add_callback(log)
        if not destination.is_new:
            run, text = RunDirectory.open(destination.path), config_text(self.config, self.name)
            log.record = partial(record_continuation, run, self.config, text)
        return log

    def _prepare(self, trainer: BaseTrainer, resume: bool | str | Path, *, accepts: bool) -> Destination:
        engine, config = trainer.engine, self.config
        text = config_text(config, self.name)
        data = {str(key): describe_dataset(dataset) for key, dataset in trainer.datasets.items()}
        manifest = RunManifest.collect(
            device=str(engine.runtime.device),
            seed=self.seed,
            name=self.name,
            tags=_words(config.get("tags")),
            data=data,
        )
        accept = None if accepts else engine.words.accept_changes
        destination = self._destination(text, manifest.id, resume, accept)
        if destination.remark is not None:
            engine.run.say(destination.remark)
        if not destination.is_new:
            return destination
        run = RunDirectory.fresh(destination.path)
        with run.starting():
            record_start(run, config, text, manifest)
        run.unlock()
        return Destination(run.path, is_new=True, resume=destination.resume)

    def _destination(self, text: str, run_id: str, resume: bool | str | Path, accept: str | None) -> Destination:
        if self.run is not None and resume in ("auto", True):
            return Destination(self.run, is_new=False)
        config = yaml.safe_load(text)
        return choose(self.config.get("output_path"), self.name, run_id, resume, config, accept=accept)


def _other_problems(config: Config) -> Iterator[Problem]:
    """Mistakes that the types of single values do not show."""
    name = config.get("name")
    if isinstance(name, str) and not NAME.fullmatch(name):
        yield config.problem("name", f"{name!r} is to be the name of a folder: use letters, digits, '.', '-' and '_'.")
    datasets = config.get("datasets")
    if isinstance(datasets, Mapping) and "train" not in datasets:
        known = ", ".join(map(str, datasets)) or "none"
        yield config.problem("datasets", f"there is no data set `train` to train on, only: {known}.")
    if isinstance(datasets, Mapping):
        yield from _unknown_datasets(config, list(map(str, datasets)))
    if isinstance(config.get("model"), Mapping):
        yield from _wrong_parts(config, model_names(config))
    if config.get("initializer") is not None and config.get("trainer.initializer") is not None:
        yield config.problem("initializer", "there is one in `trainer` too (trainer.initializer): keep one of them.")


def _wrong_parts(config: Config, names: Sequence[str]) -> Iterator[Problem]:
    """Optimizers and schedulers that are there twice, or not where they would be needed."""
    owners = [f"model.{name}" for name in names] or ["model"]
    for part in ("optimizer", "scheduler"):
        own = [f"{owner}.{part}" for owner in owners if config.get(f"{owner}.{part}") is not None]
        if own and config.get(part) is not None:
            yield config.problem(part, f"there is one in `model` too ({', '.join(own)}): keep one of them.")
    if not names and "model.optimizer" in config and config.get("model.optimizer") is None:
        yield config.problem("model.optimizer", "is null, and a model is trained: leave it out for AdamW, or name one.")
    yield from _wrong_names(config, names)
    with_optimizer = [name for name in names if config.get(f"model.{name}.optimizer") is not None]
    for name in names:
        key = f"model.{name}"
        if with_optimizer and f"{key}.optimizer" not in config:
            yield config.problem(
                key,
                f"has no optimizer, and model.{with_optimizer[0]} has one: give it an `optimizer:` of its own, or say "
                "`optimizer: null` for a model that is not trained.",
            )
        if config.get(f"{key}.scheduler") is not None and name not in with_optimizer:
            yield config.problem(f"{key}.scheduler", "has no optimizer to work on: add one to this model.")
    if len(with_optimizer) > 1 and config.get("scheduler") is not None:
        there = ", ".join(f"model.{name}.optimizer" for name in with_optimizer)
        yield config.problem("scheduler", f"there are several optimizers ({there}): put a scheduler into each model.")


def _wrong_names(config: Config, names: Sequence[str]) -> Iterator[Problem]:
    for name in names:
        if not name.isidentifier():
            message = f"{name!r} is to be the name of a model: use letters, digits and '_', as in Python."
            yield config.problem(f"model.{name}", message)


def _unknown_datasets(config: Config, known: Sequence[str]) -> Iterator[Problem]:
    """Callbacks that name a data set which is not there."""
    callbacks = config.get("trainer.callbacks")
    for at, callback in enumerate(callbacks if isinstance(callbacks, list) else ()):
        kind = callback.get("kind") if isinstance(callback, Mapping) else callback
        name = str(kind).rpartition(".")[2]
        if name not in READERS:
            continue
        key = callback.get("dataset_key", READERS[name]) if isinstance(callback, Mapping) else READERS[name]
        if isinstance(key, str) and key not in known:
            place = f"trainer.callbacks.{at}.dataset_key"
            yield config.problem(place, f"there is no data set {key!r}; {nearest(key, known)}")


def _words(tags: Any) -> list[str]:
    if isinstance(tags, Mapping):
        return [f"{key}={value}" for key, value in tags.items()]
    return [str(tag) for tag in tags] if isinstance(tags, list) else [] if tags is None else [str(tags)]

"""A run from one config: its objects, its directory, its training, and evaluation and prediction
afterwards.

This is the layer between the command line and an interface. It owns run directories and the
recording of a run; which objects a config describes, and how they are built, is the part of the
interface, which subclasses `Experiment`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
import yaml
from torch.utils.data import IterableDataset, default_collate

from ..callback import Callback
from ..checkpoint.inspect import find_checkpoint, list_checkpoints
from ..checkpoint.weights import read_parts
from ..config import Config, ConfigError, Problem, beside, load_config
from ..config.tree import Node
from ..data.fetch import Fetcher, peek_samples
from ..errors import CheckpointError, ConfigurationError
from ..metrics.history import History
from ..runtime import dry_run
from ..runtime.base import move_to
from ..trainer import Trainer
from ..training.evaluate import predict as predict_batches
from ..training.fingerprint import hash_samples
from ..training.program import Changes, Display
from ..training.restore import load_parts
from .best import choose
from .changes import Change
from .directory import RunDirectory, logging_to
from .manifest import RunManifest
from .recording import (
    Destination,
    choose_directory,
    copy_modules,
    differences,
    noting_failure,
    record_continuation,
    record_start,
    settings_of,
)

logger = logging.getLogger("loopwright.run")


class InterfaceTrainer(Protocol):
    """The trainer of an interface, as far as an experiment uses it."""

    @property
    def engine(self) -> Trainer: ...
    @property
    def datasets(self) -> Mapping[str, Any]: ...
    def train(self, *, resume: bool | str | Path = ..., changes: Changes = ...) -> History: ...
    def evaluate(self, dataset_key: str) -> dict[str, float]: ...
    def eval(self) -> dict[str, float]: ...


InterfaceTrainerT = TypeVar("InterfaceTrainerT", bound=InterfaceTrainer)


class Experiment(ABC, Generic[InterfaceTrainerT]):
    """A run as its config describes it. Nothing is built before `build`, or before something needs
    it.

    `trainer` is the trainer once it is built, and `run` the run directory once there is one.
    """

    # keys of the config that may differ in a run that is continued
    changeable: ClassVar[Collection[str]] = ()

    def __init__(
        self, config: Config, *, run: str | Path | None = None, progress: Display = "auto"
    ) -> None:
        self.config = config
        self.run = None if run is None else Path(run)
        self.progress = progress
        self.seed: int | None = config.get("seed", 0)
        self.name: str = config.get("name") or Path(config.place("")[0]).stem
        self.trainer: InterfaceTrainerT | None = None
        self._has_trained = False
        self._reader: tuple[str, InterfaceTrainerT] | None = (
            None  # with the weights of a checkpoint
        )

    @classmethod
    def from_config(cls, config: Config, *, progress: Display = "auto") -> Self:
        """The run of a config; one ConfigError names every mistake in it.

        Args:
            config: A config from `loopwright.config.load_config`.
            progress: How progress is displayed: "auto", "bar", "lines" or "silent".
        """
        if problems := list(cls.find_problems(config)):
            raise ConfigError(problems)
        return cls(config, progress=progress)

    @classmethod
    def from_run(cls, run: str | Path, *, progress: Display = "auto") -> Self:
        """The run in a run directory, from the config and the code that were kept there."""
        directory = RunDirectory.open(run)
        if not directory.config_path.is_file():
            raise ConfigurationError(
                "not-from-run-file",
                f"{run} was not started from a run file: it has no config.yaml.",
            )
        experiment = cls.from_config(load_config(directory.config_path), progress=progress)
        experiment.run = directory.path
        return experiment

    @classmethod
    def changes_since(cls, earlier: Mapping[str, Any], config: Config, name: str) -> list[Change]:
        """The settings that make a config another run than an earlier one; `name` is that of the
        run."""
        return differences(earlier, yaml.safe_load(config_text(config, name)), cls.changeable)

    def build(self) -> None:
        """Build the data sets, the model and the trainer."""
        self.trainer = self._build()
        self._has_trained = False

    def train(self, *, resume: bool | str | Path = "auto", changes: Changes = "refuse") -> History:
        """Train, in a run directory. An unfinished run of the same name and config is continued.

        Args:
            resume: "auto" to continue an unfinished run, False for a new run, a path to continue
                that run or to start a new run from that checkpoint.
            changes: "accept" continues the newest unfinished run although its config, code or data
                have changed.

        Returns:
            The metrics of all epochs and steps.
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
            run = RunDirectory.open(self.run)
            log = self._add_log(trainer.engine, destination)
            with (
                logging_to(run.log_path),
                noting_failure(run) if destination.is_new else nullcontext(),
            ):
                try:
                    return trainer.train(resume=destination.resume, changes=changes)
                finally:
                    if log.record is None:  # unless the run was left as it is
                        copy_modules(self.config.folder, run.path)  # those imported late

    def evaluate(
        self, dataset_key: str | None = None, *, checkpoint: str | Path = "newest"
    ) -> dict[str, float]:
        """Compute the losses on a data set, or run the run's evaluation callbacks once.

        Args:
            dataset_key: A data set of the config; without it, the evaluation callbacks measure.
            checkpoint: "newest", "best" (see `loopwright.run.choose`) or a path.

        Returns:
            The metrics by name.
        """
        trainer = self.ready(checkpoint)
        with beside(self.config.folder):
            if dataset_key is not None:
                return trainer.evaluate(dataset_key)
            return trainer.eval()

    def predict(self, dataset_key: str, *, checkpoint: str | Path = "newest") -> list[Any]:
        """The model's outputs for a data set: one entry for each batch, in order, on the CPU."""
        trainer = self.ready(checkpoint)
        with beside(self.config.folder):
            engine = trainer.engine
            engine.setup()
            stream = engine._open(self.dataset_of(trainer, dataset_key), None, shuffle=False)
            return [
                move_to(output, torch.device("cpu"))
                for output in predict_batches(engine.run, stream)
            ]

    def ready(self, checkpoint: str | Path) -> InterfaceTrainerT:
        """A trainer with the weights of the run, for use: the one that trained, or one that loads a
        checkpoint."""
        if self._has_trained and checkpoint == "newest":
            assert self.trainer is not None
            return self.trainer
        if self.run is None:
            raise ConfigurationError(
                "not-trained-yet",
                "There is nothing to evaluate yet: call `train` first, or load an existing run "
                "with Experiment.from_run(directory).",
            )
        if self._reader is None or self._reader[0] != str(checkpoint):
            trainer = self._build()
            load_for_use(trainer.engine, self.run, checkpoint)
            self._reader = str(checkpoint), trainer
        return self._reader[1]

    # The part of an interface

    @classmethod
    @abstractmethod
    def find_problems(cls, config: Config) -> Iterable[Problem]:
        """Every mistake in a config."""

    @abstractmethod
    def build_dataset(self, key: str) -> Any:
        """Build one of the data sets, by itself."""

    @abstractmethod
    def build_trainer(self, datasets: Mapping[str, Any]) -> InterfaceTrainerT:
        """Build the model and its trainer, for data sets that are built already."""

    @abstractmethod
    def dataset_of(self, trainer: InterfaceTrainerT, key: str) -> Any:
        """A data set of a trainer by its key; an error names the keys there are."""

    @abstractmethod
    def set_settings(self, trainer: InterfaceTrainerT, settings: Mapping[str, Any]) -> None:
        """Give a trainer the settings that a continued run must have, for its fingerprint."""

    def _build(self) -> InterfaceTrainerT:
        return self.build_trainer(
            {key: self.build_dataset(str(key)) for key in self.config.get("datasets", {})}
        )

    # The run directory

    def _open(
        self, trainer: InterfaceTrainerT, resume: bool | str | Path, *, accepts: bool
    ) -> Destination:
        """Choose the run directory on rank 0, record the start of a new run in it, and give all
        ranks its path."""
        engine = trainer.engine
        destination: Destination | None = None
        if engine.runtime.is_main:
            destination = self._prepare(trainer, resume, accepts=accepts)
        destination = engine.runtime.broadcast_object(destination)
        assert destination is not None
        self.run = engine.run_dir = destination.path.absolute()
        settings = yaml.safe_load(config_text(self.config, self.name))
        self.set_settings(trainer, settings_of(settings, self.changeable))
        return destination

    def _add_log(self, engine: Trainer, destination: Destination) -> RunLog:
        log = next(
            (callback for callback in engine.run.callbacks if isinstance(callback, RunLog)), None
        )
        if log is None:
            log = RunLog()
            engine.run.bind([*engine.run.callbacks, log])
        if not destination.is_new:
            run = RunDirectory.open(destination.path)
            text = config_text(self.config, self.name)
            log.record = partial(record_continuation, run, self.config.folder, text)
        return log

    def _prepare(
        self, trainer: InterfaceTrainerT, resume: bool | str | Path, *, accepts: bool
    ) -> Destination:
        engine = trainer.engine
        config = self.config
        text = config_text(config, self.name)
        data = {str(key): describe_dataset(dataset) for key, dataset in trainer.datasets.items()}
        manifest = RunManifest.collect(
            device=str(engine.runtime.device),
            seed=self.seed,
            seed_source="default" if "seed" not in config else "argument",
            name=self.name,
            tags=_words(config.get("tags")),
            data=data,
        )
        accept = None if accepts else engine._message_names.accept_changes
        destination = self._destination(text, manifest.id, resume, accept)
        if destination.remark is not None:
            engine.run.say(destination.remark)
        if not destination.is_new:
            return destination
        run = RunDirectory.fresh(destination.path)
        with run.starting():
            record_start(run, config.folder, text, manifest)
        run.unlock()
        return Destination(run.path, is_new=True, resume=destination.resume)

    def _destination(
        self, text: str, run_id: str, resume: bool | str | Path, accept: str | None
    ) -> Destination:
        if self.run is not None and resume in ("auto", True):
            return Destination(self.run, is_new=False)
        config = yaml.safe_load(text)
        output = self.config.get("output_path")
        return choose_directory(
            output, self.name, run_id, resume, config, changeable=self.changeable, accept=accept
        )


def _words(tags: Any) -> list[str]:
    if isinstance(tags, Mapping):
        return [f"{key}={value}" for key, value in tags.items()]
    return (
        [str(tag) for tag in tags]
        if isinstance(tags, list)
        else []
        if tags is None
        else [str(tags)]
    )


def config_text(config: Config, name: str) -> str:
    """The resolved config as text: a file that runs, with the name of the run in it and its modules
    beside it."""
    root = config.root
    entries = {key: child for key, child in root.value.items() if key != "modules"}
    if entries.get("name") is None or entries["name"].value is None:
        entries = {"name": Node(name, root.file, None)} | {
            k: v for k, v in entries.items() if k != "name"
        }
    return Config(Node(entries, root.file, root.line), config.folder).to_yaml()


class RunLog(Callback):
    """Logs starts, epochs and ends of training to the run's log, which is open for as long as
    `train` takes.

    `record`, of a resumed run, is called once it is known to continue; the lines that it returns
    are printed.
    """

    def __init__(self) -> None:
        self.record: Callable[[], list[str]] | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        record = self.record
        self.record = None
        for remark in record() if record is not None else ():
            trainer.run.say(remark)
        progress = trainer.progress
        logger.info(
            "Training from epoch %d, update %d, sample %d.",
            progress.epoch,
            progress.update,
            progress.sample,
        )

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        values = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        logger.info(
            "Epoch %d, update %d: %s", trainer.progress.epoch, trainer.progress.update, values
        )

    def on_train_end(self, trainer: Trainer) -> None:
        reason = trainer.stop_reason or "the limit is reached"
        logger.info(
            "Ended after epoch %d, update %d: %s.",
            trainer.progress.epoch,
            trainer.progress.update,
            reason,
        )

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        where = f"epoch {trainer.progress.epoch}, update {trainer.progress.update}"
        if isinstance(error, Exception):
            logger.error("Failed after %s.", where, exc_info=error)
        else:
            logger.warning("Interrupted after %s: %r.", where, error)


def load_for_use(trainer: Trainer, run: Path, which: str | Path) -> Path:
    """Load the newest or best checkpoint of a run, or one by its path; a resume point with its
    averages of weights."""
    trainer.setup()
    if which == "best":
        path = _best(run)
        is_kept = True
    else:
        path = find_checkpoint(run if which == "newest" else which)
        is_kept = any(info.kind == "kept" for info in list_checkpoints(path))
    if is_kept:
        load_parts(trainer.run, read_parts(path), optimizers=False, schedules=False)
    else:
        trainer.load(path)
    return path


def _best(run: Path) -> Path:
    info = choose(run)
    if info is None:
        raise CheckpointError(
            "no-kept-models", f"{run} has no kept models: use the newest checkpoint, or name one."
        )
    return info.path


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Samples are read as with a fixed seed, and nothing that is random afterwards is another for
    it."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return {"kind": kind, "length": None, "fingerprint": None}
    samples = peek_samples(Fetcher(dataset, default_collate, 0))
    return {"kind": kind, "length": len(dataset), "fingerprint": hash_samples(samples)}

"""The run that a config describes: its objects, its directory, its training, and evaluation and
prediction afterwards."""

from __future__ import annotations

import logging
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from torch.optim import Optimizer

from ...callback import Callback
from ...checkpoint.atomic import staged_file, write_bytes
from ...checkpoint.inspect import find_checkpoint, list_checkpoints
from ...checkpoint.manifest import local_path
from ...checkpoint.weights import read_parts
from ...config import Config, ConfigError, beside, build, load_config
from ...config.kinds import resolve_kind
from ...config.tree import Node
from ...data.order import derive_seed
from ...data.random import preserved_rng, seed_generators
from ...errors import CheckpointError, ConfigurationError
from ...metrics.history import History
from ...optim.build import Schedule
from ...optim.groups import GroupedOptimizer
from ...run.best import choose
from ...run.changes import Change, find_changes, flatten, listed
from ...run.directory import RunDirectory, logging_to, shown
from ...run.manifest import RunManifest, uncommitted_diff, update_manifest
from ...run.reading import Run, as_tags
from ...runtime.base import move_to
from ...schedules import Curve
from ...trainer import Trainer
from ...training.evaluate import predict as predict_batches
from ...training.program import Changes, Display
from ...training.restore import load_parts
from .core import describe_dataset
from .schema import (
    DATASET,
    GROUPING,
    MODEL,
    OPTIMIZER,
    SCHEDULER,
    TRAINER,
    find_problems,
    model_names,
)
from .trainer import INITIALIZER, UNITS, BaseTrainer

ROOT = "runs"
logger = logging.getLogger("loopwright.run")
# keys of the config that may differ in a run that is continued
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


@dataclass(frozen=True, slots=True)
class Destination:
    """The directory of a run, and the checkpoint it resumes from if that is elsewhere."""

    path: Path
    is_new: bool
    resume: str | Path = "auto"


class Experiment:
    """A run as its config describes it. Nothing is built before `build`, or before something needs
    it.

    `trainer` is the trainer once it is built, and `run` the run directory once there is one.
    """

    def __init__(self, config: Config, *, progress: Display = "auto") -> None:
        self.config = config
        self.run: Path | None = None
        self.progress = progress
        self.seed: int | None = config.get("seed", 0)
        self.name: str = config.get("name") or Path(config.place("")[0]).stem
        self.trainer: Any = None  # a BaseTrainer, from `build` on
        self._has_trained = False
        self._reader: tuple[str, Any] = ("", None)  # a checkpoint, and a trainer with its weights

    @classmethod
    def from_config(cls, config: Config, *, progress: Display = "auto") -> Self:
        """The run of a config; one ConfigError names every mistake in it.

        Args:
            config: A config from `loopwright.config.load_config`.
            progress: How progress is displayed: "auto", "bar", "lines" or "silent".
        """
        if problems := list(find_problems(config)):
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
        now = yaml.safe_load(config_text(config, name))
        first, second = (fixed_settings(each) for each in (earlier, now))
        return find_changes(first, second, lambda before, after: before == after)

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
        if resume == "auto" and self.config.get("resume") is not None:
            resume = self.config.get("resume")
        if self.trainer is None or (self._has_trained and resume is False):
            self.build()
        trainer = self.trainer
        with beside(self.config.folder):
            destination = self._open(resume, accepts=changes == "accept")
            self._has_trained = True
            is_main = trainer.engine.runtime.is_main
            with self._recording(destination) if is_main else nullcontext():
                history: History = trainer.train(resume=destination.resume, changes=changes)
        return history

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
            metrics = trainer.eval() if dataset_key is None else trainer.evaluate(dataset_key)
        return dict(metrics)

    def predict(self, dataset_key: str, *, checkpoint: str | Path = "newest") -> list[Any]:
        """The model's outputs for a data set: one entry for each batch, in order, on the CPU."""
        engine = self.ready(checkpoint).engine
        with beside(self.config.folder):
            engine.setup()
            stream = engine._open(engine.dataset(dataset_key), None, shuffle=False)
            outputs = predict_batches(engine.run, stream)
            return [move_to(output, torch.device("cpu")) for output in outputs]

    def ready(self, checkpoint: str | Path) -> Any:
        """A trainer with the weights of the run, for use: the one that trained, or one that loads a
        checkpoint."""
        if self._has_trained and checkpoint == "newest":
            return self.trainer
        if self.run is None:
            raise ConfigurationError(
                "not-trained-yet",
                "There is nothing to evaluate yet: call `train` first, or load an existing run "
                "with Experiment.from_run(directory).",
            )
        if self._reader[0] != str(checkpoint):
            trainer = self._build()
            load_for_use(trainer.engine, self.run, checkpoint)
            self._reader = str(checkpoint), trainer
        return self._reader[1]

    # Its objects

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

    def _build(self) -> BaseTrainer:
        return self.build_trainer(
            {key: self.build_dataset(str(key)) for key in self.config.get("datasets", {})}
        )

    # The run directory

    def _open(self, resume: bool | str | Path, *, accepts: bool) -> Destination:
        """Choose the run directory on rank 0, record the start of a new run in it, and give all
        ranks its path."""
        engine = self.trainer.engine
        destination = None
        if engine.runtime.is_main:
            destination = self._prepare(resume, accepts)
        chosen: Destination = engine.runtime.broadcast_object(destination)
        self.run = engine.run_dir = chosen.path.absolute()
        engine.settings = fixed_settings(yaml.safe_load(config_text(self.config, self.name)))
        return chosen

    def _prepare(self, resume: bool | str | Path, accepts: bool) -> Destination:
        engine = self.trainer.engine
        data = {str(key): describe_dataset(each) for key, each in self.trainer.datasets.items()}
        manifest = RunManifest.collect(
            device=str(engine.runtime.device),
            seed=self.seed,
            seed_source="argument" if "seed" in self.config else "default",
            name=self.name,
            tags=as_tags(self.config.get("tags")),
            data=data,
        )
        destination = self._destination(manifest.id, resume, accepts)
        if not destination.is_new:
            return destination
        run = RunDirectory.fresh(destination.path)
        with run.starting():
            self._record_source(run, is_new=True)
            if diff := uncommitted_diff(self.config.folder):
                _write(run.diff_path, diff)
            manifest.write(run.manifest_path)
        run.unlock()
        return replace(destination, path=run.path)

    def _record_source(self, run: RunDirectory, *, is_new: bool) -> list[str]:
        """Write the config and the code of the run as they are now; the names of modules that were
        there and have changed."""
        changed = copy_modules(self.config.folder, run.path, is_new=is_new)
        _write(run.config_path, config_text(self.config, self.name).encode())
        return changed

    def _destination(self, run_id: str, resume: bool | str | Path, accepts: bool) -> Destination:
        """The directory of the run: a new one, or that of an unfinished run with the same settings.

        A run that another process writes is never continued. One with another config is if the user
        `accepts` that; otherwise a line says how to ask for it.
        """
        engine = self.trainer.engine
        is_any = resume in ("auto", True)
        if self.run is not None and is_any:
            return Destination(self.run, is_new=False)
        output = self.config.get("output_path")
        home = Path(ROOT, self.name, run_id)
        if output is not None:
            home = local_path(output, "output_path")
        if resume is False:
            return Destination(home, is_new=True)
        if not is_any:
            path = Path(str(resume))
            if (path / "run.json").is_file():
                return Destination(path, is_new=False)
            if not path.exists():
                raise ConfigurationError(
                    "resume-path",
                    f"resume: {str(path)!r} does not exist: name a run directory or a checkpoint, "
                    "or use 'auto' or false.",
                )
            engine.run.say(f"Starting a new run from {shown(path)}.")
            return Destination(home, is_new=True, resume=path)
        remark = None
        earlier = _runs_in(home.parent) if output is None else _runs_like(home)
        for run in map(Run, earlier):
            is_over = run.state in ("finished", "stopped")
            if run.state in ("running", "unreadable") or (is_over and output is None):
                continue
            changed = self.changes_since(run.config_file or {}, self.config, self.name)
            if not changed or accepts:
                return Destination(run.path, is_new=False)
            remark = remark or (
                f"{shown(run.path)} was started with a different config:{listed(changed)}\n"
                "This is a new run. To resume the earlier run with the new values, pass "
                f"{engine._message_names.accept_changes}."
            )
        if remark is not None:
            engine.run.say(remark)
        return Destination(home, is_new=True)

    @contextmanager
    def _recording(self, destination: Destination) -> Iterator[None]:
        """Log to the run's log, and keep its config and code up to date. An error before the first
        step, when no callback records errors yet, is noted in the manifest."""
        assert self.run is not None
        run = RunDirectory.open(self.run)
        callbacks = self.trainer.engine.run.callbacks
        log = next((callback for callback in callbacks if isinstance(callback, RunLog)), None)
        if log is None:
            log = RunLog()
            self.trainer.engine.run.bind([*callbacks, log])
        if not destination.is_new:
            log.record = lambda: self._record_source(run, is_new=False)
        with logging_to(run.log_path):
            try:
                yield
            except Exception as error:
                if destination.is_new and RunManifest.read(run.manifest_path).state == "running":
                    reason = f"{type(error).__name__}: {error}"
                    update_manifest(run.manifest_path, state="failed", reason=reason)
                    logger.error("Failed before the first step.", exc_info=error)
                raise
            finally:
                if log.record is None:  # unless the run was left as it is
                    copy_modules(self.config.folder, run.path)  # those imported late


def _runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, newest first."""
    return sorted((path.parent for path in folder.glob("*/run.json")), reverse=True)


def _runs_like(home: Path) -> list[Path]:
    """The run in a directory and the runs that were numbered beside it, newest first."""
    numbers = {home: 1}
    for path in home.parent.glob(f"{home.name}-[0-9]*"):
        number = path.name.removeprefix(f"{home.name}-")
        if number.isdecimal():
            numbers[path] = int(number)
    newest_first = sorted(numbers, key=lambda path: numbers[path], reverse=True)
    return [path for path in newest_first if (path / "run.json").is_file()]


def fixed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The scalars of a config under dotted keys, without the changeable keys: what makes it the
    run that it is."""
    fixed = {}
    for key, value in flatten(config).items():
        if not any(f"{key}.".startswith(f"{other}.") for other in CHANGEABLE):
            fixed[key] = value
    return fixed


def config_text(config: Config, name: str) -> str:
    """The resolved config as text: a file that runs, with the name of the run in it and its modules
    beside it."""
    root = config.root
    entries = {key: child for key, child in root.value.items() if key != "modules"}
    given = entries.pop("name", None)
    if given is None or given.value is None:
        given = Node(name, root.file, None)
    entries = {"name": given, **entries}
    return Config(Node(entries, root.file, root.line), config.folder).to_yaml()


# Optimizers and schedulers


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


# The user's own modules


def own_modules(folder: Path) -> dict[Path, Path]:
    """Files of the loaded modules that were imported from a folder, by their paths below it."""
    folder = folder.resolve()
    found: dict[Path, Path] = {}
    # checking every one of thousands of modules would be slow
    beside = {path.stem for path in folder.glob("*")}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in beside or file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        place = Path(*name.split("."))
        if path in (folder / place.with_suffix(".py"), folder / place / "__init__.py"):
            found[path.relative_to(folder)] = path
    return found


def copy_modules(folder: Path, destination: Path, *, is_new: bool = False) -> list[str]:
    """Copy the modules that were imported from a folder; the names of copies that were there and
    have changed. In a new run, an error where that would overwrite a file of the user's."""
    changed: dict[Path, bytes] = {}
    for below, path in own_modules(folder).items():
        target = destination / below
        content = path.read_bytes()
        if path != target.resolve() and not (target.is_file() and target.read_bytes() == content):
            changed[target] = content
    existing = [str(target.relative_to(destination)) for target in changed if target.is_file()]
    if is_new and existing:
        raise ConfigurationError(
            "module-overwritten",
            f"{destination / existing[0]} is not the file of the module {existing[0]} that belongs "
            "to this run, and it would be overwritten: choose another `output_path`.",
        )
    for target, content in changed.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, content)
    return existing


def _write(path: Path, content: bytes) -> None:
    with staged_file(path) as staging:
        write_bytes(staging, content)


# What is recorded


class RunLog(Callback):
    """Logs starts, epochs and ends of training to the run's log, which is open for as long as
    `train` takes.

    `record`, of a resumed run, is called once it is known to continue; it returns the names of
    changed modules.
    """

    def __init__(self) -> None:
        self.record: Callable[[], list[str]] | None = None

    def on_train_start(self, trainer: Trainer) -> None:
        if self.record is not None:
            if changed := self.record():
                names = ", ".join(changed)
                trainer.run.say(f"The code has changed since the run began: {names}.")
            self.record = None
        logger.info("Training from %s, sample %d.", _where(trainer), trainer.progress.sample)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        values = "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
        logger.info("%s: %s", _where(trainer).capitalize(), values)

    def on_train_end(self, trainer: Trainer) -> None:
        reason = trainer.stop_reason or "the limit is reached"
        logger.info("Ended after %s: %s.", _where(trainer), reason)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if isinstance(error, Exception):
            logger.error("Failed after %s.", _where(trainer), exc_info=error)
        else:
            logger.warning("Interrupted after %s: %r.", _where(trainer), error)


def _where(trainer: Trainer) -> str:
    return f"epoch {trainer.progress.epoch}, update {trainer.progress.update}"


def load_for_use(trainer: Trainer, run: Path, which: str | Path) -> Path:
    """Load the newest or best checkpoint of a run, or one by its path; a resume point with its
    averages of weights."""
    trainer.setup()
    if which == "best":
        best = choose(run)
        if best is None:
            raise CheckpointError(
                "no-kept-models",
                f"{run} has no kept models: use the newest checkpoint, or name one.",
            )
        path = best.path
    else:
        path = find_checkpoint(run if which == "newest" else which)
    if any(info.kind == "kept" for info in list_checkpoints(path)):
        load_parts(trainer.run, read_parts(path), optimizers=False, schedules=False)
    else:
        trainer.load(path)
    return path

"""`loopwright check CONFIG`: do once all that a run does, on a few samples; report all mistakes.

Tiny runs train the steps alone, then with all callbacks, then saved and resumed.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset, default_collate

from .._torch_compat import mark_stepped
from ..callback import Callback
from ..callbacks import PeakMemory, Throughput, TrainTime
from ..callbacks.freezing import Freeze
from ..callbacks.interval import Periodic, Watching
from ..callbacks.nonfinite import NonFiniteGuard
from ..callbacks.scheduling import Scheduled, extent_of
from ..checkpoint.manifest import local_path
from ..config import Config, ConfigError, Problem, beside
from ..config.tree import descend
from ..data.containers import tensors_in
from ..data.random import preserved_rng, seed_sample
from ..data.stream import Batch, LimitedStream, Stream, StreamWrapper
from ..debug.resume_check import check_resume
from ..errors import ConfigurationError, full_tracebacks
from ..initializers import Initializer
from ..interfaces.configured.core import ConfiguredCore
from ..interfaces.configured.experiment import Experiment
from ..metrics.progress import Limits
from ..metrics.result import StepResult
from ..optim.build import CurveSchedule, Schedule
from ..schedules import Curve, Extent
from ..text import counted, listed, size
from ..trainer import Trainer
from .output import FOUND, OK, RED, described, noted, print_json, say
from .train import load_single

T = TypeVar("T")

SLOW_SECONDS = 0.1  # data sets that take longer to build are built once
MAX_SECONDS = 1.0  # for following a schedule
MAX_READ = 8  # samples of a data set
POINTS = 101  # of a curve
LENGTHS = ("T_max", "total_steps", "total_iters", "step_size")  # of torch's schedulers, in steps
UPDATES = 2  # in an epoch
SAMPLES = 4  # in a batch
WINDOW = 2  # batches in an update that accumulates
EVAL_BATCHES = 2
RESUMED_UPDATES = 3  # before the tiny run is saved, and after it is resumed
ESSENTIAL = (Initializer, Freeze, NonFiniteGuard)  # without them, steps compute something else
COMPILE = "trainer.use_torch_compile"
BUILT = re.compile(r"raised while (\S+) \(kind: .*\) was built")


def check_command(options: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        report = check_config(options.config, options.overrides)
    if options.json:
        report.print_json()
    else:
        report.print_text()
    return FOUND if report.mistakes else OK


class CheckReport:
    """What a check of a run file found; a problem is listed once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.config: Config | None = None  # where it could be read: problems then have a line
        self.checked: list[str] = []
        self.facts: dict[str, Any] = {}
        self.notes: list[Problem] = []
        self.mistakes: list[Problem] = []
        self._errors: set[str] = set()

    def mistake(self, key: str, message: str) -> None:
        """Report something that keeps the run from being trained as intended."""
        assert self.config is not None
        self.mistakes.append(self.config.problem(key, message))

    def note(self, key: str, message: str) -> None:
        """Report something that may be intended."""
        assert self.config is not None
        self.notes.append(self.config.problem(key, message))

    def failed(self, key: str, doing: str, error: BaseException) -> None:
        """Report an error that the user's code raised, or that was raised about it."""
        head, *details = described(error)
        if head in self._errors:
            return
        self._errors.add(head)
        if type(error).__module__.startswith("loopwright."):
            head = str(error)
        for line in details:
            if match := BUILT.search(line):
                key = match[1]
                break
        details = [line for line in details if not line.startswith("raised ")]
        self.mistake(key, "\n".join([f"{doing}: {head}", *details]))

    @contextmanager
    def collecting(self, key: str, doing: str) -> Iterator[list[bool]]:
        """Turn an exception into a mistake; the yielded list is filled if there was none."""
        succeeded: list[bool] = []
        try:
            yield succeeded
        except Exception as error:
            self.failed(key, doing, error)
        else:
            succeeded.append(True)

    def print_json(self) -> None:
        print_json(
            {
                "config": self.path,
                "ok": not self.mistakes,
                "mistakes": [asdict(mistake) for mistake in self.mistakes],
                "notes": [asdict(note) for note in self.notes],
                "checked": self.checked,
                **self.facts,
            }
        )

    def print_text(self) -> None:
        """Print the report; mistakes come last, where they are seen."""
        if self.checked:
            seconds = f"{self.facts['check_seconds']:.1f} s"
            say(f"checked     {', '.join(self.checked)} ({seconds})")
        if "parameters" in self.facts:
            say(f"parameters  {self.facts['parameters']:,}")
        if "checkpoint_bytes" in self.facts:
            say(f"checkpoint  {size(self.facts['checkpoint_bytes'])}")
        for note in self.notes:
            say(f"note: {note}", keep="\n")
        if not self.mistakes:
            say(f"No mistakes found in {self.path}: it is ready to train.")
            return
        print()
        say(f"{counted(len(self.mistakes), 'mistake')} in {self.path}:", RED)
        for mistake in self.mistakes:
            say(str(mistake), RED, keep="\n")


def check_config(path: str | Path, overrides: Sequence[str] = ()) -> CheckReport:
    """Find everything that is wrong with a run file."""
    begin = monotonic()
    report = CheckReport(str(path))
    try:
        report.config = load_single(str(path), list(overrides), "check")
    except ConfigError as error:
        report.mistakes += error.problems
    else:
        with (
            tempfile.TemporaryDirectory(prefix="loopwright-check-") as folder,
            preserved_rng(),
            full_tracebacks(),
        ):
            ConfigCheck(report, report.config, Path(folder)).run()
    report.checked = list(dict.fromkeys(report.checked))
    report.mistakes = list(dict.fromkeys(report.mistakes))
    report.notes = list(dict.fromkeys(report.notes))
    report.facts["check_seconds"] = monotonic() - begin
    return report


class ConfigCheck:
    """Checks of a config, in the order in which they depend on each other."""

    def __init__(self, report: CheckReport, config: Config, folder: Path) -> None:
        self.report = report
        self.config = config
        self.folder = folder
        self.experiment = Experiment(config, progress="silent")
        self.datasets: dict[str, Any] = {}
        self.shares_data = False
        self.keys: dict[int, str] = {}  # of the callbacks in the config, by position among all

    def run(self) -> None:
        self._check_place()
        try:
            self.experiment = Experiment.from_config(self._without_compilation(), progress="silent")
        except ConfigError as error:
            self.report.mistakes += error.problems
            if not any(problem.key.split(".")[0] == "datasets" for problem in error.problems):
                self._check_datasets()
            return
        self.report.checked.append("the config")
        with beside(self.config.folder):
            if self._check_parts():
                self._check_run()

    def _without_compilation(self) -> Config:
        """The config without torch.compile, which takes long and finds nothing more."""
        root = self.config.root.copy()
        node = descend(root, COMPILE)
        if node is not None and node.value is True:
            node.value = False
            self.report.note(COMPILE, "the model was not compiled for this check.")
        return Config(root, self.config.folder)

    def _check_place(self) -> None:
        """Check that the run directory can be created."""
        given = self.config.get("output_path")
        key = "" if given is None else "output_path"
        try:
            path = local_path(str(given or "runs"), "output_path").absolute()
        except ConfigurationError as error:
            self.report.mistake(key, str(error))
            return
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        if not place.is_dir():
            self.report.mistake(key, f"{place} is a file, so it cannot have a run directory.")
        elif not os.access(place, os.W_OK | os.X_OK):
            self.report.mistake(key, f"{place} is not writable: choose another output_path.")
        else:
            self.report.checked.append("the run directory")

    def _check_datasets(self) -> bool:
        """Build and check each data set; return whether all are well."""
        keys = self.config.get("datasets")
        for key in keys if isinstance(keys, dict) else ():
            with self.report.collecting(f"datasets.{key}", "it cannot be built") as built:
                self.datasets[key] = self.experiment.build_dataset(str(key))
            if built:
                check_dataset(self.report, f"datasets.{key}", self.datasets[key])
                self.report.checked.append(f"data set {key}")
        return not any(mistake.key.startswith("datasets") for mistake in self.report.mistakes)

    def _check_parts(self) -> bool:
        """Check data sets, model and trainer separately; return whether a run can be tried."""
        start = monotonic()
        is_whole = self._check_datasets()
        self.shares_data = monotonic() - start > SLOW_SECONDS
        with self.report.collecting("trainer", "it cannot be built") as built:
            self.experiment.build_trainer(self.datasets)
        return bool(built) and is_whole

    def _check_run(self) -> None:
        report = self.report
        self._check_schedule()
        if not self._check_steps():
            return
        dropped: set[int] = set()
        saved = self._attempt("a small test run that saves and loads fails", self._saved, dropped)
        if saved is not None:
            num_callbacks, checkpoint_bytes = saved
            report.checked += [counted(num_callbacks, "callback"), "saving and loading"]
            report.facts["checkpoint_bytes"] = checkpoint_bytes
            self._check_resuming(dropped)

    # Tiny runs

    def _build(self) -> ConfiguredCore:
        """Build the engine as `train` would, with fresh objects."""
        datasets = self.datasets
        if not self.shares_data:
            datasets = {key: self.experiment.build_dataset(str(key)) for key in datasets}
        engine = self.experiment.build_trainer(datasets).engine
        engine.run.progress_style = "silent"
        engine.config.num_workers = min(engine.config.num_workers, 1)
        return engine

    def _build_tiny(
        self, dropped: Collection[int], *added: Callback, run_dir: Path | None = None
    ) -> ConfiguredCore:
        """Build an engine for a tiny run, without the callbacks at the positions in `dropped`."""
        engine = self._build()
        engine.run_dir = run_dir
        engine.accumulate = min(engine.accumulate, WINDOW)
        callbacks = [one for at, one in enumerate(engine.run.callbacks) if at not in dropped]
        for callback in callbacks:
            if isinstance(callback, Periodic | Watching):
                callback.interval.n = 1
        tiny = Tiny(UPDATES * engine.accumulate, min(SAMPLES, engine.config.batch_size))
        engine.callbacks = [tiny, *callbacks, *added]
        engine.run.bind(engine.callbacks)
        return engine

    def _attempt(
        self, doing: str, action: Callable[[Collection[int]], T], dropped: set[int]
    ) -> T | None:
        """Do something without the callbacks in `dropped`; None where it fails.

        A callback of the config is at fault if the action goes otherwise without it. It is reported
        and added to `dropped`, and the action is done again.
        """
        while True:
            try:
                return action(dropped)
            except Exception as error:
                number = self._find_culprit(action, dropped, error)
                if number is None:
                    self.report.failed("trainer", doing, error)
                    return None
                name = type(self._build().run.callbacks[number]).__name__
                self.report.failed(self.keys[number], f"{name} fails", error)
                dropped.add(number)

    def _find_culprit(
        self, action: Callable[[Collection[int]], T], dropped: set[int], error: Exception
    ) -> int | None:
        """The position of the callback without which the error does not occur; the ones that the
        error names are tried first."""
        text = "\n".join(described(error))
        names = [type(callback).__name__ for callback in self._build().run.callbacks]
        tried = self.keys.keys() - dropped
        for number in sorted(tried, key=lambda number: (names[number] not in text, number)):
            try:
                action(dropped | {number})
            except Exception as other:
                if _identity(other) == _identity(error):
                    continue
            return number
        return None

    def _check_steps(self) -> bool:
        """Train, evaluate and predict without callbacks; return whether training works."""
        extra: set[int] = set()
        with self.report.collecting("trainer", "it cannot be built"):
            callbacks = enumerate(self._build().run.callbacks)
            extra = {at for at, callback in callbacks if not isinstance(callback, ESSENTIAL)}
        found = self._attempt("a training step fails", self._trained, extra)
        if found is None:
            return False
        engine, probe = found
        self.report.checked.append("training steps")
        params = {param for module in engine.modules.values() for param in module.parameters()}
        self.report.facts["parameters"] = sum(param.numel() for param in params)
        self._judge(probe, may_rest=bool(engine.schedules) and not probe.has_rate)
        for key, dataset in engine.datasets.items():
            self._check_evaluation(engine, key, dataset, probe.names)
        return True

    def _trained(self, dropped: Collection[int]) -> tuple[ConfiguredCore, Probe]:
        probe = Probe()
        engine = self._build_tiny(dropped, probe)
        engine.train(engine.training_data(), 1, resume=False)
        return engine, probe

    def _judge(self, probe: Probe, *, may_rest: bool) -> None:
        """Check weights and gradients; weights may rest while a schedule's rate is 0."""
        report = self.report
        if not probe.is_finite:
            what = "weights are not finite after the first updates.\n-> Lower the learning rate."
            report.mistake("model", what)
        elif not probe.has_learned and not may_rest:
            what = "Is the learning rate 0, or the loss constant?"
            report.mistake("model", f"no weight has changed after the first updates.\n-> {what}")
        if probe.without_gradient and probe.has_learned:
            names = listed(probe.without_gradient, 5)
            report.note("model", f"no gradient reaches {names}. Is that intended?")

    def _check_evaluation(
        self, engine: ConfiguredCore, key: str, dataset: Any, names: set[str]
    ) -> None:
        """Evaluate and predict on a data set; training measured these names."""
        report = self.report
        place = f"datasets.{key}"
        did = []
        with report.collecting(place, f"data set {key!r} cannot be evaluated"):
            try:
                missing = sorted(names - engine.evaluate(dataset).keys())
                did.append("evaluation")
            except ConfigurationError as error:
                if error.code != "update-in-evaluation":
                    raise
                missing = []
                told = noted(error).replace("\n", " ")
                report.note(place, f"this data set cannot be evaluated, if anything should. {told}")
            if missing:
                what = "Return the same outputs and losses in eval mode as in train mode."
                lacks = f"evaluation does not measure {', '.join(missing)} as training does"
                report.mistake("model", f"{lacks}.\n-> {what}")
            if engine.can_predict:
                engine.predict(dataset)
                did.append("prediction")
            if did:
                report.checked.append(f"{' and '.join(did)} on {key}")

    def _saved(self, dropped: Collection[int]) -> tuple[int, int]:
        """Train two tiny epochs, save, and load into fresh objects; the number of callbacks, and
        the bytes of the checkpoint."""
        folder = self.folder / "saved"  # the same in every try, since errors name it
        shutil.rmtree(folder, ignore_errors=True)
        engine = self._build_tiny(dropped, run_dir=folder / "run")
        num_callbacks = len(engine.callbacks) - 1
        engine.train(engine.training_data(), 2, resume=False)
        path = folder / "checkpoint"
        engine.save(path)
        self._build_tiny(dropped).load(path)
        return num_callbacks, sum(f.stat().st_size for f in path.rglob("*") if f.is_file())

    def _check_resuming(self, dropped: Collection[int]) -> None:
        """Compare an uninterrupted run with one that is saved and resumed in the middle."""
        report = self.report
        if self.experiment.seed is None:
            report.note("seed", "without a seed no run is repeated: resuming was not checked.")
            return
        made: list[ConfiguredCore] = []
        ignored: list[str] = []

        def data() -> Any:
            engine = self._build_tiny(dropped, run_dir=self.folder / "resumed")
            engine.config.num_workers = 0  # the order and the values are the same with any number
            made.append(engine)
            return engine.training_data()

        for callback in self._build().run.callbacks:
            if isinstance(callback, TrainTime | Throughput | PeakMemory):  # never the same twice
                ignored += [f"*{name}*" for name in callback.metric_names(set())]
                ignored.append(f"callbacks.{type(callback).__name__}*")
        with report.collecting("trainer", "a resumed run fails"):
            resumed = check_resume(made.pop, data, num_updates=RESUMED_UPDATES, ignore=ignored)
            if resumed.ok:
                report.checked.append("resuming")
            else:
                report.mistake("trainer", str(resumed))

    def _check_schedule(self) -> None:
        with self.report.collecting("trainer", "the optimizer or the schedule cannot be built"):
            engine = self._build()
            callbacks = engine.run.callbacks
            self.keys = callback_keys(self.config, len(callbacks))
            stream = engine._open(engine.training_data(), None, shuffle=True)
            length = length_of(engine, stream)
            stream.close()
            curves = self._check_intervals(callbacks, length)
            engine.setup()
            for name, schedule in engine.schedules.items():
                keys = (f"model.{name}.scheduler", "model.scheduler")
                key = next((key for key in keys if self.config.get(key) is not None), "scheduler")
                if isinstance(schedule.scheduler, CurveSchedule):
                    curves.append((key, schedule.scheduler.curve))
                else:
                    check_scheduler(self.report, key, schedule, length)
            for key, curve in curves:
                with self.report.collecting(key, "the schedule fails"):
                    check_curve(self.report, key, curve, length)

    def _check_intervals(
        self, callbacks: Sequence[Callback], length: Extent
    ) -> list[tuple[str, Curve]]:
        """Check for callbacks whose interval is longer than the run; return the curves of others."""
        curves = []
        for number, key in self.keys.items():
            callback = callbacks[number]
            if isinstance(callback, Scheduled):
                curves.append((key, callback.schedule))
            if not isinstance(callback, Periodic | Watching):
                continue
            interval = callback.interval
            whole = getattr(length, f"{interval.unit}s", None)  # samples are not counted
            if whole is not None and interval.n > whole:
                often = f"every {interval.n} {interval.unit}s, but the run has only {whole:.4g}"
                name = type(callback).__name__
                self.report.mistake(key, f"{name} acts {often}: it would never act.")
        return curves


def callback_keys(config: Config, count: int) -> dict[int, str]:
    """The keys of the callbacks in a config, by their positions among all those of the trainer."""
    keys = [f"trainer.callbacks.{at}" for at in range(len(config.get("trainer.callbacks") or []))]
    if config.get("trainer.initializer") is not None:
        keys.insert(0, "trainer.initializer")
    found = dict(enumerate(keys))
    if config.get("initializer") is not None:
        found[count - 1] = "initializer"
    return found


def _identity(error: Exception) -> str:
    """What is equal for two errors of the same cause: all but numbers and addresses."""
    return re.sub(r"0x\w+|\d+", "", "\n".join(described(error)))


class FewSamples(StreamWrapper):
    """A stream with at most `max_samples` in a batch; order and sharding stay the same."""

    def __init__(self, stream: Stream, max_samples: int) -> None:
        self._max_samples = max_samples
        super().__init__(stream)

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        few = self._max_samples if max_samples is None else min(max_samples, self._max_samples)
        # a window keeps all its steps
        return [batch for _ in range(count) for batch in self._stream.take(1, few)]

    def _update_sizes(self) -> None:
        super()._update_sizes()
        if self.num_samples is not None and self.num_batches is not None:
            self.num_batches = -(-self.num_samples // self._max_samples)


class Tiny(Callback):
    """Leaves a trainer the first few samples of the first few batches of every epoch."""

    precedence = -2

    def __init__(self, num_batches: int, num_samples: int) -> None:
        self._num_batches = num_batches
        self._num_samples = num_samples

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        num_batches = self._num_batches if is_training else EVAL_BATCHES
        return LimitedStream(FewSamples(stream, self._num_samples), num_batches)


class Probe(Callback):
    """Records metrics, gradients and weights of a tiny run."""

    precedence = 1

    def __init__(self) -> None:
        self.names = {"loss"}  # of the metrics that steps return
        self.without_gradient: list[str] = []
        self.has_learned = False
        self.has_rate = False
        self.is_finite = True
        self._before: dict[str, Tensor] = {}
        self._reached: set[str] = set()

    def on_train_start(self, trainer: Trainer) -> None:
        self._before = {name: param.detach().clone() for name, param in _trained(trainer)}

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.names |= set(result.metrics)

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._reached |= {name for name, param in _trained(trainer) if param.grad is not None}
        groups = trainer.optimizers[optimizer].param_groups
        self.has_rate |= any(float(group.get("lr", 1.0)) > 0 for group in groups)

    def on_loop_end(self, trainer: Trainer) -> None:
        now = {name: param.detach() for name, param in _trained(trainer)}
        self.without_gradient = [name for name in now if name not in self._reached]
        self.has_learned = any(
            name not in self._before or not is_same(self._before[name], param)
            for name, param in now.items()
        )
        self.is_finite = all(bool(torch.isfinite(param).all()) for param in now.values())


def _trained(trainer: Trainer) -> list[tuple[str, nn.Parameter]]:
    """The parameters that require a gradient."""
    models = trainer.models.values()
    return [item for model in models for item in model.named_parameters() if item[1].requires_grad]


def is_same(first: Tensor, second: Tensor) -> bool:
    """Whether tensors are equal bit for bit, with NaN equal to NaN."""
    return first.dtype == second.dtype and torch.equal(first.nan_to_num(), second.nan_to_num())


def check_dataset(report: CheckReport, key: str, dataset: Any) -> None:
    """Check that samples can be read, collated, and read again the same."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return
    length = 0
    with report.collecting(key, "its length cannot be read") as succeeded:
        length = len(dataset)
    if succeeded and length == 0:
        report.mistake(key, f"{type(dataset).__name__} has no samples (its length is 0).")
    if length == 0:
        return
    samples = []
    for index in sorted({number * (length - 1) // (MAX_READ - 1) for number in range(MAX_READ)}):
        with report.collecting(key, f"sample {index} (of {length}) cannot be read") as read:
            samples.append(_read(dataset, index))
        if not read:
            return
        if samples[-1] is None:
            report.mistake(key, f"sample {index} is None: return the sample from __getitem__.")
            return
    with report.collecting(key, "its samples cannot be put into one batch"):
        getattr(dataset, "collate_fn", default_collate)(samples)
    before = [tensor.clone() for tensor in tensors_in(samples[0])]
    again = list(tensors_in(_read(dataset, 0)))
    if len(before) != len(again) or not all(map(is_same, before, again)):
        report.mistake(
            key,
            "sample 0 differs when it is read twice with the same seed, so a resumed run would "
            "differ from an uninterrupted one.\n-> Look for in-place operations (x -= mean changes "
            "the data set itself), and draw random numbers from torch, numpy or random, which are "
            "seeded for every sample.",
        )


def _read(dataset: Any, index: int) -> Any:
    with preserved_rng():
        seed_sample(index)
        return dataset[index]


def length_of(engine: ConfiguredCore, stream: Stream) -> Extent:
    """The length of a run, from the limit in the config and the length of the data."""
    config = engine.config
    engine.run.data.train_stream = stream
    engine.run.call.limits = Limits(config.max_epochs, config.max_updates, config.max_samples)
    length = extent_of(engine)
    if length.updates is None:
        return length
    # the last one may be of fewer samples
    return Extent(length.epochs, math.ceil(length.updates - 1e-9))


def check_curve(report: CheckReport, key: str, curve: Curve, length: Extent) -> None:
    """Check the values of a curve from the beginning of the run to its end."""
    for unit in ("epoch", "update"):
        whole = getattr(length, f"{unit}s")
        if whole is None:
            continue
        late = [point for point in getattr(curve, f"at_{unit}s", None) or () if point > whole]
        warmup = getattr(curve, f"warmup_{unit}s", None)
        if warmup is not None and warmup >= whole:
            late.append(warmup)
        if late:
            moments = f"{unit} {', '.join(map(str, late))}, but the run has only {whole:.4g}"
            report.mistake(key, f"the schedule changes at {moments}.")
    resolved = curve.resolve(length)
    for point in range(POINTS):
        value = resolved.value(point / (POINTS - 1))
        if not math.isfinite(value) or value < 0:
            report.mistake(key, f"the schedule is {value} after {point}% of the run.")
            return
    report.checked.append("schedule to the end")


def check_scheduler(report: CheckReport, key: str, schedule: Schedule, length: Extent) -> None:
    """Check a scheduler of torch: its length, and each of its steps to the end of the run."""
    scheduler = schedule.scheduler
    unit = schedule.interval
    whole = getattr(length, f"{unit}s")
    if whole is None:
        return
    if whole < 1:
        amount = f"it is stepped after every {unit}, and the run has only {whole:.3g} of one"
        report.mistake(key, f"{amount}: it would never be stepped.")
        return
    steps = math.floor(whole)
    for option in LENGTHS:
        given = getattr(scheduler, option, None)
        if isinstance(given, int | float) and given > steps:
            own = f"{type(scheduler).__name__}({option}={given})"
            report.mistake(key, f"{own} counts {unit}s, but the run has only {steps}.")
    mark_stepped(scheduler.optimizer)
    values = [1.0] if isinstance(scheduler, ReduceLROnPlateau) else []
    end = monotonic() + MAX_SECONDS
    for step in range(1, steps + 1):
        with (
            report.collecting(key, f"the schedule fails in step {step} of {steps}") as stepped,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            scheduler.step(*values)
        rates = [float(group["lr"]) for group in scheduler.optimizer.param_groups]
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            report.mistake(key, f"the learning rate is {rates} after step {step} of {steps}.")
            return
        if not stepped or monotonic() > end:
            return
    report.checked.append("schedule to the end")

"""`loopwright check CONFIG`: do once all that a run does, on a few samples; report all mistakes.

Data sets, schedules and intervals are checked here, the run itself in `trial.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence, Sized
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from time import monotonic
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset, default_collate

from ..._torch_compat import mark_stepped
from ...callback import Callback
from ...callbacks.interval import Periodic, Watching
from ...callbacks.scheduling import Scheduled
from ...checkpoint.manifest import local_path
from ...config import Config, ConfigError, beside
from ...config.tree import descend
from ...data.containers import tensors_in
from ...data.random import preserved_rng, seed_sample
from ...errors import ConfigurationError, full_tracebacks
from ...interfaces.configured.core import ConfiguredCore
from ...interfaces.configured.experiment import Experiment
from ...optim.build import CurveSchedule, Schedule
from ...schedules import Curve, Extent, MultiStep, WarmupCosine
from ...text import size
from ..exits import FOUND, OK
from ..output import printable
from ..train import load_single
from .report import CheckReport
from .trial import (
    Factory,
    Measures,
    check_callbacks,
    check_resuming,
    check_saving,
    check_steps,
    measure,
    same,
)

SLOW_SECONDS = 0.1  # data sets that take longer to build are built once
LATE_SECONDS = 4.0  # after this time fewer checks are made
MAX_SECONDS = 1.0  # for following a schedule
MAX_READ = 8  # samples of a data set
POINTS = 101  # of a curve
LENGTHS = ("T_max", "total_steps", "total_iters", "step_size")  # of torch's schedulers, in steps


def check_config_command(path: Path, arguments: Sequence[str], *, as_json: bool) -> int:
    """Check a run file; `arguments` come after its name on the command line."""
    parser = argparse.ArgumentParser(prog=f"loopwright check {path}", add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", default=as_json)
    parser.add_argument("--debug", action="store_true")  # as every command has it; not needed
    options = parser.parse_args(arguments)
    if not path.is_file():
        raise ConfigurationError("no-run-file", f"{path} does not exist: name a run file (YAML).")
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        report = check_config(path, options.overrides)  # prints what the run prints
    report.print(as_json=options.json)
    return FOUND if report.mistakes else OK


def check_config(path: str | Path, overrides: Sequence[str] = ()) -> CheckReport:
    """Find everything that is wrong with a run file, and measure its run."""
    begin = monotonic()
    report = CheckReport("config", str(path))
    measures: Measures | None = None
    checkpoint_bytes: int | None = None
    try:
        report.config = load_single(str(path), list(overrides))
    except ConfigError as error:
        report.mistakes += error.problems
    else:
        with (
            tempfile.TemporaryDirectory(prefix="loopwright-check-") as folder,
            preserved_rng(),
            full_tracebacks(),
        ):
            check = ConfigCheck(report, report.config, Path(folder), begin)
            check.run()
            measures = check.measures
            checkpoint_bytes = check.checkpoint_bytes
    seconds = monotonic() - begin
    checked = list(dict.fromkeys(report.checked))
    texts = {"checked": f"{', '.join(checked)} ({seconds:.1f} s)"} if checked else {}
    texts |= {} if measures is None else measures.texts()
    texts |= {} if checkpoint_bytes is None else {"checkpoint": size(checkpoint_bytes)}
    report.text += [printable(f"{title:<11} {text}") for title, text in texts.items()]
    report.fact("checked", checked)
    report.fact("measures", measures and measures.to_json())
    report.fact("checkpoint_bytes", checkpoint_bytes)
    report.fact("check_seconds", seconds)
    return report


class ConfigCheck:
    """Checks of a config, in the order in which they depend on each other."""

    def __init__(self, report: CheckReport, config: Config, folder: Path, begin: float) -> None:
        self.report = report
        self.config = config
        self.folder = folder
        self.begin = begin
        self.measures: Measures | None = None
        self.checkpoint_bytes: int | None = None
        self.datasets: dict[str, Any] = {}
        self.shares_data = False

    def run(self) -> None:
        self._check_place()
        experiment = self._checked_experiment()
        with beside(self.config.folder):
            if experiment is not None and self._check_parts(experiment):
                self._check_run(experiment)

    def _checked_experiment(self) -> Experiment | None:
        """Build the experiment; where the config has mistakes, check its data sets at least."""
        try:
            experiment = Experiment.from_config(self._without_compilation(), progress="silent")
        except ConfigError as error:
            self.report.mistakes += error.problems
            if not any(problem.key.split(".")[0] == "datasets" for problem in error.problems):
                self._check_datasets(Experiment(self.config, progress="silent"))
            return None
        self.report.checked.append("the config")
        return experiment

    def _without_compilation(self) -> Config:
        """The config without torch.compile, which takes long and finds nothing more."""
        root = self.config.root.copy()
        node = descend(root, "trainer.use_torch_compile")
        if node is not None and node.value is True:
            node.value = False
            key = "trainer.use_torch_compile"
            self.report.note(key, "the model was not compiled for this check.")
        return Config(root, self.config.folder)

    def _place(self) -> tuple[str, Path, Path]:
        """The key and the path of the run directory, and the folder of it that exists."""
        given = self.config.get("output_path")
        path = Path(given if isinstance(given, str) else "runs").absolute()
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        return "" if given is None else "output_path", path, place

    def _check_place(self) -> None:
        """Check that the run directory can be created."""
        key, path, place = self._place()
        try:
            local_path(self.config.get("output_path") or "runs", "output_path")
        except ConfigurationError as error:
            self.report.mistake(key, str(error))
            return
        if not place.is_dir():
            self.report.mistake(key, f"{place} is a file, so {path} cannot be a run directory.")
        elif not os.access(place, os.W_OK | os.X_OK):
            self.report.mistake(key, f"{place} is not writable: choose another output_path.")
        else:
            self.report.checked.append("the run directory")

    def _check_datasets(self, experiment: Experiment) -> bool:
        """Build and check each data set; return whether all could be built."""
        keys = self.config.get("datasets")
        for key in keys if isinstance(keys, dict) else ():
            with self.report.collecting(f"datasets.{key}", "it cannot be built") as built:
                self.datasets[key] = experiment.build_dataset(str(key))
            if built:
                check_dataset(self.report, str(key), self.datasets[key])
                self.report.checked.append(f"data set {key}")
        return len(self.datasets) == len(keys or ())

    def _check_parts(self, experiment: Experiment) -> bool:
        """Check data sets, model and trainer separately; return whether a run can be tried."""
        start = monotonic()
        is_whole = self._check_datasets(experiment)
        self.shares_data = monotonic() - start > SLOW_SECONDS
        with self.report.collecting("trainer", "it cannot be built") as built:
            experiment.build_trainer(self.datasets)
        if not built:
            return False
        return is_whole and not any(p.key.startswith("datasets") for p in self.report.mistakes)

    def _check_run(self, experiment: Experiment) -> None:
        report = self.report
        factory = Factory(experiment, self.datasets, shares_data=self.shares_data)
        length = self._check_schedule(factory)
        if not check_steps(report, factory):
            return
        dropped, engine = check_callbacks(report, factory, self.folder)
        if engine is not None:
            self.checkpoint_bytes = check_saving(report, factory, engine, dropped, self.folder)
        if self.checkpoint_bytes is not None:
            self._check_room(self.checkpoint_bytes)
            if experiment.seed is None:
                report.note("seed", "without a seed no run is repeated: resuming was not checked.")
            else:
                num_updates = 1 if monotonic() - self.begin > LATE_SECONDS else 3
                check_resuming(report, factory, dropped, self.folder, num_updates)
        if length is not None:
            with report.collecting("trainer", "a step with a full batch fails"):
                self.measures = measure(factory, length.updates, length.epochs)

    def _check_schedule(self, factory: Factory) -> Extent | None:
        length = None
        with self.report.collecting("trainer", "the optimizer or the schedule cannot be built"):
            engine = factory.build()
            length = length_of(engine)
            check_intervals(self.report, engine.run.callbacks, length)
            engine.setup()
            check_curves(self.report, engine, length)
            check_schedulers(self.report, engine, length)
        return length

    def _check_room(self, checkpoint_bytes: int) -> None:
        """Check the free space: two resume points are kept, and new ones written beside them."""
        key, _, place = self._place()
        free = shutil.disk_usage(place).free
        need = 4 * checkpoint_bytes
        if free < need:
            sizes = f"{size(free)} left, and the checkpoints take about {size(need)}"
            self.report.mistake(key, f"{place} has {sizes}.")


# Data sets


def check_dataset(report: CheckReport, key: str, dataset: Any) -> None:
    """Check that samples can be read, collated, and read again the same."""
    place = f"datasets.{key}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return
    with report.collecting(place, "its length cannot be read") as succeeded:
        length = len(dataset)
    if not succeeded:
        return
    if length == 0:
        report.mistake(place, f"{type(dataset).__name__} has no samples (its length is 0).")
        return
    indices = sorted({number * (length - 1) // (MAX_READ - 1) for number in range(MAX_READ)})
    samples = [_read(report, place, dataset, index, length) for index in indices]
    if all(sample is not None for sample in samples):
        with report.collecting(place, "its samples cannot be put into one batch"):
            getattr(dataset, "collate_fn", default_collate)(samples)
        _check_again(report, place, dataset, samples[0])


def _read(report: CheckReport, place: str, dataset: Any, index: int, length: int) -> Any:
    found: Any = None
    with report.collecting(place, f"sample {index} (of {length}) cannot be read"), preserved_rng():
        seed_sample(index)
        found = dataset[index]
        if found is None:
            report.mistake(place, f"sample {index} is None: return the sample from __getitem__.")
    return found


def _check_again(report: CheckReport, place: str, dataset: Any, first: Any) -> None:
    """Check that the first sample is the same when it is read again with the same seed."""
    before = [tensor.clone() for tensor in tensors_in(first)]
    again = _read(report, place, dataset, 0, len(dataset))
    if again is not None and not same(before, list(tensors_in(again))):
        report.mistake(
            place,
            "sample 0 differs when it is read twice with the same seed, so a resumed run would "
            "differ from an uninterrupted one.\n-> Look for in-place operations (x -= mean changes "
            "the data set itself), and draw random numbers from torch, numpy or random, which are "
            "seeded for every sample.",
        )


# Schedules and intervals, against the length of the run


def length_in(length: Extent, unit: str) -> float | None:
    """The number of epochs, updates or samples of a run; None where it is not known."""
    found: float | None = getattr(length, f"{unit}s")
    return found


def length_of(engine: ConfiguredCore) -> Extent:
    """The length of a run, from the limit in the config and the length of the data."""
    stream = engine._open(engine.training_data(), None, shuffle=True)
    updates = -(-(stream.num_batches or 0) // engine.accumulate)
    per_epoch = {"epochs": 1, "updates": updates, "samples": stream.num_samples or 0}
    stream.close()
    unit = next(unit for unit in per_epoch if getattr(engine.config, f"max_{unit}") is not None)
    limit = getattr(engine.config, f"max_{unit}")
    amounts: dict[str, float | None] = dict.fromkeys(per_epoch)
    if per_epoch[unit]:
        epochs = limit / per_epoch[unit]
        amounts = {name: epochs * each if each else None for name, each in per_epoch.items()}
    amounts[unit] = limit
    if amounts["updates"] is not None:  # the last one may be of fewer samples
        amounts["updates"] = math.ceil(amounts["updates"] - 1e-9)
    return Extent(**amounts)


def check_intervals(report: CheckReport, callbacks: Sequence[Callback], length: Extent) -> None:
    """Check for callbacks whose interval is longer than the run."""
    for number, callback in enumerate(callbacks):
        if not isinstance(callback, Periodic | Watching):
            continue
        interval = callback.interval
        whole = length_in(length, interval.unit)
        if whole is None or interval.n <= whole:
            continue
        key = report.key_of_callback(callbacks, number)
        often = f"every {interval.n} {interval.unit}s, but the run has only {whole:.4g}"
        message = f"{type(callback).__name__} acts {often}: it would never act."
        (report.note if key == "trainer" else report.mistake)(key, message)


def check_curves(report: CheckReport, engine: ConfiguredCore, length: Extent) -> None:
    """Check the values of all curves from the beginning of the run to its end."""
    callbacks = engine.run.callbacks
    curves: list[tuple[str, Any]] = [
        (report.key_of_callback(callbacks, number), callback.schedule)
        for number, callback in enumerate(callbacks)
        if isinstance(callback, Scheduled)
    ]
    for name, schedule in engine.schedules.items():
        if isinstance(schedule.scheduler, CurveSchedule):
            curves.append((_schedule_key(report, name), schedule.scheduler.curve))
    for key, curve in curves:
        with report.collecting(key, "the schedule fails"):
            _check_curve(report, key, curve, length)


def _check_curve(report: CheckReport, key: str, curve: Curve, length: Extent) -> None:
    for unit in ("epoch", "update", "sample"):
        whole = length_in(length, unit)
        warmup = getattr(curve, f"warmup_{unit}s") if isinstance(curve, WarmupCosine) else None
        points = getattr(curve, f"at_{unit}s", ()) if isinstance(curve, MultiStep) else ()
        late = [] if whole is None else [point for point in points if point > whole]
        if warmup is not None and whole is not None and warmup >= whole:
            amount = f"takes {warmup} {unit}s, but the run has only {whole:.4g}"
            report.mistake(key, f"the warm-up {amount}: it never ends.")
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


def _schedule_key(report: CheckReport, name: str) -> str:
    """The key of a schedule in the config; of several models it is below the model's name."""
    assert report.config is not None
    keys = (f"model.{name}.scheduler", "model.scheduler")
    return next((key for key in keys if report.config.get(key) is not None), "scheduler")


def check_schedulers(report: CheckReport, engine: ConfiguredCore, length: Extent) -> None:
    """Check torch's schedulers: their lengths, and each of their steps to the end of the run."""
    for name, schedule in engine.schedules.items():
        if isinstance(schedule.scheduler, CurveSchedule):
            continue
        key = _schedule_key(report, name)
        unit = schedule.interval
        whole = length_in(length, unit)
        if whole is None:
            report.note(key, f"the number of {unit}s is not known: the schedule was not followed.")
        elif whole < 1:
            amount = f"it is stepped after every {unit}, and the run has only {whole:.3g} of one"
            report.mistake(key, f"{amount}: it would never be stepped.")
        else:
            steps = math.floor(whole)
            for option in LENGTHS:
                length_given: Any = getattr(schedule.scheduler, option, None)
                if isinstance(length_given, int | float) and length_given > steps:
                    own = f"{type(schedule.scheduler).__name__}({option}={length_given})"
                    message = f"{own} counts {unit}s, but the run has only {steps}."
                    report.mistake(key, message)
            _follow(report, key, schedule, steps)


def _follow(report: CheckReport, key: str, schedule: Schedule, steps: int) -> None:
    """Step a scheduler to the end of the run, for at most MAX_SECONDS."""
    scheduler = schedule.scheduler
    optimizer = scheduler.optimizer
    mark_stepped(optimizer)
    end = monotonic() + MAX_SECONDS
    for step in range(1, steps + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
        except Exception as error:
            report.failed(key, f"the schedule fails in step {step} of {steps}", error)
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            report.mistake(key, f"the learning rate is {rates} after step {step} of {steps}.")
            return
        if monotonic() > end:
            report.note(key, f"the schedule was followed for {step} of {steps} steps only.")
            return
    report.checked.append("schedule to the end")

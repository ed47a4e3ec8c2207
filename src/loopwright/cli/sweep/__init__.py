"""`loopwright sweep`: train one run for each combination of values, and compare them."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import torch

from ...checkpoint.manifest import local_path
from ...config import (
    Config,
    ConfigError,
    Sweep,
    ValueRange,
    check,
    expand_sweep,
    load_config,
    read_sweep,
)
from ...errors import ConfigurationError, MissingExtraError, check_number
from ...interfaces.configured import Experiment
from ...interfaces.configured.schema import schema
from ...metrics.best import Mode, direction_of, first_best, ranked
from ...run.changes import short_keys
from ...run.reading import Run
from ...text import counted
from ..output import (
    FOUND,
    INTERRUPTED,
    OK,
    RED,
    number_text,
    print_fitted,
    print_json,
    printable,
    say,
    time_text,
)
from ..selection import check_run_file
from .child import PRUNED

__all__ = ["sweep_command"]

DEFAULT_NUM = 20
DIRECTIONS: dict[Mode, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}
JOURNAL = "optuna.journal"
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0  # for a process to save and end after SIGTERM
LIMITS = ("max_epochs", "max_updates", "max_samples")


@dataclass(eq=False, slots=True)
class Task:
    """One run: the values chosen for it, and its directory."""

    name: str
    chosen: dict[str, Any]
    path: Path
    key: Any = None  # of the search: Optuna's trial

    def __str__(self) -> str:
        titles = short_keys(self.chosen)
        return " ".join(f"{titles[key]}={number_text(value)}" for key, value in self.chosen.items())


@dataclass(frozen=True, slots=True)
class Result:
    """The state, value and error of a run."""

    task: Task
    state: str
    value: float | None = None
    error: str | None = None
    seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.task.name,
            "chosen": self.task.chosen,
            "path": str(self.task.path),
            "state": self.state,
            "value": self.value,
            "error": self.error,
            "seconds": self.seconds,
        }


def sweep_command(options: argparse.Namespace) -> int:
    check_number("--jobs", options.jobs, least=1)
    check_run_file(options.config, "sweep")
    sweep = read_sweep(options.config, options.overrides)
    if not sweep.space:
        raise ConfigurationError(
            "nothing-to-sweep",
            f"{options.config} has no values to try: give several, as in model.width=8,16, or add "
            "a `sweep:` block.",
        )
    fixed = [
        text for text in options.overrides if text.lstrip("+").partition("=")[0] not in sweep.space
    ]
    return SweepJob(options, sweep, load_config(options.config, fixed)).run()


class SweepJob:
    """A sweep: chooses the runs, trains them, and prints the results."""

    def __init__(self, options: argparse.Namespace, sweep: Sweep, config: Config) -> None:
        self.options = options
        self.sweep = sweep
        self.method = "optuna" if options.optuna else sweep.method
        self.metric: str = options.metric or sweep.metric or default_metric(config)
        self.direction: str | None = options.direction or sweep.direction
        self.mode: Mode = mode_of(self.metric, self.direction, config)
        self.folder = folder_of(config, options.output)
        self.results: list[Result] = []

    def run(self) -> int:
        search, total = self._search()
        better = "smaller is better" if self.mode == "min" else "larger is better"
        what = f"compared by {self.metric} ({better})"
        self._print_line(f"{counted(total, 'run')} in {self.folder}, {what}")
        is_interrupted = self._train(search, total)
        print_results(self.results, self.metric, self.mode, self.folder, as_json=self.options.json)
        if is_interrupted:
            self._print_line("Interrupted. The same command continues the sweep.")
            return INTERRUPTED
        done = ("finished", "stopped", "pruned")
        return OK if all(result.state in done for result in self.results) else FOUND

    def _train(self, search: Search, total: int) -> bool:
        """Train all runs; return whether the sweep was interrupted."""
        options = self.options
        spec = {
            "config": str(Path(options.config).absolute()),
            "overrides": options.overrides,
            "metric": self.metric,
        }
        pool = Pool(spec, options.jobs, self.folder / "output")
        try:
            with closing(pool.run(search)) as ended:
                for task, error in ended:
                    result = self._take(task, error)
                    search.done(result)
                    outcome = f"{self.metric} {number_text(result.value)}"
                    if result.error is not None:
                        outcome = result.error.splitlines()[0]
                    self._print_line(
                        f"[{len(self.results)}/{total}] {task}: {result.state}, {outcome}, "
                        f"{time_text(result.seconds)}"
                    )
        except KeyboardInterrupt:
            for task in pool.stopped:
                self._take(task)
            return True
        return any(result.state == "interrupted" for result in self.results)

    def _take(self, task: Task, error: str | None = None) -> Result:
        """Add the result of a run; an error where it recorded the opposite direction, as for a loss
        that is called `score`."""
        result = read_result(task, self.metric, self.mode, error)
        self.results.append(result)
        if self.direction is None and (task.path / "run.json").is_file():
            noted = Run(task.path).metric_modes.get(self.metric, self.mode)
            if noted != self.mode:
                better = "smaller" if noted == "min" else "larger"
                raise ConfigurationError(
                    "opposite-direction",
                    f"{task.path} records that {better} values of {self.metric!r} are better, but "
                    "the name of the metric says the opposite: add --direction minimize or "
                    "--direction maximize. Finished runs are not trained again.",
                )
        return result

    def _search(self) -> tuple[Search, int]:
        """The runs to train and their total number; finished runs are added to the results."""
        if self.method == "optuna":
            num = self.options.num or self.sweep.num or DEFAULT_NUM
            found = Optuna(self.sweep, self.folder, self.mode, num)
            for task in found.tasks_before():
                self._take(task)
            return found, num
        waiting = []
        tasks = self.tasks()
        for task, config in tasks.items():
            if is_finished(task.path, config):
                self._take(task)
            else:
                waiting.append(task)
        if self.results:
            self._print_line(f"{len(self.results)} of {len(tasks)} runs are finished already.")
        return Search(waiting), len(tasks)

    def tasks(self) -> dict[Task, Config]:
        """All runs of a grid or random sweep; all configs are checked before the first run is
        trained."""
        variants = expand_sweep(self.options.config, self.options.overrides)
        problems = [problem for variant in variants for problem in check(variant.config, schema())]
        if problems:
            raise ConfigError(problems)
        return {
            Task(v.name, dict(v.chosen), place_for(self.folder, v.name, v.config)): v.config
            for v in {variant.name: variant for variant in variants}.values()
        }

    def _print_line(self, line: str) -> None:
        print(printable(line), file=sys.stderr if self.options.json else sys.stdout, flush=True)


def mode_of(metric: str, direction: str | None, config: Config) -> Mode:
    """The direction of a metric: from the sweep, from a callback of the config, or from the
    metric's name."""
    if direction is not None:
        return "min" if direction == "minimize" else "max"
    mode = direction_of(metric)
    for entry in config.get("trainer.callbacks") or []:
        if isinstance(entry, dict) and entry.get("metric") == metric:
            mode = entry["mode"] if entry.get("mode") in DIRECTIONS else mode
    if mode is None:
        raise ConfigurationError(
            "sweep-direction",
            f"The sweep compares {metric!r}, and this name does not say whether smaller or larger "
            "values are better: add --direction minimize or --direction maximize (or "
            "`direction:` under `sweep:`).",
        )
    return mode


def default_metric(config: Config) -> str:
    """The loss on the first data set that a callback evaluates, or the training loss."""
    for entry in config.get("trainer.callbacks") or []:
        if isinstance(entry, dict) and str(entry.get("kind")).rpartition(".")[2] == "OfflineLoss":
            return f"{entry.get('dataset_key', 'eval')}_loss"
    return "loss"


def folder_of(config: Config, given: str | None) -> Path:
    output_path = given or config.get("output_path")
    if output_path is not None:
        return local_path(output_path, "output_path")
    name = config.get("name") or Path(config.place("")[0]).stem
    return Path("runs") / name / "sweep"


def place_for(folder: Path, name: str, config: Config) -> Path:
    """The directory for a config: the one of an earlier run of it, or the first that is free."""
    number = 1
    path = folder / name
    while (path / "run.json").is_file():
        run = Run(path)
        if not Experiment.changes_since(run.config or {}, config, run.name):
            break
        number += 1
        path = folder / f"{name}-{number}"
    return path


def is_finished(path: Path, config: Config) -> bool:
    """Whether the run in this directory has finished this config."""
    if not (path / "run.json").is_file():
        return False
    run = Run(path)
    earlier = (run.config or {}).get("trainer") or {}
    is_longer = any(earlier.get(name) != config.get(f"trainer.{name}") for name in LIMITS)
    return run.state in ("finished", "stopped") and not is_longer


# Results


def read_result(task: Task, metric: str, mode: Mode, error: str | None = None) -> Result:
    """Read the result of a run from its directory."""
    if not (task.path / "run.json").is_file():
        return Result(task, "failed" if error else "not started", error=error)
    run = Run(task.path)
    state: str = run.state
    if state == "stopped" and run.reason is not None and PRUNED in run.reason:
        state = "pruned"
    if error is not None and state not in ("interrupted", "finished"):
        state = "failed"
    reason = error or (run.reason if state == "failed" else None)
    return Result(task, state, best_value(run, metric, mode), reason, run.seconds)


def best_value(run: Run, metric: str, mode: Mode) -> float | None:
    """The best value of a metric at any epoch or step."""
    points = [*run.metrics.epochs(metric), *run.metrics.steps(metric)]
    best = first_best(points, lambda point: point.value, mode)
    return None if best is None else best.value


def print_results(
    results: Sequence[Result], metric: str, mode: Mode, folder: Path, *, as_json: bool
) -> None:
    """Print all runs, best first, runs without a value last; then the errors of failed runs."""
    ordered = ranked(results, lambda result: result.value, mode)
    if as_json:
        runs = [result.as_json() for result in ordered]
        best = next((run for run in runs if run["value"] is not None), None)
        named = {"folder": str(folder), "metric": metric, "mode": mode}
        print_json({**named, "best": best, "runs": runs})
        return
    if not ordered:
        print("No run has ended yet.")
        return
    titles = short_keys(ordered[0].task.chosen)
    values = [metric.upper(), "STATE", "TIME", "RUN"]
    rows = [
        [
            *(number_text(result.task.chosen.get(key)) for key in titles),
            number_text(result.value),
            result.state,
            time_text(result.seconds),
            str(result.task.path),
        ]
        for result in ordered
    ]
    header = [*(title.upper() for title in titles.values()), *values]
    print()
    print_fitted(header, rows, right=str(len(titles)), fold=str(len(titles) + 3))
    for result in ordered:
        if result.error is not None:
            output = folder / "output" / f"{result.task.path.name}.txt"
            text = f"{result.task}: {result.error}\n  (its output: {output})"
            say(text, RED, keep="\n")


# The choice of runs


class Search:
    """Chooses the runs of a sweep: those of a list, in order."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        self._waiting = list(tasks)

    def next(self) -> Task | None:
        """The next run to train; None if there is none for now."""
        return self._waiting.pop(0) if self._waiting else None

    def report(self, task: Task, update: int, value: float) -> bool:
        """Take the metric at an update of a run; return whether the run is to continue."""
        return True

    def done(self, result: Result) -> None:
        """Take the result of a run that has ended."""


class Optuna(Search):
    """Runs whose values Optuna chooses by the results so far; it also ends runs that do worse than
    others.

    Its study is stored in the folder of the sweep; runs that a killed sweep left unfinished come
    first.
    """

    def __init__(self, sweep: Sweep, folder: Path, mode: Mode, num: int) -> None:
        super().__init__()
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError as error:
            raise MissingExtraError(
                "needs-optuna", "This sweep needs Optuna: pip install 'loopwright[tune]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name="sweep",
            direction=DIRECTIONS[mode],
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
            load_if_exists=True,
        )
        direction = study.direction.name.lower()
        if direction != DIRECTIONS[mode]:
            raise ConfigurationError(
                "other-direction",
                f"{folder} contains a sweep that should {direction} its metric, but this sweep "
                f"does the opposite: name another folder with --output, or add --direction "
                f"{direction}.",
            )
        known = study.get_trials(deepcopy=False)
        study.sampler = optuna.samplers.TPESampler(seed=sweep.seed + len(known))
        self._study = study
        self._space = sweep.space
        self._folder = folder
        self._num_left = num - len(known)
        self._states = optuna.trial.TrialState
        self.ended = [trial for trial in known if trial.state != self._states.RUNNING]
        for trial in known:
            if trial.state == self._states.RUNNING:
                self._waiting.append(self._task(optuna.trial.Trial(study, trial._trial_id)))

    def tasks_before(self) -> list[Task]:
        """Runs of earlier calls that have ended."""
        return [self._task(trial) for trial in self.ended]

    def next(self) -> Task | None:
        if not self._waiting and self._num_left > 0:
            self._num_left -= 1
            return self._task(self._study.ask())
        return super().next()

    def report(self, task: Task, update: int, value: float) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resumed run repeats updates, which Optuna ignores
            task.key.report(value, update)
        return not task.key.should_prune()

    def done(self, result: Result) -> None:
        trial = result.task.key
        is_finished = result.state in ("finished", "stopped")
        if result.state == "pruned":
            self._study.tell(trial, state=self._states.PRUNED)
        elif is_finished and result.value is not None and math.isfinite(result.value):
            self._study.tell(trial, result.value)
        elif result.state != "interrupted":  # an interrupted run continues in the next call
            self._study.tell(trial, state=self._states.FAIL)

    def _task(self, trial: Any) -> Task:
        name = f"trial-{trial.number:04d}"
        try:
            chosen = {key: _suggest(trial, key, values) for key, values in self._space.items()}
        except ValueError as error:  # raised by Optuna for a value of an earlier call
            raise ConfigurationError(
                "other-space",
                f"{self._folder} contains a sweep over other values: name another folder with "
                "--output, or take the values of that sweep.",
            ) from error
        return Task(name, chosen, self._folder / name, trial)


def _suggest(trial: Any, key: str, values: Sequence[Any] | ValueRange) -> Any:
    """The value of a key that Optuna suggests, or has suggested."""
    if not isinstance(values, ValueRange):
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    suggest = trial.suggest_int if values.is_whole else trial.suggest_float
    if values.step is None or values.log:  # Optuna has no steps on a logarithmic scale
        return values.snapped(suggest(key, values.low, values.high, log=values.log))
    return suggest(key, values.low, values.snapped(values.high), step=values.step)


# Processes


class Child:
    """A process that trains one run."""

    def __init__(
        self, task: Task, spec: Mapping[str, Any], output: Path, environment: Mapping[str, str]
    ) -> None:
        self.task = task
        self.connection, other = Pipe()
        self.is_connected = True
        self._error: str | None = None
        self._output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        own = {"chosen": task.chosen, "path": str(task.path), "connection": other.fileno()}
        module = "loopwright.cli.sweep.child"
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps({**spec, **own})],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(other.fileno(),),
                env=dict(environment),
                start_new_session=True,  # Ctrl-C reaches the sweep only, which sends one SIGTERM
            )
        other.close()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Messages since the last call; errors are stored, not yielded."""
        try:
            while self.is_connected and self.connection.poll():
                message = self.connection.recv()
                if "error" in message:
                    self._error = message["error"]
                else:
                    yield message
        except (EOFError, OSError):  # it is ending, which may take a while
            self.is_connected = False

    def answer(self, is_to_go_on: bool) -> None:
        with suppress(OSError):  # it may have ended meanwhile
            self.connection.send(is_to_go_on)

    def close(self) -> str | None:
        """Close the connection to a process that has ended; return its error, None if there was
        none."""
        for _ in self.messages():
            pass
        self.connection.close()
        code = self.process.returncode
        if self._error is not None or code in (0, 130, 143, -signal.SIGTERM):
            return self._error
        ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        lines = self._output.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        return f"its process ended with {ending}: {last}"


@dataclass(slots=True)
class Pool:
    """Trains the runs of a search, at most `jobs` at a time; `spec` is what they share."""

    spec: Mapping[str, Any]
    jobs: int
    output: Path
    children: dict[int, Child] = field(default_factory=dict)
    # runs that were in progress when the pool was stopped
    stopped: list[Task] = field(default_factory=list)

    def run(self, search: Search) -> Generator[tuple[Task, str | None], None, None]:
        """Yield runs as they end, with their errors. Leaving the loop early ends all processes,
        which save first."""
        try:
            while self._fill(search):
                children = self.children.values()
                connected = [child.connection for child in children if child.is_connected]
                wait(connected, POLL_SECONDS)
                for slot, child in list(self.children.items()):
                    for message in child.messages():
                        child.answer(search.report(child.task, message["update"], message["value"]))
                    if child.process.poll() is not None:
                        del self.children[slot]
                        yield child.task, child.close()
        finally:
            self.stop()

    def _fill(self, search: Search) -> bool:
        """Start runs up to the limit; return whether any is running."""
        for slot in range(self.jobs):
            task = None if slot in self.children else search.next()
            if task is not None:
                output = self.output / f"{task.path.name}.txt"
                self.children[slot] = Child(task, self.spec, output, self._environment(slot))
        return bool(self.children)

    def _environment(self, slot: int) -> dict[str, str]:
        """The environment of a process: processors and accelerators are divided among parallel
        runs."""
        variables = dict(os.environ)
        if self.jobs > 1:
            variables.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // self.jobs, 1)))
            given = os.environ.get("CUDA_VISIBLE_DEVICES")
            devices = [str(number) for number in range(torch.cuda.device_count())]
            if given is not None:
                devices = [device for device in given.split(",") if device.strip()]
            if len(devices) > 1:
                variables["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
        return variables

    def stop(self) -> None:
        """Send SIGTERM to running processes, which save and end; kill them after
        PATIENCE_SECONDS."""
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.terminate()
        end = time.monotonic() + PATIENCE_SECONDS
        for child in self.children.values():
            try:
                while child.process.poll() is None and time.monotonic() < end:
                    for _ in child.messages():
                        child.answer(False)
                    time.sleep(POLL_SECONDS / 2)
            finally:
                child.process.kill()
                child.process.wait()
                child.close()
                self.stopped.append(child.task)
        self.children.clear()

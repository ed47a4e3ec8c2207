"""`loopwright sweep`: train one run for each combination of values, and compare them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...checkpoint.manifest import local_path
from ...config import (
    Config,
    ConfigError,
    Interval,
    Sweep,
    check,
    expand_sweep,
    load_config,
    read_sweep,
)
from ...errors import ConfigurationError, MissingExtraError, check_number
from ...interfaces.configured.experiment import schema
from ...metrics.best import Mode, direction_of, ranked
from ...run.changes import short_keys
from ...run.reading import RunView
from ...text import counted
from ..exits import FOUND, INTERRUPTED, OK
from ..output import (
    RED,
    number_text,
    print_fitted,
    print_json,
    printable,
    styled,
    time_text,
)
from ..selection import check_run_file
from .runs import Pool, Result, Search, Task, is_finished, place_for, read_result

DEFAULT_NUM = 20
__all__ = ["sweep_command"]

MODES: dict[str, Mode] = {"minimize": "min", "maximize": "max"}


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
    config = load_config(options.config, fixed)
    job = SweepJob(options, sweep, config)
    return job.list() if options.list else job.run()


class SweepJob:
    """A sweep: chooses the runs, trains them, and prints the results."""

    def __init__(self, options: argparse.Namespace, sweep: Sweep, config: Config) -> None:
        self.options = options
        self.sweep = sweep
        self.config = config
        self.method = "optuna" if options.optuna else sweep.method
        self.metric: str = options.metric or sweep.metric or default_metric(config)
        self.direction: str | None = options.direction or sweep.direction
        self.mode: Mode = mode_of(self.metric, self.direction, config)
        self.folder = folder_of(config, options.output)
        self.results: list[Result] = []

    def list(self) -> int:
        if self.method == "optuna":
            raise ConfigurationError(
                "no-list-of-runs",
                "Optuna chooses values while the sweep runs, so there is no list of runs "
                "beforehand.",
            )
        print_tasks([task for task, _ in self._tasks()], as_json=self.options.json)
        return OK

    def run(self) -> int:
        search, total = self._search()
        for result in self.results:
            self._check_direction(result)
        better = "smaller is better" if self.mode == "min" else "larger is better"
        if total:
            self._print_line(
                f"{counted(total, 'run')} in {self.folder}, compared by {self.metric} ({better})"
            )
        is_interrupted = self._train(search, total)
        print_results(self.results, self.metric, self.mode, self.folder, as_json=self.options.json)
        if is_interrupted:
            self._print_line("Interrupted. The same command continues the sweep.")
            return INTERRUPTED
        return OK if all(result.is_done for result in self.results) else FOUND

    def _train(self, search: Search, total: int) -> bool:
        """Train all runs; return whether the sweep was interrupted."""
        options = self.options
        config = str(Path(options.config).absolute())
        pool = Pool(
            config, options.overrides, self.metric, self.mode, options.jobs, self.folder / "output"
        )
        try:
            with closing(pool.run(search)) as results:
                for result in results:
                    self._check_direction(result)
                    self.results.append(result)
                    self._print_line(self._line(result, total))
        except KeyboardInterrupt:
            self.results += [read_result(task, self.metric, self.mode) for task in pool.ended]
            return True
        return any(result.state == "interrupted" for result in self.results)

    def _check_direction(self, result: Result) -> None:
        """Raise an error where a run recorded the opposite direction, as for a loss that is called
        `score`."""
        if self.direction is not None or not (result.task.path / "run.json").is_file():
            return
        noted = RunView(result.task.path).metric_modes.get(self.metric, self.mode)
        if noted != self.mode:
            better = "smaller" if noted == "min" else "larger"
            raise ConfigurationError(
                "opposite-direction",
                f"{result.task.path} records that {better} values of {self.metric!r} are better, "
                "but the name of the metric says the opposite: add --direction minimize or "
                "--direction maximize. Finished runs are not trained again.",
            )

    def _search(self) -> tuple[Search, int]:
        """The runs to train and their total number; finished runs are added to the results."""
        if self.method == "optuna":
            num = self.options.num or self.sweep.num or DEFAULT_NUM
            found = Optuna(
                self.sweep, self.folder, self.mode, num=num, prunes=not self.options.no_pruning
            )
            self.results += [
                read_result(task, self.metric, self.mode) for task in found.tasks_before()
            ]
            return found, num
        tasks = self._tasks()
        finished = [task for task, config in tasks if is_finished(task.path, config)]
        self.results += [read_result(task, self.metric, self.mode) for task in finished]
        if finished:
            self._print_line(f"{len(finished)} of {len(tasks)} runs are finished already.")
        return Listed([task for task, _ in tasks if task not in finished]), len(tasks)

    def _tasks(self) -> Sequence[tuple[Task, Config]]:
        """All runs of a grid or random sweep; all configs are checked before the first run is
        trained."""
        variants = expand_sweep(self.options.config, self.options.overrides)
        problems = [problem for variant in variants for problem in check(variant.config, schema())]
        if problems:
            raise ConfigError(problems)
        return [
            (Task(v.name, dict(v.chosen), place_for(self.folder, v.name, v.config)), v.config)
            for v in {variant.name: variant for variant in variants}.values()
        ]

    def _line(self, result: Result, total: int) -> str:
        outcome = (
            f"{self.metric} {number_text(result.value)}"
            if result.error is None
            else result.error.splitlines()[0]
        )
        head = f"[{len(self.results)}/{total}] {chosen_text(result.task.chosen)}"
        return f"{head}: {result.state}, {outcome}, {time_text(result.seconds)}"

    def _print_line(self, line: str) -> None:
        print(printable(line), file=sys.stderr if self.options.json else sys.stdout, flush=True)


def mode_of(metric: str, direction: str | None, config: Config) -> Mode:
    """The direction of a metric: from the sweep, from a callback of the config, or from the
    metric's name."""
    if direction is not None:
        return MODES[direction]
    callbacks = [
        entry for entry in config.get("trainer.callbacks") or [] if isinstance(entry, dict)
    ]
    said = (entry.get("mode") for entry in callbacks if entry.get("metric") == metric)
    mode: Mode | None = next(
        (mode for mode in said if mode in ("min", "max")), None
    ) or direction_of(metric)
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
    for callback in config.get("trainer.callbacks") or []:
        if (
            isinstance(callback, dict)
            and str(callback.get("kind")).rpartition(".")[2] == "OfflineLoss"
        ):
            return f"{callback.get('prefix') or callback.get('dataset_key', 'eval')}_loss"
    return "loss"


def folder_of(config: Config, given: str | None) -> Path:
    output_path = given or config.get("output_path")
    if output_path is not None:
        return local_path(output_path, "output_path")
    name = config.get("name") or Path(config.place("")[0]).stem
    return Path("runs") / name / "sweep"


def print_results(
    results: Sequence[Result], metric: str, mode: Mode, folder: Path, *, as_json: bool
) -> None:
    """Print all runs, best first, runs without a value last; then the errors of failed runs."""
    ordered = ranked(results, lambda result: result.value, mode)
    if as_json:
        print_json(_as_dict(ordered, metric, mode, folder))
        return
    if not ordered:
        print("No run has ended yet.")
        return

    titles = short_keys(ordered[0].task.chosen)
    header = [
        *(title.upper() for title in titles.values()),
        metric.upper(),
        "STATE",
        "PROGRESS",
        "TIME",
        "RUN",
    ]
    rows = [
        [
            *(number_text(result.task.chosen.get(key)) for key in titles),
            number_text(result.value),
            result.state,
            "-" if result.progress is None else str(result.progress),
            time_text(result.seconds),
            str(result.task.path),
        ]
        for result in ordered
    ]
    print()
    print_fitted(header, rows, right=str(len(titles)), fold=str(len(titles) + 4))
    for result in ordered:
        if result.error is not None:
            more = f"\n  (its output: {folder / 'output' / result.task.path.name}.txt)"
            print(
                styled(
                    printable(
                        f"{chosen_text(result.task.chosen)}: {result.error}{more}", keep="\n"
                    ),
                    RED,
                )
            )


def print_tasks(tasks: Sequence[Task], *, as_json: bool) -> None:
    """Print the runs that would be trained."""
    if as_json:
        print_json(
            [{"name": task.name, "chosen": task.chosen, "path": str(task.path)} for task in tasks]
        )
        return

    titles = short_keys(tasks[0].chosen)
    rows = [[*(number_text(task.chosen[key]) for key in titles), str(task.path)] for task in tasks]
    print_fitted(
        [*(title.upper() for title in titles.values()), "RUN"], rows, fold=str(len(titles))
    )


def chosen_text(chosen: Mapping[str, Any]) -> str:
    titles = short_keys(chosen)
    return " ".join(f"{titles[key]}={number_text(value)}" for key, value in chosen.items())


def _as_dict(ordered: Sequence[Result], metric: str, mode: Mode, folder: Path) -> dict[str, Any]:
    runs = [
        {
            "name": result.task.name,
            "chosen": result.task.chosen,
            "path": str(result.task.path),
            "state": result.state,
            "value": result.value,
            "error": result.error,
            "seconds": result.seconds,
        }
        for result in ordered
    ]
    best = next((run for run in runs if run["value"] is not None), None)
    return {"folder": str(folder), "metric": metric, "mode": mode, "best": best, "runs": runs}


JOURNAL = "optuna.journal"


class Listed:
    """Runs from a list, in order."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._waiting = list(tasks)

    def next(self) -> Task | None:
        return self._waiting.pop(0) if self._waiting else None

    def report(self, task: Task, update: int, value: float) -> bool:
        return True

    def done(self, result: Result) -> None:
        """Ignore the result."""


class Optuna:
    """Runs whose values Optuna chooses by the results so far; it also ends runs that do worse than
    others.

    Its study is stored in the folder of the sweep; runs that a killed sweep left unfinished come
    first.
    """

    def __init__(self, sweep: Sweep, folder: Path, mode: Mode, *, num: int, prunes: bool) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError as error:
            raise MissingExtraError(
                "needs-optuna", "This sweep needs Optuna: pip install 'loopwright[tune]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        folder.mkdir(parents=True, exist_ok=True)
        backend = JournalFileBackend(str(folder / JOURNAL))
        pruner = (
            optuna.pruners.MedianPruner(n_startup_trials=3)
            if prunes
            else optuna.pruners.NopPruner()
        )
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="sweep",
            direction="minimize" if mode == "min" else "maximize",
            pruner=pruner,
            load_if_exists=True,
        )
        if study.direction.name.lower() != ("minimize" if mode == "min" else "maximize"):
            raise ConfigurationError(
                "other-direction",
                f"{folder} contains a sweep that should {study.direction.name.lower()} its "
                "metric, but this sweep does the opposite: name another folder with --output, or "
                f"add --direction {study.direction.name.lower()}.",
            )
        known = study.get_trials(deepcopy=False)
        study.sampler = optuna.samplers.TPESampler(seed=sweep.seed + len(known))
        self._study = study
        self._sweep = sweep
        self._folder = folder
        self._num = num
        states = optuna.trial.TrialState
        self._states = states
        left = [trial for trial in known if trial.state == states.RUNNING]
        self._left = [optuna.trial.Trial(study, trial._trial_id) for trial in left]
        self._num_asked = len(known)
        self.ended = [trial for trial in known if trial.state != states.RUNNING]

    def task_of(self, number: int, chosen: Mapping[str, Any]) -> Task:
        name = f"trial-{number:04d}"
        return Task(name, dict(chosen), self._folder / name)

    def tasks_before(self) -> list[Task]:
        """Runs of earlier calls that have ended."""
        return [self.task_of(trial.number, self._chosen(trial)) for trial in self.ended]

    def next(self) -> Task | None:
        if self._left:
            trial = self._left.pop(0)
        elif self._num_asked < self._num:
            trial = self._study.ask()
            self._num_asked += 1
        else:
            return None
        task = self.task_of(trial.number, self._chosen(trial))
        task.key = trial
        return task

    def report(self, task: Task, update: int, value: float) -> bool:
        trial = task.key
        if update not in self._reported(trial):
            trial.report(value, update)
        return not trial.should_prune()

    def done(self, result: Result) -> None:
        trial = result.task.key
        if result.state == "pruned":
            self._study.tell(trial, state=self._states.PRUNED)
        elif (
            result.state in ("finished", "stopped")
            and result.value is not None
            and math.isfinite(result.value)
        ):
            self._study.tell(trial, result.value)
        elif result.state != "interrupted":  # an interrupted run continues in the next call
            self._study.tell(trial, state=self._states.FAIL)

    def _reported(self, trial: Any) -> Mapping[int, float]:
        found: Mapping[int, float] = self._study._storage.get_trial(
            trial._trial_id
        ).intermediate_values
        return found

    def _chosen(self, trial: Any) -> dict[str, Any]:
        return {key: _suggest(trial, key, values) for key, values in self._sweep.space.items()}


def _suggest(trial: Any, key: str, values: Sequence[Any] | Interval) -> Any:
    """The value of a key: suggested by Optuna, or read from a trial that has ended."""
    if not isinstance(values, Interval):
        index = (
            trial.params[key]
            if _is_over(trial)
            else trial.suggest_categorical(key, list(range(len(values))))
        )
        return values[index]
    if _is_over(trial):
        return values.snapped(trial.params[key])
    suggest: Callable[..., Any] = trial.suggest_int if values.is_whole else trial.suggest_float
    if values.step is None or values.log:  # Optuna has no steps on a logarithmic scale
        return values.snapped(suggest(key, values.low, values.high, log=values.log))
    return suggest(key, values.low, values.snapped(values.high), step=values.step)


def _is_over(trial: Any) -> bool:
    """Whether it is the record of a trial that has ended, which suggests no values."""
    return not hasattr(trial, "suggest_categorical")

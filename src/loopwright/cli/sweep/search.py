"""How the runs of a sweep are chosen: from a list, or by Optuna."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, MissingExtraError
from ...metrics.best import Mode
from .runs import Result, Task

if TYPE_CHECKING:
    from ...config import Interval, Sweep

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
                "This sweep needs Optuna: pip install 'loopwright[tune]'."
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
                f"{folder} contains a sweep that should {study.direction.name.lower()} its "
                "metric, but this sweep does the opposite: name another folder with --output, or "
                f"add --direction {study.direction.name.lower()}."
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

    def tasks_before(self) -> list[tuple[Task, str]]:
        """Runs of earlier calls that have ended, with their states."""
        words = {
            self._states.COMPLETE: "finished",
            self._states.PRUNED: "pruned",
            self._states.FAIL: "failed",
        }
        return [
            (self.task_of(t.number, self._chosen(t)), words.get(t.state, "failed"))
            for t in self.ended
        ]

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
    from ...config import Interval

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

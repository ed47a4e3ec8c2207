"""`loopwright sweep CONFIG [KEY=A,B,C ...]`: one run for each combination of values, and which is best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.manifest import local_path
from ..errors import ConfigurationError
from ..metrics.direction import Mode, direction_of
from .adding import add_command
from .exits import FOUND, INTERRUPTED, OK
from .output import number_text, printable
from .overriding import add_config
from .run_text import time_text

if TYPE_CHECKING:
    from ..config import Config, Sweep
    from .sweep_runs import Result, Search, Task

MORE = """\
What is varied is said in the file, under `sweep:`, or here with several values: model.width=8,16,32 or n=range(1,5).
Methods: grid (all combinations), random (`num` of them), optuna (which chooses by how the runs before went and ends
those that go worse than others at the same update). Each run is a process of its own, with a run directory of its own
in runs/<name>/sweep, or in the folder that `output_path` or --output names.

The same command again continues: finished runs are not trained again, unfinished ones go on where they were left,
failed ones are tried again. Ctrl-C lets the runs save and end. Exit code 1: at least one run failed."""
EXAMPLE = """\
sweep run.yaml model.width=8,16,32 model.optimizer.lr=0.1,0.01 --jobs 2
sweep run.yaml --metric test_loss --json
sweep run.yaml --optuna --num 30 --jobs 4"""
DEFAULT_NUM = 20
MODES: dict[str, Mode] = {"minimize": "min", "maximize": "max"}


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Train one run for each combination of values, and compare them."
    parser = add_command(parsers, common, "sweep", run=sweep_command, what=what, more=MORE, example=EXAMPLE)
    add_config(parser)
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="how many run at a time (default: 1)")
    parser.add_argument(
        "--metric", metavar="NAME", help="what is compared (default: the loss of an evaluation, or loss)"
    )
    parser.add_argument("--direction", choices=tuple(MODES), help="which values are better, where names do not say it")
    parser.add_argument("--optuna", action="store_true", help="let Optuna choose the values")
    parser.add_argument("--num", metavar="N", type=int, help=f"runs that Optuna may have (default: {DEFAULT_NUM})")
    parser.add_argument("--no-pruning", action="store_true", help="let Optuna end no run early")
    parser.add_argument("-o", "--output", metavar="DIR", help="the folder of the runs")
    parser.add_argument("--list", action="store_true", help="only list the runs of a grid or random sweep")
    parser.add_argument("--json", action="store_true", help="print JSON; what happens is told on stderr")


def sweep_command(options: argparse.Namespace) -> int:
    from ..config import load_config, read_sweep

    if options.jobs < 1:
        raise ConfigurationError(f"--jobs {options.jobs}: use 1 or more.")
    sweep = read_sweep(options.config, options.overrides)
    if not sweep.space:
        raise ConfigurationError(
            f"{options.config} has nothing to vary: give several values, as in model.width=8,16, or a `sweep:` block."
        )
    fixed = [text for text in options.overrides if text.lstrip("+").partition("=")[0] not in sweep.space]
    config = load_config(options.config, fixed)
    job = SweepJob(options, sweep, config)
    return job.list() if options.list else job.run()


class SweepJob:
    """A sweep from its description to its table."""

    def __init__(self, options: argparse.Namespace, sweep: Sweep, config: Config) -> None:
        self.options, self.sweep, self.config = options, sweep, config
        self.method = "optuna" if options.optuna else sweep.method
        self.metric: str = options.metric or sweep.metric or default_metric(config)
        self.direction: str | None = options.direction or sweep.direction
        self.mode = mode_of(self.metric, self.direction, config)
        self.folder = folder_of(config, options.output)
        self.results: list[Result] = []

    def list(self) -> int:
        from .sweep_table import print_tasks

        if self.method == "optuna":
            raise ConfigurationError("Optuna chooses values while it runs: there is no list beforehand.")
        print_tasks([task for task, _ in self._tasks()], as_json=self.options.json)
        return OK

    def run(self) -> int:
        from .sweep_table import print_results

        search, total = self._search()
        for result in self.results:
            self._check_direction(result)
        better = "smaller is better" if self.mode == "min" else "larger is better"
        if total:
            self._tell(
                f"{total} {'run' if total == 1 else 'runs'} in {self.folder}, compared by {self.metric} ({better})"
            )
        is_interrupted = self._train(search, total)
        print_results(self.results, self.metric, self.mode, self.folder, as_json=self.options.json)
        if is_interrupted:
            self._tell("Interrupted: the same command continues.")
            return INTERRUPTED
        return OK if all(result.is_done for result in self.results) else FOUND

    def _train(self, search: Search, total: int) -> bool:
        """Train all; whether somebody interrupted it."""
        from .sweep_runs import Pool, read_result

        options = self.options
        config = str(Path(options.config).absolute())
        pool = Pool(config, options.overrides, self.metric, self.mode, options.jobs, self.folder / "output")
        try:
            with closing(pool.run(search)) as results:
                for result in results:
                    self._check_direction(result)
                    self.results.append(result)
                    self._tell(self._line(result, total))
        except KeyboardInterrupt:
            self.results += [read_result(task, self.metric, self.mode) for task in pool.ended]
            return True
        return any(result.state == "interrupted" for result in self.results)

    def _check_direction(self, result: Result) -> None:
        """Refuse to go on by a name where a run knows better, as of a loss that is called `score`."""
        from ..run.reading import RunView

        if self.direction is not None or not (result.task.path / "run.json").is_file():
            return
        noted = RunView(result.task.path).metric_modes.get(self.metric, self.mode)
        if noted != self.mode:
            better = "smaller" if noted == "min" else "larger"
            raise ConfigurationError(
                f"{result.task.path} notes that {better} values of {self.metric!r} are better, and this sweep goes by "
                "its name, which says the opposite: add --direction minimize or --direction maximize. Runs that are "
                "finished are not trained again."
            )

    def _search(self) -> tuple[Search, int]:
        """The runs that are to be trained, and how many there are in all; those that are finished are results."""
        from .sweep_runs import is_finished, read_result
        from .sweep_search import Listed, Optuna

        if self.method == "optuna":
            num = self.options.num or self.sweep.num or DEFAULT_NUM
            found = Optuna(self.sweep, self.folder, self.mode, num=num, prunes=not self.options.no_pruning)
            self.results += [read_result(task, self.metric, self.mode) for task, _ in found.tasks_before()]
            return found, num
        tasks = self._tasks()
        finished = [task for task, config in tasks if is_finished(task.path, config)]
        self.results += [read_result(task, self.metric, self.mode) for task in finished]
        if finished:
            self._tell(f"{len(finished)} of {len(tasks)} finished before.")
        return Listed([task for task, _ in tasks if task not in finished]), len(tasks)

    def _tasks(self) -> Sequence[tuple[Task, Config]]:
        """All runs of a grid or random sweep, each checked before the first of them is trained."""
        from ..config import ConfigError, check, expand_sweep
        from ..doors.configured.places import schema
        from .sweep_runs import Task, place_for

        variants = expand_sweep(self.options.config, self.options.overrides)
        problems = [problem for variant in variants for problem in check(variant.config, schema())]
        if problems:
            raise ConfigError(problems)
        return [
            (Task(v.name, dict(v.chosen), place_for(self.folder, v.name, v.config)), v.config)
            for v in {variant.name: variant for variant in variants}.values()
        ]

    def _line(self, result: Result, total: int) -> str:
        from .sweep_table import chosen_text

        told = f"{self.metric} {number_text(result.value)}" if result.error is None else result.error.splitlines()[0]
        head = f"[{len(self.results)}/{total}] {chosen_text(result.task.chosen)}"
        return f"{head}: {result.state}, {told}, {time_text(result.seconds)}"

    def _tell(self, line: str) -> None:
        print(printable(line), file=sys.stderr if self.options.json else sys.stdout, flush=True)


def mode_of(metric: str, direction: str | None, config: Config) -> Mode:
    """Which values are better: as this sweep says, as a callback of the config does, or as the name does."""
    if direction is not None:
        return MODES[direction]
    callbacks = [entry for entry in config.get("trainer.callbacks") or [] if isinstance(entry, dict)]
    said = (entry.get("mode") for entry in callbacks if entry.get("metric") == metric)
    mode: Mode | None = next((mode for mode in said if mode in ("min", "max")), None) or direction_of(metric)
    if mode is None:
        raise ConfigurationError(
            f"The sweep compares {metric!r}, a name that does not say whether smaller or larger values are better: add "
            "--direction minimize or --direction maximize (or `direction:` under `sweep:`)."
        )
    return mode


def default_metric(config: Config) -> str:
    """The loss on the first data set that a callback evaluates, or the training loss."""
    for callback in config.get("trainer.callbacks") or []:
        if isinstance(callback, dict) and str(callback.get("kind")).rpartition(".")[2] == "OfflineLoss":
            return f"{callback.get('prefix') or callback.get('dataset_key', 'eval')}_loss"
    return "loss"


def folder_of(config: Config, given: str | None) -> Path:
    output_path = given or config.get("output_path")
    if output_path is not None:
        return local_path(output_path, "output_path")
    name = config.get("name") or Path(config.place("")[0]).stem
    return Path("runs") / name / "sweep"

"""`loopwright check CONFIG`: everything that a run does, done once on a few samples, and all mistakes in one report."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..checkpoint.manifest import local_path
from ..errors import ConfigurationError, full_tracebacks
from .check_print import Outcome, print_outcome
from .exits import FOUND, OK

if TYPE_CHECKING:
    from ..config import Config
    from ..doors.configured.experiment import Experiment
    from .check_findings import Findings
    from .check_measures import Measures

SLOW_SECONDS = 0.1  # to build the data sets: more than that, and they are built once
LATE_SECONDS = 4.0  # after which less is tried


def check_config_command(path: Path, arguments: Sequence[str], *, as_json: bool) -> int:
    """Check a run file, given what comes after its name on the command line."""
    parser = argparse.ArgumentParser(prog=f"loopwright check {path}", add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", default=as_json)
    parser.add_argument("--debug", action="store_true")  # mistakes are what is looked for, not errors
    options = parser.parse_args(arguments)
    if not path.is_file():
        raise ConfigurationError(f"{path} is no file: name a run file (YAML) or a Python program.")
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what the run prints is no JSON
        outcome = check_config(path, options.overrides)
    print_outcome(outcome, as_json=options.json)
    return FOUND if outcome.mistakes else OK


def check_config(path: str | Path, overrides: Sequence[str] = ()) -> Outcome:
    """Everything that is wrong with a run file, and what its run will need."""
    from ..config import ConfigError
    from ..data.random import preserved_rng
    from .train import load_single

    begin = monotonic()
    try:
        config = load_single(str(path), list(overrides))
    except ConfigError as error:
        return Outcome(str(path), error.problems, seconds=monotonic() - begin)
    with tempfile.TemporaryDirectory(prefix="loopwright-check-") as folder, preserved_rng(), full_tracebacks():
        check = ConfigCheck(config, Path(folder), begin)
        check.run()
    found = check.findings
    checked = tuple(dict.fromkeys(found.checked))
    seconds = monotonic() - begin
    return Outcome(
        str(path), tuple(found.mistakes), tuple(found.notes), checked, check.measures, check.checkpoint_bytes, seconds
    )


class ConfigCheck:
    """One check after the other, each with what those before it have left."""

    def __init__(self, config: Config, folder: Path, begin: float) -> None:
        from .check_findings import Findings

        self.config, self.folder, self.begin = config, folder, begin
        self.findings: Findings = Findings(config)
        self.measures: Measures | None = None
        self.checkpoint_bytes: int | None = None
        self.datasets: dict[str, Any] = {}
        self.samples: dict[str, Any] = {}
        self.shares_data = False

    def run(self) -> None:
        from ..config import beside

        self._check_place()
        experiment = self._checked_experiment()
        with beside(self.config.folder):
            if experiment is not None and self._check_parts(experiment):
                self._check_run(experiment)

    @property
    def is_late(self) -> bool:
        return monotonic() - self.begin > LATE_SECONDS

    def _checked_experiment(self) -> Experiment | None:
        """The run, also where its config has mistakes in parts that can be left out of what is looked at."""
        from ..config import ConfigError
        from ..doors.configured.experiment import Experiment

        try:
            experiment = Experiment.from_config(self._without_compilation(), progress="silent")
        except ConfigError as error:
            self.findings.mistakes += error.problems
            wrong = {problem.key.split(".")[0] for problem in error.problems}
            if "datasets" not in wrong:
                self._check_datasets(Experiment(self.config, progress="silent"))
            return None
        self.findings.checked.append("the config")
        return experiment

    def _without_compilation(self) -> Config:
        """The config with torch.compile left out: it takes longer than all else, and what it is told of is the same."""
        from ..config import Config
        from ..config.tree import descend

        root = self.config.root.copy()
        node = descend(root, "trainer.use_torch_compile")
        if node is not None and node.value is True:
            node.value = False
            self.findings.note("trainer.use_torch_compile", "the model was not compiled for this check.")
        return Config(root, self.config.folder)

    def _check_place(self) -> None:
        """That the run directory can be made, and has room for something."""
        given = self.config.get("output_path")
        path = Path(given if isinstance(given, str) else "runs").absolute()
        key = "output_path" if given is not None else ""
        try:
            local_path(given if isinstance(given, str) else "runs", "output_path")
        except ConfigurationError as error:
            self.findings.mistake(key, str(error))
            return
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        if not place.is_dir():
            self.findings.mistake(key, f"{place} is a file, so {path} cannot be a folder for the run: choose another.")
        elif not os.access(place, os.W_OK | os.X_OK):
            self.findings.mistake(key, f"{place} cannot be written to, so {path} cannot hold the run: choose another.")
        else:
            self.findings.checked.append("the place for the run")

    def _check_datasets(self, experiment: Experiment) -> bool:
        """Build and look at each data set; whether all could be built."""
        from .check_data import check_dataset

        keys = self.config.get("datasets")
        for key in keys if isinstance(keys, dict) else ():
            with self.findings.collecting(f"datasets.{key}", "it cannot be built") as built:
                self.datasets[key] = experiment.build_dataset(str(key))
            if built:
                sample = check_dataset(self.findings, str(key), self.datasets[key])
                self.findings.checked.append(f"data set {key}")
                self.samples[str(key)] = sample
        return len(self.datasets) == len(keys or ())

    def _check_parts(self, experiment: Experiment) -> bool:
        """Data sets, model and trainer, each by itself; whether a run can be tried."""
        from .check_data import check_properties, check_sizes

        start = monotonic()
        is_whole = self._check_datasets(experiment)
        self.shares_data = monotonic() - start > SLOW_SECONDS
        with self.findings.collecting("trainer", "it cannot be built") as built:
            trainer = experiment.build_trainer(self.datasets)
        if not built:
            return False
        for key, sample in self.samples.items():
            if sample is not None:
                check_properties(self.findings, trainer, key, sample)
        check_sizes(self.findings, trainer, self.datasets.get("train"))
        return is_whole and not any(p.key.startswith("datasets") for p in self.findings.mistakes)

    def _check_run(self, experiment: Experiment) -> None:
        from .check_saving import check_resuming, check_saving
        from .check_tiny import Factory
        from .check_training import check_callbacks, check_steps

        findings = self.findings
        factory = Factory(experiment, self.datasets, shares_data=self.shares_data)
        length = self._check_schedule(factory)
        if not check_steps(findings, factory):
            return
        dropped, engine = check_callbacks(findings, factory, self.folder)
        if engine is not None:
            self.checkpoint_bytes = check_saving(findings, factory, engine, dropped, self.folder)
        if self.checkpoint_bytes is not None:
            self._check_room()
            if experiment.seed is None:
                findings.note("seed", "seed is null, so no run is like another: resuming was not compared.")
            else:
                check_resuming(findings, factory, dropped, self.folder, 1 if self.is_late else 3)
        if length is not None:
            from .check_measures import measure

            with findings.collecting("trainer", "a step with a full batch fails"):
                self.measures = measure(factory, length)

    def _check_schedule(self, factory: Any) -> Any:
        from .check_schedule import check_curves, check_intervals, check_schedulers, length_of

        length = None
        with self.findings.collecting("trainer", "the optimizer or the schedule cannot be built"):
            engine = factory.build()
            length = length_of(engine)
            check_intervals(self.findings, engine.active_callbacks, length)
            engine.setup()
            check_curves(self.findings, engine, length)
            check_schedulers(self.findings, engine, length)
        return length

    def _check_room(self) -> None:
        """Resume points are kept twice, and written beside the old ones."""
        given = self.config.get("output_path")
        path = Path(given if isinstance(given, str) else "runs").absolute()
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        free, need = shutil.disk_usage(place).free, 4 * (self.checkpoint_bytes or 0)
        if free < need:
            self.findings.mistake(
                "output_path" if given is not None else "",
                f"{place} has {free} bytes left, and the checkpoints of this run take about {need}.",
            )

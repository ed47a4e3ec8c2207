"""`loopwright check CONFIG`: do once everything that a run does, on a few samples, and report all
mistakes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...checkpoint.manifest import local_path
from ...errors import ConfigurationError, full_tracebacks
from ..exits import FOUND, OK
from ..output import printable, size_text
from .report import ConfigReport, Report, print_report

if TYPE_CHECKING:
    from ...config import Config
    from ...interfaces.configured.experiment import Experiment
    from .probe import Measures

SLOW_SECONDS = 0.1  # data sets that take longer to build are built once
LATE_SECONDS = 4.0  # after this time fewer checks are made


def check_config_command(path: Path, arguments: Sequence[str], *, as_json: bool) -> int:
    """Check a run file; `arguments` come after its name on the command line."""
    parser = argparse.ArgumentParser(prog=f"loopwright check {path}", add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", default=as_json)
    # accepted as by every command, and not needed
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args(arguments)
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is not a file: name a run file (YAML) or a Python program."
        )
    # the output of the run is no JSON
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        report = check_config(path, options.overrides)
    print_report(report, as_json=options.json)
    return FOUND if report.mistakes else OK


def check_config(path: str | Path, overrides: Sequence[str] = ()) -> Report:
    """Find everything that is wrong with a run file, and measure its run."""
    from ...config import ConfigError
    from ...data.random import preserved_rng
    from ..train import load_single

    begin = monotonic()
    try:
        config = load_single(str(path), list(overrides))
    except ConfigError as error:
        return with_facts(
            Report("config", str(path), mistakes=list(error.problems)), monotonic() - begin
        )
    report = ConfigReport("config", str(path), config=config)
    with (
        tempfile.TemporaryDirectory(prefix="loopwright-check-") as folder,
        preserved_rng(),
        full_tracebacks(),
    ):
        check = ConfigCheck(report, Path(folder), begin)
        check.run()
    checked = list(dict.fromkeys(report.checked))
    return with_facts(report, monotonic() - begin, checked, check.measures, check.checkpoint_bytes)


def with_facts(
    report: Report,
    seconds: float,
    checked: Sequence[str] = (),
    measures: Measures | None = None,
    checkpoint_bytes: int | None = None,
) -> Report:
    """Add to a report the parts that were checked and the measures of the run."""
    parts = {"checked": f"{', '.join(checked)} ({seconds:.1f} s)"} if checked else {}
    report.fact("checked", list(checked), *_titled(parts))
    report.fact(
        "measures",
        measures and measures.to_json(),
        *_titled({} if measures is None else measures.texts()),
    )
    size = {} if checkpoint_bytes is None else {"checkpoint": size_text(checkpoint_bytes)}
    report.fact("checkpoint_bytes", checkpoint_bytes, *_titled(size))
    report.fact("check_seconds", seconds)
    return report


def _titled(texts: Mapping[str, str]) -> Iterator[str]:
    return (printable(f"{title:<11} {text}") for title, text in texts.items())


class ConfigCheck:
    """Checks of a config, in the order in which they depend on each other."""

    def __init__(self, report: ConfigReport, folder: Path, begin: float) -> None:
        self.report = report
        self.config = report.config
        self.folder = folder
        self.begin = begin
        self.measures: Measures | None = None
        self.checkpoint_bytes: int | None = None
        self.datasets: dict[str, Any] = {}
        self.samples: dict[str, Any] = {}
        self.shares_data = False

    def run(self) -> None:
        from ...config import beside

        self._check_place()
        experiment = self._checked_experiment()
        with beside(self.config.folder):
            if experiment is not None and self._check_parts(experiment):
                self._check_run(experiment)

    @property
    def is_late(self) -> bool:
        return monotonic() - self.begin > LATE_SECONDS

    def _checked_experiment(self) -> Experiment | None:
        """Build the experiment; where the config has mistakes, check its data sets at least."""
        from ...config import ConfigError
        from ...interfaces.configured.experiment import Experiment

        try:
            experiment = Experiment.from_config(self._without_compilation(), progress="silent")
        except ConfigError as error:
            self.report.mistakes += error.problems
            wrong = {problem.key.split(".")[0] for problem in error.problems}
            if "datasets" not in wrong:
                self._check_datasets(Experiment(self.config, progress="silent"))
            return None
        self.report.checked.append("the config")
        return experiment

    def _without_compilation(self) -> Config:
        """The config without torch.compile, which takes longer than all other checks and finds
        nothing more."""
        from ...config import Config
        from ...config.tree import descend

        root = self.config.root.copy()
        node = descend(root, "trainer.use_torch_compile")
        if node is not None and node.value is True:
            node.value = False
            self.report.note(
                "trainer.use_torch_compile", "the model was not compiled for this check."
            )
        return Config(root, self.config.folder)

    def _check_place(self) -> None:
        """Check that the run directory can be created."""
        given = self.config.get("output_path")
        path = Path(given if isinstance(given, str) else "runs").absolute()
        key = "output_path" if given is not None else ""
        try:
            local_path(given if isinstance(given, str) else "runs", "output_path")
        except ConfigurationError as error:
            self.report.mistake(key, str(error))
            return
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        if not place.is_dir():
            self.report.mistake(
                key, f"{place} is a file, so {path} cannot be a folder for the run: choose another."
            )
        elif not os.access(place, os.W_OK | os.X_OK):
            self.report.mistake(
                key,
                f"{place} is not writable, so the run cannot be recorded in {path}: choose "
                "another folder.",
            )
        else:
            self.report.checked.append("the run directory")

    def _check_datasets(self, experiment: Experiment) -> bool:
        """Build and check each data set; return whether all could be built."""
        from .data import check_dataset

        keys = self.config.get("datasets")
        for key in keys if isinstance(keys, dict) else ():
            with self.report.collecting(f"datasets.{key}", "it cannot be built") as built:
                self.datasets[key] = experiment.build_dataset(str(key))
            if built:
                sample = check_dataset(self.report, str(key), self.datasets[key])
                self.report.checked.append(f"data set {key}")
                self.samples[str(key)] = sample
        return len(self.datasets) == len(keys or ())

    def _check_parts(self, experiment: Experiment) -> bool:
        """Check data sets, model and trainer separately; return whether a run can be tried."""
        from .data import check_properties, check_sizes

        start = monotonic()
        is_whole = self._check_datasets(experiment)
        self.shares_data = monotonic() - start > SLOW_SECONDS
        with self.report.collecting("trainer", "it cannot be built") as built:
            trainer = experiment.build_trainer(self.datasets)
        if not built:
            return False
        for key, sample in self.samples.items():
            if sample is not None:
                check_properties(self.report, trainer, key, sample)
        check_sizes(self.report, trainer, self.datasets.get("train"))
        return is_whole and not any(p.key.startswith("datasets") for p in self.report.mistakes)

    def _check_run(self, experiment: Experiment) -> None:
        from .probe import Factory
        from .training import check_callbacks, check_resuming, check_saving, check_steps

        report = self.report
        factory = Factory(experiment, self.datasets, shares_data=self.shares_data)
        length = self._check_schedule(factory)
        if not check_steps(report, factory):
            return
        dropped, engine = check_callbacks(report, factory, self.folder)
        if engine is not None:
            self.checkpoint_bytes = check_saving(report, factory, engine, dropped, self.folder)
        if self.checkpoint_bytes is not None:
            self._check_room()
            if experiment.seed is None:
                report.note(
                    "seed", "seed is null, so every run is different: resuming was not checked."
                )
            else:
                check_resuming(report, factory, dropped, self.folder, 1 if self.is_late else 3)
        if length is not None:
            from .probe import measure

            with report.collecting("trainer", "a step with a full batch fails"):
                self.measures = measure(factory, length)

    def _check_schedule(self, factory: Any) -> Any:
        from .schedule import check_curves, check_intervals, check_schedulers, length_of

        length = None
        with self.report.collecting("trainer", "the optimizer or the schedule cannot be built"):
            engine = factory.build()
            length = length_of(engine)
            check_intervals(self.report, engine.run.callbacks, length)
            engine.setup()
            check_curves(self.report, engine, length)
            check_schedulers(self.report, engine, length)
        return length

    def _check_room(self) -> None:
        """Check the free disk space: two resume points are kept, and new ones written beside
        them."""
        given = self.config.get("output_path")
        path = Path(given if isinstance(given, str) else "runs").absolute()
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        need = 4 * (self.checkpoint_bytes or 0)
        if free < need:
            self.report.mistake(
                "output_path" if given is not None else "",
                f"{place} has {free} bytes left, and the checkpoints of this run take about "
                f"{need}.",
            )

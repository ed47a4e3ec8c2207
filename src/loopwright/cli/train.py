"""`loopwright train CONFIG [KEY=VALUE ...]`: train the run that a file describes, or continue
it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoint import list_checkpoints
from ..config import load_config, read_sweep
from ..errors import ConfigurationError, Interrupted, LoopwrightError
from ..interfaces.configured import Experiment
from ..run.reading import Run
from ..runtime.environment import Launch
from ..training.program import Display
from .app import is_override
from .output import FAILED, OK, explained
from .selection import check_run_file, find_run, resume_text


def train_command(options: argparse.Namespace) -> int:
    with reported_once(is_debugging=options.debug):
        experiment, resume = _described(options)
    with explained(lambda: experiment.run):
        experiment.build()
        assert experiment.trainer is not None
        engine = experiment.trainer.engine
        engine._message_names = replace(
            engine._message_names, start_over="--new", accept_changes="--accept-changes"
        )
        try:
            experiment.train(
                resume=resume, changes="accept" if options.accept_changes else "refuse"
            )
        except Interrupted as left:
            return int(left.code or OK)
    return OK


def load_single(path: str, overrides: list[str], command: str = "train") -> Any:
    """Load the config of one run; a config of several runs is refused."""
    check_run_file(path, command)
    space = read_sweep(path, overrides).space
    if space:
        raise ConfigurationError(
            "several-runs",
            f"{path} describes several runs, with several values of {', '.join(space)}: use "
            "`loopwright sweep`, or give each of them one value (~sweep removes the `sweep:` "
            "block).",
        )
    return load_config(path, overrides)


def is_first_process() -> bool:
    """Whether this is rank 0, the only rank that prints."""
    launch = Launch.from_environment()
    return launch is None or launch.rank == 0


@contextmanager
def reported_once(*, is_debugging: bool) -> Iterator[None]:
    """Let only rank 0 report a mistake that all ranks find."""
    try:
        yield
    except LoopwrightError:
        if is_debugging or os.environ.get("RANK", "0") == "0":
            raise
        raise SystemExit(FAILED) from None


def _described(options: argparse.Namespace) -> tuple[Experiment, bool | str | Path]:
    """The run, and the checkpoint or run to resume from."""
    config = options.config
    overrides = options.overrides
    if config is not None and is_override(config) and not Path(config).exists():
        config, overrides = None, [config, *overrides]
    earlier = None if options.resume is None else _earlier(options.resume, options.root)
    if config is None:
        return _again(earlier, overrides, options.progress), True
    experiment = Experiment.from_config(load_single(config, overrides), progress=options.progress)
    return experiment, False if options.new else "auto" if earlier is None else earlier


def _earlier(text: str, root: str) -> Path:
    """Look up the run or checkpoint to resume from."""
    path = Path(text)
    is_run = (path / "run.json").is_file()
    if (
        path.is_dir()
        and not is_run
        and any(info.path == path.absolute() for info in list_checkpoints(path))
    ):
        return path
    return find_run(text, root).path


def _again(run: Path | None, overrides: list[str], progress: Display) -> Experiment:
    """A run with the config and the code that were kept in its directory."""
    if run is None:
        raise ConfigurationError(
            "run-not-named",
            "Name a run file, as in `loopwright train run.yaml`, or a run to resume, as in "
            "`loopwright train --resume last`. `loopwright init` writes an example.",
        )
    config = run / "config.yaml"
    if not config.is_file():
        raise ConfigurationError(
            "no-config-kept", f"{run} has no config.yaml. {resume_text(Run(run))}"
        )
    experiment = Experiment.from_config(load_config(config, overrides), progress=progress)
    experiment.run = run
    return experiment

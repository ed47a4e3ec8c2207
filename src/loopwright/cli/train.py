"""`loopwright train CONFIG [KEY=VALUE ...]`: train the run that a file describes, or continue it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, Interrupted, LoopwrightError
from .arguments import add_command, add_config, add_root, find_run, is_override
from .exits import FAILED, OK

if TYPE_CHECKING:
    from ..doors.configured import Experiment
    from ..training.program import Display

MORE = """\
Everything is checked before anything is built. The run goes to runs/<name>/<id>, or where `output_path` says. If there
is an unfinished run of the same name and config it goes on exactly where it was left; a finished one stays as it is,
and a new one is started. So it is where the config is another one, unless --accept-changes asks to go on with it. Where
the config is the same and model, optimizer, loss or data are not, that is an error that lists what has changed.

Ctrl-C or SIGTERM: the update under way is finished and saved, and the command leaves with 130 or 143. The same command
continues. Ctrl-C twice ends it at once. SIGUSR1 saves without stopping.
On a terminal there is a bar, elsewhere a line for each epoch. On several processes:
torchrun --nproc-per-node 4 -m loopwright train run.yaml"""
EXAMPLE = """\
train run.yaml
train run.yaml trainer.max_epochs=20 model.width=64 name=wide
train --resume last trainer.max_epochs=40
train run.yaml --new"""
STYLES = ("auto", "bar", "lines", "silent")


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Train what a run file describes, or go on with it."
    parser = add_command(parsers, common, "train", run=train_command, what=what, more=MORE, example=EXAMPLE)
    add_config(parser, what="a run file (YAML); may be left out with --resume RUN, which has its own", nargs="?")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--new", action="store_true", help="start a new run, also if there is an unfinished one")
    how.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with this run (its path, the beginning of its id or name, or `last`), or from this checkpoint in a "
        "new run",
    )
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="go on with a run although its config, code or data have changed since; what changed is noted in run.json",
    )
    parser.add_argument("--progress", choices=STYLES, default="auto", help="what is shown meanwhile (default: auto)")
    add_root(parser)


def train_command(options: argparse.Namespace) -> int:
    from .exits import explained

    with reported_once(is_debugging=options.debug):
        experiment, resume = _described(options)
    with explained(lambda: experiment.run):
        experiment.build()
        assert experiment.trainer is not None
        engine = experiment.trainer.engine
        engine._words = replace(engine._words, start_over="--new", accept_changes="--accept-changes")
        try:
            experiment.train(resume=resume, changes="accept" if options.accept_changes else "refuse")
        except Interrupted as left:
            return int(left.code or OK)
    return OK


def load_single(path: str, overrides: list[str]) -> Any:
    """Load the config of one run; a config of several runs is refused."""
    from ..config import load_config, read_sweep

    space = read_sweep(path, overrides).space
    if space:
        raise ConfigurationError(
            f"{path} describes several runs, over {', '.join(space)}: use `loopwright sweep`, or give each of them one "
            "value (and remove a block with ~sweep)."
        )
    return load_config(path, overrides)


def is_first_process() -> bool:
    """Whether this is rank 0, the only rank that prints."""
    from ..runtime.environment import Launch

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
    from ..doors.configured import Experiment

    config, overrides = options.config, options.overrides
    if config is not None and is_override(config) and not Path(config).exists():
        config, overrides = None, [config, *overrides]
    earlier = None if options.resume is None else _earlier(options.resume, options.root)
    if config is None:
        return _again(earlier, overrides, options.progress), True
    experiment = Experiment.from_config(load_single(config, overrides), progress=options.progress)
    return experiment, False if options.new else "auto" if earlier is None else earlier


def _earlier(text: str, root: str) -> Path:
    """Look up the run or checkpoint to resume from."""
    from ..checkpoint import list_checkpoints

    path = Path(text)
    is_run = (path / "run.json").is_file()
    if path.is_dir() and not is_run and any(info.path == path.absolute() for info in list_checkpoints(path)):
        return path
    return find_run(text, root).path


def _again(run: Path | None, overrides: list[str], progress: Display) -> Experiment:
    """A run with the config and the code that were kept in its directory."""
    from ..config import load_config
    from ..doors.configured import Experiment

    if run is None:
        raise ConfigurationError("Name the run file to train from (CONFIG), or a run to go on with (--resume RUN).")
    config = run / "config.yaml"
    if not config.is_file():
        raise ConfigurationError(f"{run} has no config.yaml of its own: name the run file as well (CONFIG).")
    experiment = Experiment.from_config(load_config(config, overrides), progress=progress)
    experiment.run = run
    return experiment

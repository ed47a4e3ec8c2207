"""The last lines of a run: how it ended, its best epoch, where its best model is, and the commands
to look at it."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from ..metrics.best import first_best, headline
from ..metrics.progress import counted
from .epoch_table import number_text
from .time_left import clock_text

if TYPE_CHECKING:
    from pathlib import Path

    from ..callback import Trainer
    from ..checkpoint.inspect import CheckpointInfo


def last_lines(trainer: Trainer, seconds: float, *, is_resumed: bool) -> list[str]:
    """Return the lines at the end of a `train` call that took these seconds, in this process if it
    was resumed.

    A call without a run directory that trained one epoch has nothing to add to the line of that
    epoch.
    """
    run = trainer.run
    reason = trainer.stop_reason
    kept = None if run.directory is None else _best_kept(run.directory.path)
    best = _best(trainer, kept)
    lines = stop_lines(trainer)
    if run.directory is None:
        return [*lines, f"Best {best}."] if best is not None and len(trainer.history) > 1 else lines
    if reason is None:
        progress = trainer.progress
        length = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
        time = f"{clock_text(seconds)}{' since it was resumed' if is_resumed else ''}"
        lines.append(
            f"Finished: {length} in {time}." + (f" Best {best}." if best is not None else "")
        )
    elif best is not None:
        lines.append(f"Best {best}.")
    return [*lines, *_places(run.directory.path, kept)]


def stop_lines(trainer: Trainer) -> list[str]:
    """Return the line on why training was stopped; none where it was not."""
    reason = trainer.stop_reason
    return (
        []
        if reason is None
        else [f"Stopped after {counted(trainer.progress.update, 'update')}: {reason}"]
    )


def _best(trainer: Trainer, kept: CheckpointInfo | None) -> str | None:
    """ "eval_loss 0.2667 in epoch 3", of the metric that the run goes by; None where it is not
    known what is better.

    That is the metric of the best kept model, if there is one, as in `RunView.main_metric`.
    """
    directions = trainer.run.directions
    rows = trainer.history.epochs
    kept_by = kept.metric[:1] if kept is not None and kept.metric else ()
    names = [
        name for name in kept_by or directions.watched if name in trainer.history
    ] or trainer.history.names
    name = headline(names, directions.eval_keys)
    mode = None if name is None else directions.of(name)
    if name is None or mode is None:
        return None
    found = first_best(list(enumerate(rows, start=1)), lambda row: row[1].get(name), mode)
    return None if found is None else f"{name} {number_text(found[1][name])} in epoch {found[0]}"


def _best_kept(path: Path) -> CheckpointInfo | None:
    from ..errors import LoopwrightError
    from ..run.best import choose

    if any((path / "kept").iterdir()):
        # models by a metric of unknown mode: the run is complete all the same
        with suppress(LoopwrightError):
            return choose(path)
    return None


def _places(path: Path, kept: CheckpointInfo | None) -> list[str]:
    from ..run.directory import shown

    lines = [] if kept is None else [f"Best model: {shown(kept.path)}"]
    run, folder = (shlex.quote(str(shown(place)) or ".") for place in (path, path.parent))
    return [*lines, f"To inspect it: loopwright show {run}, or loopwright ui {folder}"]

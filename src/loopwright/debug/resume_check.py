"""Find state that is not saved: compare an uninterrupted run with one that is saved and loaded into
new objects."""

from __future__ import annotations

import inspect
import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..callback import Callback
from ..checkpoint import Difference, snapshot
from ..checkpoint.compare import compare_trees
from ..data.random import all_preserved, set_rng_state
from ..errors import ConfigurationError, check_number
from ..text import counted
from ..trainer import Trainer
from ..training.state import capture, save_trainer
from .unsaved_state import unsaved_state

MOST_LINES = 8

logger = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """The differences between an uninterrupted run and the same run resumed in its middle; `str`
    adds advice.

    Args:
        num_updates: The number of updates before and after the interruption.
        irreproducible: Differences between two runs before anything was loaded.
        unsaved: Attributes and random generators that differ right after loading.
        differing: State that differs at the end.
    """

    num_updates: int
    irreproducible: tuple[Difference, ...] = ()
    unsaved: tuple[Difference, ...] = ()
    differing: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.irreproducible or self.unsaved or self.differing)

    def __str__(self) -> str:
        updates = counted(self.num_updates, "update")
        if self.ok:
            return f"Resuming after {updates} is exact: nothing differs {updates} later."
        if self.irreproducible:
            lines = [
                "The run is not reproducible: two runs from the same start differ before anything "
                "is saved.",
                *_lines(self.irreproducible, "first run / second run"),
                f"  {_IRREPRODUCIBLE}",
            ]
            return "\n".join(lines)
        lines = [f"Resuming after {updates} is not exact."]
        if self.unsaved:
            lines += [
                "Not saved, so it differs after loading:",
                *_lines(self.unsaved, "saved run / loaded run"),
            ]
            parts = dict.fromkeys(found.path.partition("/")[0] for found in self.unsaved)
            lines += [f"  {_ADVICE[part]}" for part in parts]
        if self.differing:
            lines += [
                f"Different {updates} later:",
                *_lines(self.differing, "in one piece / resumed"),
            ]
            if not self.unsaved:
                lines.append(f"  {_HIDDEN}")
        return "\n".join(lines)


def check_resume(
    build: Callable[[], Trainer],
    data: Any,
    eval_data: Any = None,
    *,
    num_updates: int = 2,
    batch_size: int | None = None,
    ignore: Sequence[str] = (),
) -> ResumeReport:
    """Train `2 * num_updates` updates without and with a save and load in the middle, and compare.

    Everything is written to a temporary directory; global random generators are restored
    afterwards.

    Args:
        build: A function that returns a new trainer, with new models, optimizers and callbacks, at
            each call.
        data: The training data, which is copied for each run, or a function without arguments that
            returns it.
        eval_data: The evaluation data, likewise.
        num_updates: The number of updates before the save, and after it.
        batch_size: Samples per batch, as for `Trainer.train`.
        ignore: Patterns of paths that may differ, such as `callbacks.Timer.*`.

    Returns:
        A report: `report.ok`, and `print(report)` for the differences by name.

    >>> import torch
    >>> from loopwright import Trainer
    >>> from loopwright.debug import check_resume
    >>> def build():
    ...     model = torch.nn.Linear(2, 1)
    ...     return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss())
    >>> print(check_resume(build, (torch.ones(8, 2), torch.ones(8, 1)), batch_size=2, num_updates=1))
    Resuming after 1 update is exact: nothing differs 1 update later.
    """
    check_number("check_resume(num_updates", num_updates, least=1)
    with (
        all_preserved() as start,
        tempfile.TemporaryDirectory(prefix="loopwright-resume-") as folder,
    ):
        checkpoint = Path(folder) / "checkpoint"

        def run(name: str, *, is_saved: bool = False, is_resumed: bool = False) -> _Probe:
            set_rng_state(start)
            own_data = _fresh(data)
            own_eval_data = _fresh(eval_data)
            if is_resumed:  # a new process may have other states of its generators
                torch.rand(7)
                np.random.rand(7)
                random.random()
            trainer = build()
            if not isinstance(trainer, Trainer):
                raise ConfigurationError(
                    "build-returns-trainer",
                    f"build() returned a {type(trainer).__name__}: return a loopwright.Trainer.",
                )
            trainer.run.progress_style = "silent"
            trainer.run_dir = Path(folder) / name if trainer.run_dir is not None else None
            probe = _Probe(own_data, num_updates, checkpoint if is_saved else None)
            trainer.callbacks.append(probe)
            trainer.run.callbacks.append(probe)
            with _without_warnings() if is_resumed else nullcontext():
                trainer.train(
                    own_data,
                    eval_data=own_eval_data,
                    num_updates=2 * num_updates,  # the same for all: schedules depend on it
                    batch_size=batch_size,
                    resume=checkpoint if is_resumed else False,
                )
            return probe

        straight = run("straight")
        saved = run("saved", is_saved=True)
        resumed = run("resumed", is_resumed=True)

    def differences(first: Any, second: Any) -> tuple[Difference, ...]:
        return tuple(
            found
            for found in compare_trees(first, second)
            if not any(fnmatchcase(found.path.replace("/", "."), pattern) for pattern in ignore)
        )

    if irreproducible := differences(straight.middle, saved.middle):
        return ResumeReport(num_updates, irreproducible)
    differing = compare_trees(straight.end, resumed.end)
    at_end = {found.path for found in compare_trees(straight.unsaved_end, resumed.unsaved_end)}
    unsaved = differences(saved.unsaved_middle, resumed.unsaved_middle)
    # the rest is computed again
    unsaved = tuple(found for found in unsaved if differing or found.path in at_end)
    return ResumeReport(num_updates, (), unsaved, differences(straight.end, resumed.end))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide what the log says of a resumed run in a new directory: it lacks metrics, and repeats
    other warnings."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Probe(Callback):
    """Records the state of a run in its middle and at its end: the saved state, and the unsaved
    state in attributes."""

    precedence = 2  # that of checkpoints: after all other callbacks

    def __init__(self, data: Any, num_updates: int, save_to: Path | None) -> None:
        self.middle: Any = None
        self.unsaved_middle: Any = None
        self.end: Any = None
        self.unsaved_end: Any = None
        self._data = data
        self._num_updates = num_updates
        self._save_to = save_to

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.progress.update == self._num_updates:
            self.middle, self.unsaved_middle = self._states(trainer)

    def on_update_end(self, trainer: Trainer) -> None:
        self.on_train_start(trainer)
        if trainer.progress.update == self._num_updates and self._save_to is not None:
            save_trainer(trainer.run, self._save_to)
            trainer.stop("saved")

    def on_loop_end(self, trainer: Trainer) -> None:
        self.end, self.unsaved_end = self._states(trainer)

    def _states(self, trainer: Trainer) -> tuple[Any, Any]:
        state = snapshot(capture(trainer.run))
        state["callbacks"].pop(_Probe.__name__, None)
        return state, unsaved_state(trainer, self._data)


def _fresh(data: Any) -> Any:
    if inspect.isroutine(data) or isinstance(data, partial):
        return data()
    try:
        return deepcopy(data)
    except TypeError as error:
        raise ConfigurationError(
            "data-not-copied",
            f"The data ({type(data).__name__}) cannot be copied ({error}): pass a function that "
            "returns it.",
        ) from error


def _lines(differences: Sequence[Difference], sides: str) -> list[str]:
    lines = [
        f"  - {found.path.replace('/', '.')}: {found.what}" for found in differences[:MOST_LINES]
    ]
    lines[0] += f"   ({sides})"
    more = len(differences) - len(lines)
    return [*lines, f"  - and {more} more"] if more > 0 else lines


_IRREPRODUCIBLE = (
    "-> Something uses random generators that are not seeded, or depends on the time or on a file "
    "that changes. Pass `seed=` to the trainer, and draw from torch, numpy or random's global "
    "generators."
)
_HIDDEN = (
    "-> Something that influences training is stored where this check does not look: a global "
    "variable, a closure, a random generator of a library. Keep it in a callback with "
    "`state_dict`, or make it a buffer of a model."
)
_ADVICE = {
    "data": "-> data: draw from torch, numpy or random's global generators, which are seeded for "
    "every sample; or give an iterable data set `state_dict` and `load_state_dict`.",
    "callbacks": "-> callbacks: return it from `state_dict` and restore it in `load_state_dict`.",
    "models": "-> models: make it a buffer, `register_buffer(name, tensor)`, without "
    "persistent=False.",
    "trainer": "-> trainer: return it from a `state_dict` of your class and restore it in "
    "`load_state_dict`, or make it a buffer of a model; `trainer.progress` has counters "
    "that are saved.",
}

"""The record of a run in a directory, which `loopwright runs`, `show` and `ui` read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ....callbacks.recorder import RunRecorder
from ....checkpoint.manifest import local_path
from ....training.train_call import emit_exception, finish
from ..saving import OWN
from .events import TrainerCallback

if TYPE_CHECKING:
    from ..core import Core
    from ..tracking import RunHistory
    from ..trainer import Trainer


class RecordRunCallback(TrainerCallback):
    """Records training runs in `run_dir`: metrics of steps and epochs, events, logged images, and
    how they ended.

    Nothing of it is needed to resume a run; `SaveTrainingStateCallback` writes that. A run that is
    resumed with `train(resume_from=...)` is one record with what it continues. Where the directory
    holds another run, the first free of `run_dir-2`, `run_dir-3` and so on is taken.
    """

    run_dir: Path = Path("runs/lifecycle")  # for subclasses that do not call `super().__init__()`

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = local_path(run_dir, "run_dir")


class EpochMetrics:
    """The numbers that a run history was given in each epoch; `counts` are those of its values when
    it began."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = counts

    def take(self, history: RunHistory) -> dict[str, float]:
        """Return the latest values of the metrics that were recorded since the last call."""
        before = self.counts
        self.counts = _lengths(history)
        new = [name for name, count in self.counts.items() if count != before.get(name, 0)]
        values = {name: history.get_latest_metric(name) for name in new}
        return {name: float(value) for name, value in values.items() if _is_number(value)}


def _lengths(history: RunHistory) -> dict[str, int]:
    return {name: len(list(history.get_metric_values(name))) for name in history.get_metric_names()}


def _begun_with(history: RunHistory, resumed: Mapping[str, Any] | None) -> Mapping[str, int]:
    """The lengths of a history when the epoch under way began; a resumed run may have values of
    this epoch already."""
    lengths = _lengths(history)
    if resumed is None:
        return lengths
    if (counts := resumed[OWN].get("counts")) is not None:
        return dict(counts)
    # the state is of a run that was not recorded, or of an earlier version
    ended = history.current_epoch - 1
    return {name: min(length, ended) for name, length in lengths.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (
        isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    )


@contextmanager
def recorded(trainer: Trainer) -> Iterator[None]:
    """Record the training run in this block, if a callback or the environment says so."""
    core = trainer._core
    _use_callback(trainer, core)
    if any(isinstance(callback, RunRecorder) for callback in core.run.callbacks):
        core.describe()
        core.epoch_metrics = EpochMetrics(_begun_with(trainer.run_history, core.waiting_state))
    core.run.emit("on_train_start")
    core.run.media.begin(core.run)
    try:
        yield
    except BaseException as error:
        emit_exception(core.run, error)
        raise
    finish(core.run)


def _use_callback(trainer: Trainer, core: Core) -> None:
    found = [c for c in trainer.callback_handler.callbacks if isinstance(c, RecordRunCallback)]
    if found and core.runtime.is_main:
        others = [
            callback for callback in core.run.callbacks if not isinstance(callback, RunRecorder)
        ]
        core.run.bind(
            [*others, RunRecorder("warn", directory=found[0].run_dir, existing="continue")]
        )

"""Metrics that callbacks and schedules watch, checked against what a run will measure before its first step."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch

from .data.seeding import preserved_rng
from .errors import ConfigurationError
from .meter import Meter
from .step import StepResult

if TYPE_CHECKING:
    from .trainer import Trainer


def check_required_metrics(trainer: Trainer) -> None:
    """Refuse a run in which somebody watches a metric that nobody measures."""
    wanted = {
        name: type(callback).__name__ for callback in trainer.active_callbacks for name in callback.required_metrics()
    }
    wanted |= {s.metric: "Schedule" for s in trainer.schedules.values() if s.watches and s.metric is not None}
    if not wanted:
        return
    known = _measured(trainer)
    for callback in trainer.active_callbacks:
        known |= callback.metric_names(known)
    for name, watcher in wanted.items():
        if name not in known and (name.startswith("eval_") or not _has_own_train_step(trainer)):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            needs_data = name.startswith("eval_") and trainer.eval_stream is None
            if needs_data:
                hint = " Pass `eval_data=` to have an evaluation."
            raise ConfigurationError(
                f"{watcher} watches {name!r}, which this run will not measure; there will be: "
                f"{', '.join(sorted(known))}.{hint}"
            )


def _has_own_train_step(trainer: Trainer) -> bool:
    """Whether the names of the training metrics are only known once a step was taken."""
    from .trainer import Trainer

    return type(trainer).train_step is not Trainer.train_step


def _measured(trainer: Trainer) -> set[str]:
    """Names of the metrics of an epoch: the loss, and what `eval_step` gives for one batch."""
    known = {"loss"}
    stream = trainer.eval_stream
    if stream is None:
        return known
    meter = Meter()
    with (
        trainer.phase(meter),
        trainer.eval_mode(),
        torch.no_grad(),
        preserved_rng(),
        trainer.runtime.autocast,
    ):
        stream.begin(0)
        for batch, size in stream.take(1):
            trainer.window.size = size
            meter.add(StepResult.of(trainer.eval_step(trainer.prepare_batch(batch)), size))
    names = meter.compute()
    return known | {f"eval_{name}" for name in names} | (set(names) - {"loss"})

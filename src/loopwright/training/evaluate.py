"""Evaluation and prediction: batches without gradients; modes and random generators are restored
afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data.stream import may_be_left
from ..data.workers import workers_explained
from ..errors import ConfigurationError, DataError, WaitInterrupted
from ..metrics.meter import Meter
from ..metrics.result import StepResult

if TYPE_CHECKING:
    from ..data.stream import Stream
    from .run import TrainingRun

FLUSH_STEPS = 512
LOG_SECONDS = 0.25
MEASURING = ("on_eval_step_end", "on_eval_end")  # events in which metrics can be logged


def evaluate(run: TrainingRun, stream: Stream) -> dict[str, float]:
    """Return averages over all samples of the stream. Modes and random generators are restored
    afterwards.

    A signal to a training run ends it at the next batch, or while it waits for one, without a
    result.
    """
    meter = Meter(logs_once=True)
    with measuring(run, meter):
        run.emit("on_eval_start", stream)
        run.program._adopt_replaced()
        start = stream.state_dict() if stream.spans_epochs else None
        stream.begin(0)
        stream.leave_when(run.stopping.wait)
        try:
            with workers_explained():
                steps = _measure(run, stream, meter)
        except WaitInterrupted:
            steps = 0
        if steps == 0 and not run.is_interrupted:
            raise DataError(
                "empty-evaluation-data",
                "The evaluation data is empty: pass a data set or loader with at least one batch.",
            )
        if not run.is_interrupted:
            run.runtime.reshard()
            run.emit("on_eval_end", stream)
        measured: dict[str, float] = {}
        if not run.is_interrupted:
            run.metrics.directions.losses |= meter.losses
            measured = meter.compute(run.runtime.sum_table, gather=run.runtime.gather_samples)
            if not measured:
                raise _nothing_measured(run)
            run.note("evaluation", "", **measured)
        elif start is not None:  # the resumed run repeats the evaluation
            stream.load_state_dict(start)
    run.emit("on_eval_log", stream, steps)
    return measured


@may_be_left
def _measure(run: TrainingRun, stream: Stream, meter: Meter) -> int:
    """Measure the batches of an evaluation up to its end or a signal; return how many there
    were."""
    step_ends = run.hooks["on_eval_step_end"]
    autocast = run.runtime.autocast
    steps = 0
    logged = monotonic()
    feed = run.program._open_feed(stream)
    prepare_batch = run.program.prepare_batch if feed is None else feed.get
    for steps, (batch, size, total) in enumerate(stream, start=1):
        if run.is_interrupted:
            break
        run.window.size = size
        run.window.total = total
        batch = prepare_batch(batch)
        if feed is not None:
            feed.start(stream.upcoming())
        if size == 0 and total is not None:  # this process has no sample of the batch
            run.program._eval_without_samples(batch)
            continue
        with autocast:
            result = StepResult.of(run.program.eval_step(batch), size)
        if (
            steps == 1
            and result.is_empty
            and meter.is_empty
            and not any(run.hooks[name] for name in MEASURING)
        ):
            raise _nothing_measured(run)
        meter.add(result)
        for hook in step_ends:
            hook(batch, result)
        if meter.num_pending >= FLUSH_STEPS:
            meter.flush()
        if monotonic() - logged > LOG_SECONDS:
            logged = monotonic()
            run.emit("on_eval_log", stream, steps)
    return steps


def _nothing_measured(run: TrainingRun) -> ConfigurationError:
    return ConfigurationError(
        "evaluation-without-metrics",
        f"The evaluation measured nothing: `{run.message_names.eval_step}` returned no loss and no "
        "metrics, and none were logged. Return the loss, or a dict of named values such as "
        "{'loss': loss, 'accuracy': accuracy}.",
    )


@contextmanager
def measuring(run: TrainingRun, meter: Meter) -> Iterator[None]:
    """Log to a meter, in eval mode and without gradients; afterwards modes, generators and clock
    are as before."""
    with (
        run.phase(meter),
        run.program._eval_mode(),
        torch.no_grad(),
        run.generators.apart(run.rank_seed),
        _timed(run),
    ):
        yield


@contextmanager
def _timed(run: TrainingRun) -> Iterator[None]:
    """Add the seconds of an evaluation to `eval_seconds`, which training time excludes; a nested
    one counts once."""
    began = monotonic()
    before = run.metrics.eval_seconds
    try:
        yield
    finally:
        run.metrics.eval_seconds = before + monotonic() - began


def eval_without_samples(run: TrainingRun, batch: Any) -> None:
    """Run an evaluation step for its collectives only: this process has no sample, and the result
    is discarded."""
    with measuring_nothing(run.components.modules), run.media.muted(), run.runtime.autocast:
        run.program.eval_step(batch)


@contextmanager
def measuring_nothing(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Leave the metrics among these modules as they are, although steps in this block add to
    them."""
    from ..metrics.metric_objects import load_metric_states, metric_states

    measured = deepcopy(metric_states(modules))
    yield
    load_metric_states(modules, [measured])


def predict(run: TrainingRun, stream: Stream) -> list[Any]:
    """Return the model's outputs batch by batch, gathered from all processes."""
    outputs: list[tuple[Any, ...]] = []
    with (
        run.program._eval_mode(),
        torch.no_grad(),
        run.generators.apart(run.rank_seed),
        workers_explained(),
    ):
        stream.begin(0)
        for batch, size, total in stream:
            if size == 0 and total is not None and not run.runtime.forwards_together:
                outputs.append(())
                continue
            batch = run.program.prepare_batch(batch)
            with run.runtime.autocast:
                output = run.program.predict_step(batch)
            outputs.append((output,) if size or total is None else ())
    return run.runtime.gather_parts(outputs)

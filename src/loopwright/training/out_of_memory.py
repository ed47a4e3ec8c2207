"""When memory runs out: repeat the steps of a window in micro-batches, which give the same
gradients."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigurationError, DataError
from ..metrics.result import StepResult
from ..trees import leaves, map_leaves
from .supervised import describe
from .update import OptimizerUpdate

if TYPE_CHECKING:
    from ..data.open import Batch
    from .run import TrainingRun

ARRAYS = (Tensor, np.ndarray)


def redo_window(
    run: TrainingRun, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError
) -> StepResult:
    """Repeat the window's steps up to this one, in micro-batches half as large until they fit; the
    result of the last.

    The earlier steps were counted and reported already; only their gradients are computed again.
    """
    largest = max(batch.size for batch in batches)
    while True:
        if (obstacle := _obstacle(run, batches, position, error)) is not None:
            error.add_note(f"Micro-batches cannot help: {obstacle}.")
            raise error
        traceback.clear_frames(error.__traceback__)  # they hold tensors, and memory is needed
        run.updates.check()
        run.updates.reset()
        run.media.renumber()
        run.num_micro_batches *= 2
        try:
            result = _redo(run, batches, position)
            break
        except torch.OutOfMemoryError as again:
            error = again
    number = run.num_micro_batches
    run.note("micro_batches", f"in up to {number} micro-batches", number=number)
    run.say(
        f"Out of memory in update {run.progress.update + 1}: each batch is now split into up to "
        f"{number} micro-batches (of {-(-largest // number)} instead of {largest} samples). The "
        "gradients stay the same."
    )
    return result


def _obstacle(
    run: TrainingRun, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError
) -> str | None:
    """Why the window cannot be repeated in smaller micro-batches, and what to do; None if it can."""
    less = f"use smaller batches (with `{run.message_names.accumulate}=` for the same effect)"
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    if run.window.has_stepped or OptimizerUpdate.finish.__code__ in frames:
        return f"the optimizer step had already begun; {less}"
    if any(batch.total is not None for batch in batches):
        return f"one of several processes cannot split its batch on its own; {less}"
    if run.num_micro_batches >= max(batch.size for batch in batches):
        return (
            "memory ran out with a single sample at a time; use a smaller model, shorter inputs, "
            "`precision='bf16'` or activation checkpointing (torch.utils.checkpoint)"
        )
    failed = batches[position - 1]
    if not _has_rows(value := run.program.prepare_batch(failed.value), failed.size):
        return f"{_no_rows(value, failed.size)}; {less}"
    return None


def _redo(run: TrainingRun, batches: Sequence[Batch], position: int) -> StepResult:
    window = run.window
    result = StepResult()
    total = sum(batch.size for batch in batches)
    for number, batch in enumerate(batches[:position], start=1):
        window.divisor = total / batch.size
        window.size = batch.size
        window.is_last = number == len(batches)
        with run.runtime.autocast, run.media.muted() if number < position else nullcontext():
            result = step_in_micro_batches(run, run.program.prepare_batch(batch.value))
    return result


def step_in_micro_batches(run: TrainingRun, batch: Any) -> StepResult:
    """Take one step of the window in `run.num_micro_batches` micro-batches, each weighted by its
    size."""
    window = run.window
    size = window.size
    divisor = window.divisor
    is_last = window.is_last
    micro_batches = split(batch, size, run.num_micro_batches)
    results = []
    for number, (micro_batch, length) in enumerate(micro_batches, start=1):
        window.size = length
        window.divisor = divisor * (size / length)
        window.is_last = is_last and number == len(micro_batches)
        calls = run.updates.calls
        result = StepResult.of(run.program.train_step(micro_batch), length)
        calls = run.updates.calls - calls
        if calls != 1:
            raise ConfigurationError(
                "several-updates-in-micro-batch",
                "Memory ran out, and the batch cannot be split into micro-batches: "
                f"`{run.message_names.step}` called `{run.message_names.update}` {calls} times, so "
                "micro-batches would give different gradients. Use smaller batches and "
                f"`{run.message_names.accumulate}=`.",
            )
        results.append(_without_graph(result))
    window.size = size
    window.divisor = divisor
    window.is_last = is_last
    return _merge(results)


def split(batch: Any, size: int, number: int) -> list[tuple[Any, int]]:
    """Split a batch of `size` samples into at most `number` micro-batches of about equal size; each
    with its size."""
    number = min(number, size)
    if number <= 1:
        return [(batch, size)]
    if not _has_rows(batch, size):
        raise DataError(
            "unsplittable-batch",
            f"Memory ran out before, and now {_no_rows(batch, size)}: use smaller batches (with "
            "`accumulate=` for the same effect).",
        )
    bounds = [size * index // number for index in range(number + 1)]
    return [
        (_cut(batch, size, start, stop), stop - start) for start, stop in itertools.pairwise(bounds)
    ]


def _no_rows(batch: Any, size: int) -> str:
    return (
        f"the batch cannot be split: it is {describe(batch)}, where every tensor and array needs "
        f"one row per sample ({size} samples)"
    )


def _has_rows(batch: Any, size: int) -> bool:
    """Whether every tensor has one row per sample; numbers and texts may be there besides."""
    values = leaves(batch)
    lengths = {value.shape[0] for value in values if isinstance(value, ARRAYS) and value.ndim}
    others = (value for value in values if not isinstance(value, ARRAYS))
    return lengths == {size} and all(
        isinstance(v, int | float | str | bytes | None) for v in others
    )


def _cut(batch: Any, size: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of tensors, and of lists of texts or numbers with one per sample."""

    def has_rows(value: Any) -> bool:
        if isinstance(value, ARRAYS):
            return value.ndim > 0
        return (
            isinstance(value, list | tuple)
            and len(value) == size
            and not any(isinstance(item, (*ARRAYS, dict, list, tuple)) for item in value)
        )

    return map_leaves(
        lambda value: value[start:stop] if has_rows(value) else value, batch, is_leaf=has_rows
    )


def _without_graph(result: StepResult) -> StepResult:
    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) else value

    return replace(
        result,
        loss=detached(result.loss),
        metrics={name: detached(value) for name, value in result.metrics.items()},
        outputs=map_leaves(detached, result.outputs),
    )


def _merge(results: Sequence[StepResult]) -> StepResult:
    """Merge the results of micro-batches into that of one step: sums of sums, means weighted by
    size, and outputs joined by rows."""
    sizes = [result.size or 0 for result in results]
    total = sum(sizes)

    def mean(*values: Any) -> Any:
        # metrics that keep their own state are one object, which has seen all micro-batches
        if not all(isinstance(value, (int, float, Tensor)) for value in values):
            return values[-1]
        return sum(value * (size / total) for value, size in zip(values, sizes, strict=True))

    def join(*values: Any) -> Any:
        is_of_rows = isinstance(values[0], Tensor) and values[0].ndim > 0
        return torch.cat(values) if is_of_rows else mean(*values)

    losses = [result.loss for result in results]
    counts: list[Any] = [result.count for result in results]
    is_sum = all(count is not None for count in counts)
    return StepResult(
        sum(losses) if is_sum else mean(*losses),  # type: ignore[arg-type]
        total,
        {name: mean(*[r.metrics.get(name) for r in results]) for name in results[0].metrics},
        sum(counts) if is_sum else None,
        map_leaves(join, *[result.outputs for result in results]),
        results[0].losses,
    )

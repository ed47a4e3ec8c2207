"""When memory runs out: repeat the steps of a window in micro-batches, which give the same
gradients."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate
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

CONTAINERS = (Tensor, np.ndarray, Mapping, list, tuple)


def redo_window(
    run: TrainingRun, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError
) -> StepResult:
    """Repeat the window's steps up to this one, in micro-batches half as large until they fit; the
    result of the last.

    The earlier steps were counted and reported already; only their gradients are computed again.
    Where micro-batches would not help or not be equivalent, the error is raised again, with what to
    do.
    """
    while True:
        if (obstacle := _obstacle(run, batches, position, error)) is not None:
            error.add_note(obstacle)
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
    largest = max(batch.size for batch in batches)
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
    less = f"Use smaller batches (with `{run.message_names.accumulate}=` for the same effect)."
    if any(batch.total is not None for batch in batches):
        return (
            "With several processes, one of them cannot split its batch into micro-batches "
            f"on its own. {less}"
        )
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    if run.window.has_stepped or OptimizerUpdate.finish.__code__ in frames:
        return (
            "The optimizer step had already begun, so this step cannot be repeated in "
            f"micro-batches. {less}"
        )
    if run.num_micro_batches >= max(batch.size for batch in batches):
        return (
            "Memory ran out with a single sample at a time, so smaller micro-batches do not help: "
            "use a smaller model or shorter inputs, `precision='bf16'`, or activation "
            "checkpointing (torch.utils.checkpoint)."
        )
    failed = batches[position - 1]
    reason = split_obstacle(run.program.prepare_batch(failed.value), failed.size)
    if reason is not None:
        return f"The batch cannot be split into micro-batches: {reason}. {less}"
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
        calls = -run.updates.calls
        result = StepResult.of(run.program.train_step(micro_batch), length)
        calls += run.updates.calls
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
    if (reason := split_obstacle(batch, size)) is not None:
        raise DataError(
            "unsplittable-batch",
            "A batch must be split into micro-batches, because memory ran out before, but it "
            f"cannot be split: {reason}. Use smaller batches (with `accumulate=` for the same "
            "effect).",
        )
    lengths = [size // number + (index < size % number) for index in range(number)]
    ends = list(accumulate(lengths))
    return [(_cut(batch, size, end - n, end), n) for end, n in zip(ends, lengths, strict=True)]


def split_obstacle(batch: Any, size: int) -> str | None:
    """The reason why a batch cannot be split by samples, or None: every tensor in it needs one row
    per sample."""
    arrays = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim]
    if not arrays:
        return f"{describe(batch)} holds no tensor"
    if any(array.shape[0] != size for array in arrays):
        return (
            f"it is {describe(batch)}, which does not have one row per sample ({size} "
            "samples) in every tensor"
        )
    for leaf in leaves(batch):
        if not isinstance(leaf, Tensor | np.ndarray | int | float | str | bytes | None):
            return f"it holds a {type(leaf).__name__}"
    return None


def _cut(batch: Any, size: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of everything that has rows; containers keep their type."""

    def has_rows(value: Any) -> bool:
        if isinstance(value, Tensor | np.ndarray):
            return value.ndim > 0
        # texts, names of files: one for each sample
        return (
            isinstance(value, list | tuple)
            and len(value) == size
            and not any(isinstance(item, CONTAINERS) for item in value)
        )

    return map_leaves(
        lambda value: value[start:stop] if has_rows(value) else value, batch, is_leaf=has_rows
    )


def _without_graph(result: StepResult) -> StepResult:
    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) else value

    metrics = {name: detached(value) for name, value in result.metrics.items()}
    outputs = map_leaves(detached, result.outputs)
    loss = detached(result.loss)
    return StepResult(loss, result.size, metrics, result.count, outputs, result.losses)


def _merge(results: Sequence[StepResult]) -> StepResult:
    """Merge the results of micro-batches into that of one step: sums of sums, means weighted by
    size, and outputs joined by rows."""
    if len(results) == 1:
        return results[0]
    sizes = [result.size or 0 for result in results]
    losses = [result.loss for result in results]
    counts = [result.count for result in results]
    loss: Any = None
    count: Any = None
    if all(value is not None for value in counts):
        loss = sum(losses)
        count = sum(counts)
    elif all(value is not None for value in losses):
        loss = _mean(losses, sizes)
    metrics = {
        name: _mean([r.metrics.get(name) for r in results], sizes) for name in results[0].metrics
    }
    outputs = join([result.outputs for result in results], sizes)
    return StepResult(loss, sum(sizes), metrics, count, outputs, results[0].losses)


def join(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join the outputs of micro-batches to those of the batch: rows concatenated, numbers averaged;
    anything else is a list."""

    def join_values(*values: Any) -> Any:
        if not isinstance(values[0], Tensor):
            return None if values[0] is None else list(values)
        return torch.cat(values) if values[0].ndim else _mean(values, sizes)

    return map_leaves(join_values, *parts)


def _mean(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The mean over samples; metrics that keep their own state are one object, which has seen all
    micro-batches."""
    if not all(isinstance(value, (int, float, Tensor)) for value in values):
        return values[-1]
    total = sum(sizes)
    return sum(value * (size / total) for value, size in zip(values, sizes, strict=True))

"""When memory runs out: the steps of a window again, in smaller pieces that give the same gradients."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigurationError, DataError
from .result import StepResult
from .supervised import describe
from .update import OptimizerUpdate

if TYPE_CHECKING:
    from ..data.open import Batch
    from ..trainer import Trainer


def split(batch: Any, size: int, num_pieces: int) -> list[tuple[Any, int]]:
    """The batch of `size` samples in at most that many pieces, as even as possible, each with its size."""
    num_pieces = min(num_pieces, size)
    if num_pieces <= 1:
        return [(batch, size)]
    if (reason := why_whole(batch, size)) is not None:
        raise DataError(
            f"A batch has to be taken in pieces, since memory ran out before, and cannot be: {reason}. Use smaller "
            "batches (with `accumulate=` for the same effect)."
        )
    lengths = [size // num_pieces + (number < size % num_pieces) for number in range(num_pieces)]
    ends = list(accumulate(lengths))
    return [(_cut(batch, size, end - n, end), n) for end, n in zip(ends, lengths, strict=True)]


def why_whole(batch: Any, size: int) -> str | None:
    """What keeps a batch from being cut by samples, or None: every tensor in it must have one row for each."""
    found = False
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim:
            found = True
            if leaf.shape[0] != size:
                return f"it is {describe(batch)}, where not everything has one row for each of its {size} samples"
        elif not isinstance(leaf, Tensor | np.ndarray | int | float | str | bytes | None):
            return f"it holds a {type(leaf).__name__}"
    return None if found else f"{describe(batch)} holds no tensor"


def join(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Outputs of pieces as those of the whole, without graphs: rows one after another, single numbers averaged.

    What cannot be joined is given as the list of its parts.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return _join_tensors([part.detach() for part in parts], sizes)
    if isinstance(first, Mapping):
        joined = {key: join([part[key] for part in parts], sizes) for key in first}
        return joined if type(first) is dict else cast(Any, type(first))(joined)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join(column, sizes) for column in zip(*parts, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(join(column, sizes) for column in zip(*parts, strict=True))
    return first if len(parts) == 1 or first is None else list(parts)


def _join_tensors(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].ndim:
        return torch.cat(list(parts))
    total = sum(sizes)
    return torch.stack([part * (size / total) for part, size in zip(parts, sizes, strict=True)]).sum()


def _cut(value: Any, size: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of everything that has rows; containers keep their type."""
    if isinstance(value, Tensor | np.ndarray):
        return value[start:stop] if value.ndim else value
    if isinstance(value, Mapping):
        cut = {key: _cut(item, size, start, stop) for key, item in value.items()}
        return cut if type(value) is dict else cast(Any, type(value))(cut)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cut(item, size, start, stop) for item in value))
    if isinstance(value, list | tuple):
        if _is_column(value) and len(value) == size:  # texts, names of files: one for each sample
            return value[start:stop]
        return type(value)(_cut(item, size, start, stop) for item in value)
    return value


def _is_column(value: Sequence[Any]) -> bool:
    return not any(isinstance(item, Tensor | np.ndarray | Mapping | list | tuple) for item in value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def step_function(trainer: Trainer) -> Callable[[Any], Any]:
    """`train_step`, or, once memory has run out, the same in pieces."""
    return trainer.train_step if trainer.num_pieces == 1 else partial(step_in_pieces, trainer)


class SeveralUpdatesError(ConfigurationError):
    """A step that cannot be taken in micro-batches, since it calls `update` more than once."""


def redo_window(trainer: Trainer, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError) -> StepResult:
    """Take the window's steps up to this one again, in pieces half as large until they fit; the result of the last.

    The earlier steps were counted and reported already; only their gradients are computed again.
    """
    while True:
        _check_possible(trainer, batches, position, error)
        traceback.clear_frames(error.__traceback__)  # they hold what memory is needed for
        trainer.optimization.check()
        trainer.optimization.reset()
        trainer.num_pieces *= 2
        try:
            result = _redo(trainer, batches, position)
            break
        except torch.OutOfMemoryError as again:
            error = again
        except SeveralUpdatesError as several:
            if len(trainer.optimization.by_name) == 1:
                raise
            error.add_note(
                "With several optimizers that are not updated together a step in pieces is not the same as the whole. "
                + _smaller_batches(trainer)
            )
            raise error from several
    largest = max(batch.size for batch in batches)
    trainer.say(
        f"Out of memory in update {trainer.progress.update + 1}: steps are now taken in up to {trainer.num_pieces} "
        f"pieces (of {-(-largest // trainer.num_pieces)} instead of {largest} samples), with the same gradients."
    )
    return result


def _redo(trainer: Trainer, batches: Sequence[Batch], position: int) -> StepResult:
    window, result = trainer.window, StepResult()
    total = sum(batch.size for batch in batches)
    for number, batch in enumerate(batches[:position], start=1):
        window.divisor, window.size = total / batch.size, batch.size
        window.is_last = number == len(batches)
        with trainer.runtime.autocast:
            result = step_in_pieces(trainer, trainer.prepare_batch(batch.value))
    return result


def step_in_pieces(trainer: Trainer, batch: Any) -> StepResult:
    """One step of the window, in `trainer.num_pieces` pieces, each weighted by its size."""
    window = trainer.window
    size, divisor, is_last = window.size, window.divisor, window.is_last
    pieces, results = split(batch, size, trainer.num_pieces), []
    for number, (piece, length) in enumerate(pieces, start=1):
        window.size, window.divisor = length, divisor * (size / length)
        window.is_last = is_last and number == len(pieces)
        results.append(_without_graph(_step_once(trainer, piece, length)))
    window.size, window.divisor, window.is_last = size, divisor, is_last
    return merge(results)


def _step_once(trainer: Trainer, piece: Any, length: int) -> StepResult:
    before = trainer.optimization.calls
    result = StepResult.of(trainer.train_step(piece), length)
    calls = trainer.optimization.calls - before
    if calls != 1:
        raise SeveralUpdatesError(
            f"Memory ran out, and the step cannot be taken in pieces: `{trainer.step_name}` called "
            f"`{trainer.update_call}` {calls} times, which for a piece of a batch is not the same as for all of it. "
            f"Use smaller batches and `{trainer.accumulate_name}=`."
        )
    return result


def _without_graph(result: StepResult) -> StepResult:
    loss = result.loss.detach() if isinstance(result.loss, Tensor) else result.loss
    metrics = {name: v.detach() if isinstance(v, Tensor) else v for name, v in result.metrics.items()}
    return replace(result, loss=loss, metrics=metrics, outputs=join([result.outputs], [0]))


def merge(results: Sequence[StepResult]) -> StepResult:
    """What one step over all of the pieces would have given: sums of sums, and means weighted by size."""
    if len(results) == 1:
        return results[0]
    sizes = [result.size or 0 for result in results]
    losses, counts = [result.loss for result in results], [result.count for result in results]
    loss: Any = None
    count: Any = None
    if all(value is not None for value in counts):
        loss, count = sum(losses), sum(counts)
    elif all(value is not None for value in losses):
        loss = _mean(losses, sizes)
    metrics = {name: _mean([r.metrics.get(name) for r in results], sizes) for name in results[0].metrics}
    outputs = join([result.outputs for result in results], sizes)
    return StepResult(loss, sum(sizes), metrics, count, outputs, results[0].losses)


def _mean(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The mean over samples; metrics that keep their own state are one object, which has seen all pieces."""
    if not all(isinstance(value, (int, float, Tensor)) for value in values):
        return values[-1]
    total = sum(sizes)
    return sum(value * (size / total) for value, size in zip(values, sizes, strict=True))


def _check_possible(trainer: Trainer, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError) -> None:
    """Raise the error again, with what to do, where pieces would not help or not be the same."""
    obstacle = _obstacle(trainer, batches, position, error)
    if obstacle is not None:
        error.add_note(obstacle)
        raise error


def _smaller_batches(trainer: Trainer) -> str:
    return f"Use smaller batches (with `{trainer.accumulate_name}=` for the same effect)."


def _obstacle(trainer: Trainer, batches: Sequence[Batch], position: int, error: torch.OutOfMemoryError) -> str | None:
    less = _smaller_batches(trainer)
    if any(batch.total is not None for batch in batches):
        return f"One of several processes cannot take a step in pieces alone. {less}"
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    if trainer.window.is_spent or OptimizerUpdate.finish.__code__ in frames:
        return f"The optimizer step was under way or taken, so this step cannot be taken again in pieces. {less}"
    largest = max(batch.size for batch in batches)
    if trainer.num_pieces >= largest:
        return (
            "Memory ran out with a single sample at a time, so smaller pieces do not help: use a smaller model or "
            "shorter inputs, `precision='bf16'`, or activation checkpointing (torch.utils.checkpoint)."
        )
    failed = batches[position - 1]
    reason = why_whole(trainer.prepare_batch(failed.value), failed.size)
    return None if reason is None else f"The batch cannot be taken in pieces: {reason}. {less}"

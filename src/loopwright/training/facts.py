"""What a run notes of itself when training starts: arguments, the number of parameters, and how far
it is to go."""

from __future__ import annotations

import inspect
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from .components import as_plain

if TYPE_CHECKING:
    from ..callback import Callback
    from ..metrics.progress import Limits, Progress
    from ..run.manifest import RunFacts
    from .run import TrainingRun


def collect_facts(run: TrainingRun) -> RunFacts:
    """Return the entries of the manifest that describe a run whose data is open and whose limits
    are set."""
    compiled = (
        run.compiled.facts()
        if run.compiled is not None and run.compiled.choice is not None
        else None
    )
    return {
        **run.label,
        **({} if compiled is None else {"compiled": compiled}),
        "door": run.program._interface,
        "arguments": describe_arguments(run),
        "num_parameters": run.components.count_parameters(),
        "planned": planned_totals(run),
    }


def describe_arguments(run: TrainingRun) -> dict[str, Any]:
    """Describe the arguments of the trainer that are no part of the fingerprint: they may change in
    a resumed run."""
    flat: dict[str, Any] = {"device": str(run.runtime.device), "num_processes": run.runtime.world}
    if run.program.compile_mode is not None:
        flat["compile"] = run.program.compile_mode
    for callback in run.program.callbacks:
        # those are the interface's own
        if not type(callback).__module__.startswith("loopwright.interfaces."):
            flat |= _describe_callback(f"callbacks.{type(callback).__name__}", callback)
    if run.eval_stream is not None and "batch_size" in (about := run.eval_stream.describe()):
        flat["eval_batch_size"] = about["batch_size"]
    return {key: as_plain(value) for key, value in flat.items()}


def _describe_callback(prefix: str, callback: Callback) -> dict[str, Any]:
    """The class of a callback and its plain arguments, as far as it keeps them under their
    names."""
    flat: dict[str, Any] = {prefix: type(callback).__qualname__}
    for name in inspect.signature(type(callback)).parameters:
        value = getattr(callback, name, ...)
        if isinstance(value, (str, int, float)) or value is None:
            flat[f"{prefix}.{name}"] = value
    return flat


def planned_totals(run: TrainingRun) -> dict[str, Any]:
    """Return the limit that ends training first, as far as that is known, and the totals that it
    amounts to.

    The totals are exact where the length of an epoch is known, except that of steps cut by a limit
    of samples.
    """
    epoch = _Epoch.of(run)
    limits = run.program._planned_limits
    ends = [_end(epoch, run.progress, limits, unit) for unit in ("epochs", "updates", "samples")]
    known = [end for end in ends if end is not None]
    planned: dict[str, Any] = min(known, key=lambda end: end.get("update", 0)) if known else {}
    if limits.seconds is not None:
        planned["seconds"] = limits.seconds
        planned.setdefault("limit", ["seconds", limits.seconds])
    return planned


class _Epoch(NamedTuple):
    """How long an epoch is; None where that is not known."""

    steps: int | None
    samples: int | None
    batch_size: int
    accumulate: int

    @classmethod
    def of(cls, run: TrainingRun) -> _Epoch:
        stream = run.train_stream
        steps, samples = (
            (None, None) if stream is None else (stream.num_batches, stream.num_samples)
        )
        size = None if stream is None else stream.describe().get("batch_size")
        size = size if isinstance(size, int) else ceil((samples or 0) / (steps or 1))
        return cls(steps or None, samples or None, size or 1, run.program.accumulate)

    def updates(self, steps: int) -> int:
        return ceil(steps / self.accumulate)


def _end(epoch: _Epoch, now: Progress, limits: Limits, unit: str) -> dict[str, Any] | None:
    limit = getattr(limits, unit)
    if limit is None:
        return None
    name = unit.removesuffix("s")
    end: dict[str, Any] = {"limit": [name, limit], name: limit}
    # epochs that an earlier run trained are counted, and their steps are not
    if now.epoch and not now.step:
        end["first_epoch"] = now.epoch
    if epoch.steps is None:
        return end
    done = epoch.updates(now.epoch_step)  # of this epoch
    per_epoch = epoch.updates(epoch.steps)
    if unit == "epochs":
        whole = max(limit - now.epoch, 0)
        rest = 0
    elif unit == "updates":
        whole, left = divmod(max(limit - now.update, 0) + done, per_epoch)
        rest = min(left * epoch.accumulate, epoch.steps)
    elif epoch.samples is not None:
        whole, left = divmod(max(limit - now.sample, 0) + now.epoch_sample, epoch.samples)
        rest = ceil(left / epoch.batch_size)
    else:
        return end
    steps = whole * epoch.steps + rest
    end["step"] = max(now.step - now.epoch_step + steps, now.step)
    end["update"] = max(now.update - done + whole * per_epoch + epoch.updates(rest), now.update)
    end["epoch"] = now.epoch + whole + (rest > 0)
    if epoch.samples is not None:
        samples = whole * epoch.samples + min(rest * epoch.batch_size, epoch.samples)
        end["sample"] = max(now.sample - now.epoch_sample + samples, now.sample)
    return end | {name: limit}

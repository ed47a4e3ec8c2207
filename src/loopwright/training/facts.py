"""A run in words: for its manifest, and for the first line of a `train` call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from ..optim.build import CurveSchedule
from ..run.directory import shown
from ..text import age, listed
from ..trees import as_json
from .supervised import loss_text

if TYPE_CHECKING:
    from ..run.manifest import RunFacts
    from .resume import Resumed
    from .run import TrainingRun


def collect_facts(run: TrainingRun) -> RunFacts:
    """Return the entries of the manifest that describe a run whose data is open and whose limits
    are set."""
    facts: RunFacts = {
        **run.files.label,
        "door": run.program._interface,
        "arguments": _describe_arguments(run),
        "num_parameters": run.components.count_parameters(),
        "planned": planned_totals(run),
    }
    if run.compiled is not None and run.compiled.choice is not None:
        facts["compiled"] = run.compiled.facts()
    return facts


def _describe_arguments(run: TrainingRun) -> dict[str, Any]:
    """Describe the arguments of the trainer that are no part of the fingerprint: they may change in
    a resumed run."""
    flat: dict[str, Any] = {"device": str(run.runtime.device), "num_processes": run.runtime.world}
    if run.program.compile_mode is not None:
        flat["compile"] = run.program.compile_mode
    for callback in run.program.callbacks:
        kind = type(callback)
        if kind.__module__.startswith("loopwright.interfaces."):
            continue  # it is the interface's own
        prefix = f"callbacks.{kind.__name__}"
        flat[prefix] = kind.__qualname__
        # plain arguments, as far as it keeps them under their names
        for name in inspect.signature(kind).parameters:
            value = getattr(callback, name, ...)
            if isinstance(value, (str, int, float)) or value is None:
                flat[f"{prefix}.{name}"] = value
    eval_stream = run.data.eval_stream
    if eval_stream is not None and "batch_size" in (about := eval_stream.describe()):
        flat["eval_batch_size"] = about["batch_size"]
    return {key: as_json(value) for key, value in flat.items()}


def planned_totals(run: TrainingRun) -> dict[str, Any]:
    """Return the limit that ends training first, as far as that is known, and the totals that it
    amounts to.

    The totals are exact where the length of an epoch is known, except that of steps cut by a limit
    of samples.
    """
    limits = run.program._planned_limits
    ends = [
        _end(run, unit, limit)
        for unit, limit in (
            ("epoch", limits.epochs),
            ("update", limits.updates),
            ("sample", limits.samples),
        )
        if limit is not None
    ]
    planned: dict[str, Any] = min(ends, key=lambda end: end.get("update", 0)) if ends else {}
    if limits.seconds is not None:
        planned["seconds"] = limits.seconds
        planned.setdefault("limit", ["seconds", limits.seconds])
    return planned


def _end(run: TrainingRun, unit: str, limit: int) -> dict[str, Any]:
    """Where a limit ends a run: the limit itself, and what is counted until then."""
    now = run.progress
    stream = run.data.train_stream
    steps = None if stream is None else stream.num_batches
    samples = None if stream is None else stream.num_samples
    end: dict[str, Any] = {"limit": [unit, limit], unit: limit}
    # epochs that an earlier run trained are counted, and their steps are not
    if now.epoch and not now.step:
        end["first_epoch"] = now.epoch
    if stream is None or not steps or (unit == "sample" and not samples):
        return end
    accumulate = run.program.accumulate
    given = stream.describe().get("batch_size")
    batch_size = given if isinstance(given, int) else ceil((samples or 1) / steps)
    done = ceil(now.epoch_step / accumulate)  # updates of this epoch
    per_epoch = ceil(steps / accumulate)
    # whole epochs, and steps of a last one, from the beginning of this one
    whole = max(limit - now.epoch, 0)
    rest = 0
    if unit == "update":
        whole, left = divmod(max(limit - now.update, 0) + done, per_epoch)
        rest = min(left * accumulate, steps)
    elif unit == "sample" and samples:
        whole, left = divmod(max(limit - now.sample, 0) + now.epoch_sample, samples)
        rest = ceil(left / batch_size)
    end["step"] = max(now.step - now.epoch_step + whole * steps + rest, now.step)
    updates = whole * per_epoch + ceil(rest / accumulate)
    end["update"] = max(now.update - done + updates, now.update)
    end["epoch"] = now.epoch + whole + (rest > 0)
    if samples:
        total = whole * samples + min(rest * batch_size, samples)
        end["sample"] = max(now.sample - now.epoch_sample + total, now.sample)
    return end | {unit: limit}


# The first line of a run


def starting_line(run: TrainingRun, resumed: Resumed | None) -> str:
    """Return the first line of a `train` call: the point that training starts from, the device and
    the model."""
    runtime = run.runtime
    total, trained = run.components.count_parameters().values()
    device = str(runtime.device) + (f" on {runtime.world} processes" if runtime.world > 1 else "")
    size = f"{total:,} parameters" + (f" ({trained:,} trainable)" if trained != total else "")
    facts = ", ".join((device, size, *_schedule_texts(run)))
    loss_fn = getattr(run.program, "loss_fn", None)
    model = run.components.modules.get("model")
    about_loss = loss_text(loss_fn, model, has_own_step=not run.program._has_default_step)
    return f"{_place_text(run, resumed)}: {facts}.{_untrained_text(run)}{about_loss}"


def _place_text(run: TrainingRun, resumed: Resumed | None) -> str:
    place = None if run.files.run_dir is None else shown(run.files.run_dir)
    if resumed is None:
        return run.message_names.no_run_dir if place is None else f"New run in {place}"
    progress = run.progress
    since = age((datetime.now(UTC) - resumed.created).total_seconds())
    at = f"at epoch {progress.epoch + 1}, update {progress.update} (saved {since} ago)"
    if run.files.directory is not None and run.files.directory.checkpoints in resumed.path.parents:
        return f"Resuming {place} {at}"
    return f"Resuming {shown(resumed.path)} {at}" + (
        "" if place is None else f", new run in {place}"
    )


def _schedule_texts(run: TrainingRun) -> Iterator[str]:
    """Yield a text for each scheduler whose interval the program does not name."""
    for schedule in run.components.schedules.values():
        if schedule.every is None and not isinstance(schedule.scheduler, CurveSchedule):
            watched = schedule.metric or ("loss" if run.data.eval_stream is None else "eval_loss")
            what = f" by {watched}" if schedule.watches else ""
            yield f"{type(schedule.scheduler).__name__} stepped once per {schedule.interval}{what}"


def _untrained_text(run: TrainingRun) -> str:
    """Return a line on parameters that require gradients and belong to no optimizer."""
    optimizers = [*run.components.optimizers.values(), *run.program._other_optimizers]
    own = {
        id(param)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    }
    named = (
        (f"{name}.{key}", p)
        for name, m in run.components.modules.items()
        for key, p in m.named_parameters()
    )
    left = [name for name, param in named if param.requires_grad and id(param) not in own]
    if not left or not own:
        return ""
    return (
        f" No optimizer trains {listed(left, 3)}, so they will not change: add them to "
        "an optimizer, or freeze them with requires_grad_(False)."
    )

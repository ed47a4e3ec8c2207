"""A run in words: for its manifest, for the first line of a `train` call, and for a notebook."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from ..optim.build import CurveSchedule
from ..run.directory import shown
from ..text import age, counted, listed
from ..trees import as_json
from .supervised import loss_text

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..callback import Callback
    from ..metrics.progress import Limits, Progress
    from ..run.manifest import RunFacts
    from .resume import Resumed
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
        **run.files.label,
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
    if run.data.eval_stream is not None and "batch_size" in (
        about := run.data.eval_stream.describe()
    ):
        flat["eval_batch_size"] = about["batch_size"]
    return {key: as_json(value) for key, value in flat.items()}


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
        stream = run.data.train_stream
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


# The first line of a run


def starting_line(run: TrainingRun, resumed: Resumed | None) -> str:
    """Return the first line of a `train` call: the point that training starts from, the device and
    the model."""
    facts = [device_text(run), size_text(run), *_schedule_texts(run)]
    return (
        f"{_place_text(run, resumed)}: {', '.join(facts)}.{_untrained_text(run)}{_loss_text(run)}"
    )


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


def device_text(run: TrainingRun) -> str:
    runtime = run.runtime
    return str(runtime.device) + (f" on {runtime.world} processes" if runtime.world > 1 else "")


def size_text(run: TrainingRun) -> str:
    total, trained = run.components.count_parameters().values()
    return f"{total:,} parameters" + (f" ({trained:,} trainable)" if trained != total else "")


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


def _loss_text(run: TrainingRun) -> str:
    num_parts = run.program.accumulate * run.runtime.num_shares
    loss_fn = getattr(run.program, "loss_fn", None)
    model = run.components.modules.get("model")
    return loss_text(loss_fn, model, num_parts, has_own_step=not run.program._has_default_step)


# A notebook


def trainer_html(trainer: object, run: TrainingRun) -> str:
    """Return the table of a trainer's parts, and that of its epochs where there are any."""
    from ..metrics.html import facts_html, history_html

    components = run.components
    progress = run.progress
    facts = {"trainer": type(trainer).__name__}
    if components.models:
        named = [
            _labelled(name, "model", type(model).__name__)
            for name, model in components.models.items()
        ]
        facts["models" if len(named) > 1 else "model"] = f"{', '.join(named)} ({size_text(run)})"
    if components.optimizers:
        facts["optimizer"] = ", ".join(
            _optimizer_text(*item) for item in components.optimizers.items()
        )
    facts["device"] = device_text(run)
    if run.files.run_dir is not None:
        facts["run directory"] = str(run.files.run_dir)
    facts["progress"] = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
    if run.stopping.reason is not None:
        facts["stopped"] = run.stopping.reason
    return facts_html(facts) + (
        history_html(run.history.epochs, run.history.names) if run.history.epochs else ""
    )


def _optimizer_text(name: str, optimizer: Optimizer) -> str:
    rates = dict.fromkeys(
        f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group
    )
    label = _labelled(name, "optimizer", type(optimizer).__name__)
    return f"{label} (lr {', '.join(rates)})" if rates else label


def _labelled(name: str, usual: str, kind: str) -> str:
    return kind if name == usual else f"{name}: {kind}"

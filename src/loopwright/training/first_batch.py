"""What is found out with a first batch before the first step: the metrics of the run, which callbacks
and schedules watch, and the sizes of lazy layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..callback import TrainerHooks, own_hooks
from ..callbacks.interval import Watching
from ..data.containers import map_tensors
from ..data.random import preserved_rng
from ..errors import ConfigurationError, DataError
from ..metrics.best import WatchedMetric, settle_all
from ..metrics.meter import Meter
from ..metrics.result import StepResult
from ..text import listed, near_names
from .supervised import measure_supervised

if TYPE_CHECKING:
    from ..data.open import Batch, Stream
    from ..optim.build import Schedule
    from ..training.run import TrainingRun

EVAL_HOOKS = ("on_eval_start", "on_eval_step_end", "on_eval_end")
TRAIN_HOOKS = (
    "on_epoch_start",
    "on_train_step_start",
    "on_train_step_end",
    "on_update_end",
    "on_train_epoch_end",
)


def check_required_metrics(run: TrainingRun) -> None:
    """Refuse a run that watches a metric which is not measured, or whose mode (min or max) is
    unknown."""
    plateaus = [schedule for schedule in run.components.schedules.values() if schedule.watches]
    wanted: dict[str, str] = {}
    watched: list[WatchedMetric] = []
    for callback in run.callbacks:
        wanted |= dict.fromkeys(callback.required_metrics(), type(callback).__name__)
        watched += callback.watched_metrics()
    for schedule in plateaus:
        if schedule.metric is not None:
            wanted[schedule.metric] = "Schedule"
            if schedule.mode:
                watched.append(WatchedMetric(schedule.metric, schedule.mode, "Schedule"))
    if wanted:
        _check_measured(run, wanted)
    settle_all(watched, run.metrics.directions)
    for schedule in plateaus:
        _check_plateau(run, schedule)


def _check_plateau(run: TrainingRun, schedule: Schedule) -> None:
    """Refuse a scheduler whose mode (min or max) is the opposite of its metric's."""
    own = schedule.scheduler.mode
    metric = schedule.metric or run.program._plateau_metric
    if metric is None or run.metrics.directions.of(metric) in (None, own):
        return
    better, other = ("larger", "max") if own == "min" else ("smaller", "min")
    raise ConfigurationError(
        "plateau-mode",
        f'ReduceLROnPlateau(mode="{own}") watches {metric!r}, for which {better} values are '
        "better, so it would lower the learning rate while the metric improves. Use "
        f'mode="{other}"; or, if its mode is right, pass Schedule(scheduler, metric={metric!r}, '
        f'mode="{own}").',
    )


def _check_measured(run: TrainingRun, wanted: dict[str, str]) -> None:
    eval_stream = run.data.eval_stream
    evaluated = set() if eval_stream is None else measured_on(run, eval_stream)
    after_epochs = {"loss", *(f"eval_{name}" for name in evaluated)}
    by_callbacks = _measured_by_callbacks(run)
    _check_moments(run, after_epochs, _with_promised(by_callbacks, run))
    measured = after_epochs | by_callbacks
    known = _with_promised(measured, run)
    missing = _missing(wanted, known, run)
    if missing:
        in_training = _measured_in_training(run)
        known = _with_promised(measured | in_training, run)
        missing = [
            name
            for name in _missing(wanted, known, run)
            if name.startswith("eval_") or in_training  # metrics of an own step are not known
        ]
    if not missing:
        return
    name = missing[0]
    near = near_names(name, known)
    hint = (
        " A callback of yours that logs it needs a method `metric_names(self, known)` that "
        f"returns {{{name!r}}}."
    )
    if name.startswith("eval_") and eval_stream is None:
        hint = " Pass `eval_data=` to evaluate."
    elif near:
        hint = f" Did you mean {near[0]!r}?{hint}"
    raise ConfigurationError(
        "metric-not-measured",
        f"{wanted[name]} watches {name!r}, which this run will not measure; it will measure: "
        f"{', '.join(sorted(known))}.{hint}",
    )


def _check_moments(run: TrainingRun, after_epochs: set[str], logged: set[str]) -> None:
    """Refuse a callback that looks after updates or samples at a metric that has a value only after
    an epoch."""
    for callback in run.callbacks:
        if not isinstance(callback, Watching) or callback.interval.unit == "epoch":
            continue
        name = callback.metric
        if name in after_epochs and _missing([name], logged, run):
            every = f"{callback.interval.n} {callback.interval.unit}s"
            raise ConfigurationError(
                "metric-of-epochs",
                f"{type(callback).__name__} watches {name!r} every {every}, but this run measures "
                "it only after epochs: use `every_n_epochs=`, or watch a metric that a callback "
                "logs during epochs, such as 'online_loss' of OnlineLoss.",
            )


def _with_promised(known: set[str], run: TrainingRun) -> set[str]:
    """Return the names of all metrics of an epoch, with those that callbacks add."""
    for callback in run.callbacks:
        if not callback.evaluates_again:
            known = known | callback.metric_names(known)
    # of none of the others: an average is not averaged again
    return known.union(*(c.metric_names(known) for c in run.callbacks if c.evaluates_again))


def _missing(wanted: Iterable[str], known: set[str], run: TrainingRun) -> list[str]:
    """Return watched metrics that are unknown, unless the trainer's own hooks may log them."""
    own = set(own_hooks(run.program, TrainerHooks))
    return [
        name
        for name in wanted
        if name not in known
        and own.isdisjoint(EVAL_HOOKS if name.startswith("eval_") else TRAIN_HOOKS)
    ]


def _measured_by_callbacks(run: TrainingRun) -> set[str]:
    """Return the names of metrics of the callbacks' own data, with those that callbacks add to
    every evaluation."""
    found: set[str] = set()
    for callback in run.callbacks:
        streams = callback.eval_streams(run.program._trainer_given_to(callback))
        for prefix, stream in streams.items():
            names = _with_promised({f"eval_{name}" for name in measured_on(run, stream)}, run)
            found |= {f"{prefix}_{n.removeprefix('eval_')}" for n in names if n.startswith("eval_")}
    return found


def measured_on(run: TrainingRun, stream: Stream) -> set[str]:
    """Names of what an evaluation of a stream measures, found out with its first batch."""
    before = stream.state_dict() if stream.spans_epochs else None
    stream.begin(0)
    names = _names(run, stream.take(1), run.program.eval_step)
    if before is not None:  # or the first evaluation would lack this batch
        stream.load_state_dict(before)
    return names


def _measured_in_training(run: TrainingRun) -> set[str]:
    """Return the names of the default `train_step`'s metrics; none for an own step, or if data
    cannot be read twice."""
    if not run.program._has_default_step:
        return set()
    return _names(run, peek(run), partial(measure_supervised, run.program))


def peek(run: TrainingRun) -> list[Batch]:
    """Return the next batch of the training data without using it up; an empty list if data cannot
    be read twice."""
    stream = run.data.train_stream
    progress = run.progress
    if stream is None:
        return []
    try:
        stream.check_resumable()
    except DataError:
        return []
    with preserved_rng():  # an iterable may draw from the generators of training
        before = stream.state_dict() if progress.in_epoch or stream.spans_epochs else None
        if not progress.in_epoch:
            stream.begin(progress.epoch)
        batches = stream.take(1)
        if before is not None:
            stream.load_state_dict(before)
    return batches


def _names(run: TrainingRun, batches: list[Batch], step: Callable[[Any], Any]) -> set[str]:
    meter = Meter()
    with run.phase(meter), preserved_rng():
        for batch in batches:
            meter.add(StepResult.of(_try(run, batch, step), batch.size))
    run.metrics.directions.losses |= meter.losses
    return set(meter.compute())


def _try(run: TrainingRun, batch: Batch, step: Callable[[Any], Any]) -> Any:
    """Compute a step in eval mode, on a copy: it may write into its batch, which may belong to a
    list of the user's."""
    with run.program._eval_mode(), run.media.muted(), torch.no_grad(), run.runtime.autocast:
        run.window.size = batch.size
        return step(run.program.prepare_batch(map_tensors(Tensor.clone, batch.value)))


# Lazy layers (`LazyLinear`, `LazyBatchNorm1d`), whose sizes are not known before the first batch


def uninitialized(modules: Mapping[str, nn.Module]) -> list[str]:
    """Names of the parameters and buffers that have no size yet."""
    tensors = chain.from_iterable(
        chain(module.named_parameters(name), module.named_buffers(name))
        for name, module in modules.items()
    )
    return [name for name, tensor in tensors if is_lazy(tensor)]


def no_size(names: list[str], reason: str) -> ConfigurationError:
    """The error of lazy layers whose sizes are needed."""
    return ConfigurationError(
        "lazy-layers",
        f"{listed(names, 3)} have no size before the first batch (as LazyLinear layers "
        f"do), but {reason}. Call the model once before training, as in `model(torch.zeros(2, "
        "10))`, or give its layers their sizes.",
    )


def materialise(run: TrainingRun) -> None:
    """Give every lazy layer its size before the first step, with a batch that is trained on later.

    Callbacks, and a checkpoint before the first step, need all parameters. A resumed run has them
    already.
    """
    if not (names := uninitialized(run.components.modules)):
        return
    batches = peek(run)
    if not batches:
        raise no_size(names, "a batch of the training data cannot be read without consuming it")
    try:
        _try(run, batches[0], run.program.eval_step)
    except Exception as error:
        raise no_size(
            names, f"`eval_step` failed on the first one ({type(error).__name__}: {error})"
        ) from error
    if names := uninitialized(run.components.modules):
        raise no_size(names, "`eval_step` does not use them")

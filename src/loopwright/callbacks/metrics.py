"""The `metrics=` of a trainer: functions of outputs and targets, and objects that keep their own
state, as torchmetrics' do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..callback import Callback
from ..data.containers import map_tensors
from ..errors import ConfigurationError
from ..text import kind_of

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.result import StepResult

MetricFunction = Callable[[Any, Any], Any]
ACCURACY = "accuracy"
OWN_ACCURACY = (
    "metrics={'accuracy': lambda outputs, targets: (outputs.argmax(1) == targets).float()}"
)
# The value above which an output means "yes", by the loss that it was trained with.
THRESHOLDS: tuple[tuple[Any, float], ...] = (
    (nn.BCEWithLogitsLoss, 0.0),
    (functional.binary_cross_entropy_with_logits, 0.0),
    (nn.BCELoss, 0.5),
    (functional.binary_cross_entropy, 0.5),
)


@runtime_checkable
class UpdatedMetric(Protocol):
    """A metric or collection of torchmetrics, or any other object with these methods."""

    def update(self, *args: Any, **kwargs: Any) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


def build_callbacks(metrics: Any) -> list[Callback]:
    """The callbacks that measure what a trainer was given as `metrics`."""
    functions: dict[str, MetricFunction | str] = {}
    objects: dict[str, UpdatedMetric] = {}
    for name, metric in _named_metrics(metrics).items():
        if _keeps_state(metric):
            objects[name] = metric
        elif metric == ACCURACY or (callable(metric) and not isinstance(metric, type)):
            functions[name] = metric
        else:
            raise ConfigurationError(
                "not-a-metric",
                f"metrics: {name!r} is {metric!r:.60}, which is no metric; give 'accuracy', a "
                "function of (outputs, targets) such as `metrics={'mae': "
                "torch.nn.functional.l1_loss}`, or an object of torchmetrics.",
            )
    callbacks: list[Callback] = [MetricFunctions(functions)] if functions else []
    return [*callbacks, TorchMetrics(objects)] if objects else callbacks


def _named_metrics(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    elif isinstance(metrics, Iterable) and not isinstance(metrics, str | nn.Module):
        named = {}
        for metric in metrics:
            name = _name_of(metric)
            if name in named:
                raise ConfigurationError(
                    "metrics-of-one-name",
                    f"metrics: two are named {name!r}; give a dict of names and metrics.",
                )
            named[name] = metric
    else:
        named = {_name_of(metrics): metrics}
    if "loss" in named:
        raise ConfigurationError(
            "name-of-a-metric", "metrics: 'loss' cannot be the name of a metric; choose another."
        )
    return named


def _name_of(metric: Any) -> str:
    """The name of a metric that is given without one: MulticlassAccuracy is
    `multiclass_accuracy`."""
    if isinstance(metric, str):
        return metric
    if _keeps_state(metric):
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
    return str(getattr(metric, "__name__", type(metric).__name__)).strip("<>")


def _keeps_state(metric: Any) -> TypeGuard[UpdatedMetric]:
    return isinstance(metric, UpdatedMetric) and not isinstance(metric, type)


class MetricFunctions(Callback):
    """Measures functions of (outputs, targets) in every evaluation; their values are averaged over
    the samples.

    Args:
        functions: The functions by the names of their metrics, or "accuracy" for Loopwright's own.

    >>> import torch, loopwright
    >>> x, y = torch.eye(4), torch.arange(4)
    >>> model, loss = torch.nn.Identity(), torch.nn.CrossEntropyLoss()
    >>> trainer = loopwright.Trainer(model, loss_fn=loss, metrics="accuracy", progress="silent")
    >>> trainer.evaluate((x, y))["accuracy"]
    1.0
    """

    def __init__(self, functions: Mapping[str, MetricFunction | str]) -> None:
        self.functions = dict(functions)

    def metric_names(self, known: set[str]) -> set[str]:
        return {f"eval_{name}" for name in self.functions}

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.data.eval_stream is None:
            names = ", ".join(self.functions)
            trainer.run.say(
                f"metrics ({names}) are measured in evaluations, and this run has none: pass "
                "`eval_data=`."
            )

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        targets = _measurable(trainer, batch, result, "metrics")
        trainer.log_step(
            {name: self._measure(name, trainer, result, targets) for name in self.functions}
        )

    def _measure(self, name: str, trainer: Trainer, result: StepResult, targets: Any) -> Any:
        function = self.functions[name]
        if isinstance(function, str):
            return accuracy(result.outputs, targets, trainer.loss_fn)
        value = function(result.outputs, targets)
        if isinstance(value, Tensor) and (
            value.numel() == 1 or tuple(value.shape) == (result.size,)
        ):
            return _exact(value.detach()).mean()
        if isinstance(value, Real):
            return value
        raise ConfigurationError(
            "metric-shape",
            f"The metric {name!r} returned {kind_of(value)} for a batch of {result.size} samples: "
            "return their mean, or one number for each sample.",
        )


def _measurable(trainer: Trainer, batch: Any, result: StepResult, owner: str) -> Any:
    """The targets of a step, which must have returned its outputs."""
    if result.outputs is None:
        raise ConfigurationError(
            "no-outputs-to-measure",
            f"{owner}: there are no outputs to measure, since the step returned only a loss. "
            "Return StepResult(loss, outputs=outputs) from your own `train_step` or `eval_step`.",
        )
    return trainer.split_batch(batch)[1]


def _exact(value: Tensor) -> Tensor:
    """A value whose mean can be taken without loss: in float64, which has whole numbers too, where
    it is needed."""
    is_wide = value.dtype == torch.float64 or not (value.is_floating_point() or value.is_complex())
    return value.double() if is_wide and value.device.type != "mps" else value.float()


def accuracy(outputs: Any, targets: Any, loss_fn: Any = None) -> Tensor:
    """The share of samples that are classified as their targets say.

    Args:
        outputs: A row of scores for each sample, of which the largest counts; or, with a binary
            cross entropy as `loss_fn`, one number for each sample (or for each of its labels).
        targets: The number of the class of each sample; or zeros and ones of the shape of
            `outputs`. A class that the loss ignores, such as -100, counts as wrong.
        loss_fn: The loss that the outputs were trained with.
    """
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        for loss, threshold in THRESHOLDS:
            if (loss_fn is loss or type(loss_fn) is loss) and outputs.shape == targets.shape:
                return ((outputs > threshold) == (targets > 0.5)).float().mean()
        is_class = not targets.is_floating_point() and targets.dtype != torch.bool
        has_scores = outputs.dim() == 2 and outputs.shape[1] > 1
        if has_scores and is_class and targets.shape == outputs.shape[:1]:
            return (outputs.argmax(1) == targets).float().mean()
    dtype = getattr(targets, "dtype", "no tensor")
    raise ConfigurationError(
        "accuracy-of-shapes",
        f"metrics='accuracy' does not know what is right where outputs are {kind_of(outputs)} and "
        f"targets {kind_of(targets)} ({dtype}): give a function, as in {OWN_ACCURACY}.",
    )


class TorchMetrics(Callback):
    """Updates metrics with the outputs and targets of every batch, and adds their values to the
    evaluation or epoch.

    Args:
        metrics: A metric (named by its class: MulticlassAccuracy gives `multiclass_accuracy`), a
            collection, or a dict of names and metrics.
        prepare: `prepare(outputs, targets)` returns the arguments of `update`, where these do not
            fit as they are: one value, a tuple, or a dict of keywords.
        on: "eval", "train" (over the epoch, with the weights as they were at each step) or "both".
        names: Names of values that only `compute` knows, for callbacks that watch them.

    >>> import torch, loopwright
    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> from loopwright.callbacks import TorchMetrics
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.zeros(8).long())
    >>> accuracy = TorchMetrics({"accuracy": MulticlassAccuracy(3)})
    >>> model = torch.nn.Linear(2, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = torch.nn.functional.cross_entropy
    >>> trainer = loopwright.Trainer(model, optimizer, loss, callbacks=[accuracy], progress="silent")
    >>> sorted(trainer.evaluate(data, batch_size=4))
    ['accuracy', 'loss']
    """

    def __init__(
        self,
        metrics: UpdatedMetric | Mapping[str, UpdatedMetric],
        *,
        prepare: Callable[[Any, Any], Any] | None = None,
        on: Literal["eval", "train", "both"] = "eval",
        names: Iterable[str] = (),
    ) -> None:
        if on not in ("eval", "train", "both"):
            raise ConfigurationError(
                "metrics-on", f"TorchMetrics(on={on!r}): use 'eval', 'train' or 'both'."
            )
        named = metrics if isinstance(metrics, Mapping) else {_name_of(metrics): metrics}
        self.names = set(names)
        for name, metric in named.items():
            if not _keeps_state(metric):
                raise ConfigurationError(
                    "not-an-updated-metric",
                    f"TorchMetrics: {name!r} is {kind_of(metric)}; pass a metric with `update`, "
                    "`compute` and `reset`, a collection, or a dict of them.",
                )
            # a collection has names of its own
            self.names |= set(metric.keys()) if isinstance(metric, nn.ModuleDict) else {name}
        # a checkpoint saves metrics that are attributes of a callback
        self.metrics = dict(named)
        self.prepare = prepare
        self.on = on
        self._train = deepcopy(self.metrics) if on == "both" else self.metrics
        self._running: list[dict[str, UpdatedMetric]] = []
        self._has_old_state = False
        ignored: list[str] = []
        if on == "train":
            ignored += ["on_eval_start", "on_eval_step_end", "on_eval_end"]
        if on == "eval":
            ignored += ["on_epoch_start", "on_train_step_end", "on_train_epoch_end"]
        self.ignored_events = ignored

    def metric_names(self, known: set[str]) -> set[str]:
        of_eval = {f"eval_{name}" for name in self.names} if self.on != "train" else set()
        return of_eval | (self.names if self.on != "eval" else set())

    def on_train_start(self, trainer: Trainer) -> None:
        self._running = []
        if self.on != "eval":
            check = trainer.run.metrics.meter.check
            for name, metric in self._train.items():
                if check is not None:
                    check(name, metric)
            _move(self._train, trainer.runtime.device)
        if self._has_old_state and trainer.progress.in_epoch:
            trainer.run.say(
                f"The checkpoint is of an earlier version, whose states of {', '.join(self.names)} "
                "cannot be read: they are measured over the rest of this epoch only."
            )
        self._has_old_state = False

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Note a state of an earlier version: now the run saves the metrics."""
        self._has_old_state = bool(state)

    def on_epoch_start(self, trainer: Trainer) -> None:
        for metric in self._train.values():
            metric.reset()

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if trainer.run.window.size:
            self._update(self._train, trainer, batch, result)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log(self._train)

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        """Reset the metrics; an evaluation inside another one, as of averaged weights, gets
        copies."""
        is_inside = len(trainer.run.metrics.phases) > 1
        metrics = deepcopy(self.metrics) if is_inside else self.metrics
        _move(metrics, trainer.runtime.device)
        for metric in metrics.values():
            metric.reset()
        self._running.append(metrics)

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self._update(self._running[-1], trainer, batch, result)

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        trainer.log(self._running.pop())

    @torch.no_grad()
    def _update(
        self, metrics: Mapping[str, UpdatedMetric], trainer: Trainer, batch: Any, result: StepResult
    ) -> None:
        targets = _measurable(trainer, batch, result, "TorchMetrics")
        given: Any = (result.outputs, targets)
        if self.prepare is not None:
            given = self.prepare(*given)
        # a metric that collects them would keep their graph alive
        given = map_tensors(Tensor.detach, given)
        for metric in metrics.values():
            if isinstance(given, dict):
                metric.update(**given)
            elif isinstance(given, tuple):
                metric.update(*given)
            else:
                metric.update(given)


def _move(metrics: Mapping[str, UpdatedMetric], device: torch.device) -> None:
    for metric in metrics.values():
        if isinstance(metric, nn.Module):
            metric.to(device)

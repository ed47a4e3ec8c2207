"""The `metrics=` of a trainer: functions of outputs and targets, and objects that keep their own
state, as torchmetrics' do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._torch_compat import PersistentMetric, set_update_count, update_count
from ..callback import Callback
from ..data.containers import map_tensors
from ..data.stream import Stateful
from ..errors import ConfigurationError
from ..metrics.metric_objects import Gather, compute_together, merge_copies
from ..text import kind_of

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.result import StepResult
    from ..runtime import Runtime

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
PROCESSES = "processes"  # in a state: a list of all processes' states


def build_callbacks(metrics: Any) -> list[Callback]:
    """The callbacks that measure what a trainer was given as `metrics`."""
    functions: dict[str, MetricFunction | str] = {}
    objects: dict[str, UpdatedMetric] = {}
    for name, metric in _named_metrics(metrics).items():
        if isinstance(metric, UpdatedMetric) and not isinstance(metric, type):
            objects[name] = metric
        elif metric == ACCURACY or (callable(metric) and not isinstance(metric, type)):
            functions[name] = metric
        else:
            raise _not_a_metric(name, metric)
    callbacks: list[Callback] = [MetricFunctions(functions)] if functions else []
    return [*callbacks, TorchMetrics(objects)] if objects else callbacks


def _named_metrics(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    elif isinstance(metrics, Iterable) and not isinstance(metrics, str | nn.Module):
        named = {}
        for metric in metrics:
            if (name := _name_of(metric)) in named:
                raise ConfigurationError(
                    "metrics-of-one-name",
                    f"metrics: two are named {name!r}; give a dict of names and metrics.",
                )
            named[name] = metric
    else:
        named = {_name_of(metrics): metrics}
    for name in named:
        if not isinstance(name, str) or not name or name == "loss":
            raise ConfigurationError(
                "name-of-a-metric",
                f"metrics: {name!r} cannot be the name of a metric; choose another.",
            )
    return named


def _name_of(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    if isinstance(metric, UpdatedMetric) and not isinstance(metric, type):
        return next(iter(TorchMetrics(metric).metrics))
    name = getattr(metric, "__name__", "<lambda>")
    if not callable(metric) or isinstance(metric, type):
        raise _not_a_metric(str(name), metric)
    if name == "<lambda>":
        raise ConfigurationError(
            "metric-without-name",
            "metrics: a function without a name; give a dict of names and functions.",
        )
    return str(name)


def _not_a_metric(name: str, metric: Any) -> ConfigurationError:
    return ConfigurationError(
        "not-a-metric",
        f"metrics: {name!r} is {metric!r:.60}, which is no metric; give 'accuracy', a function of "
        "(outputs, targets) such as `metrics={'mae': torch.nn.functional.l1_loss}`, or an object "
        "of torchmetrics.",
    )


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
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise ConfigurationError(
            "accuracy-of-tensors",
            f"metrics='accuracy' needs two tensors, but outputs are {kind_of(outputs)} and targets "
            f"{kind_of(targets)}: give a function, as in {OWN_ACCURACY}.",
        )
    threshold = next(
        (value for loss, value in THRESHOLDS if loss_fn is loss or type(loss_fn) is loss), None
    )
    if threshold is not None and outputs.shape == targets.shape:
        return ((outputs > threshold) == (targets > 0.5)).float().mean()
    is_no_class = targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool
    has_scores = outputs.dim() == 2 and outputs.shape[1] > 1
    if has_scores and not is_no_class and targets.shape == outputs.shape[:1]:
        return (outputs.argmax(1) == targets).float().mean()
    raise ConfigurationError(
        "accuracy-of-shapes",
        "metrics='accuracy' does not know what is right for outputs of shape "
        f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} ({targets.dtype}): "
        f"give a function, as in {OWN_ACCURACY}.",
    )


# Metrics that keep their own state


@runtime_checkable
class UpdatedMetric(Protocol):
    """A metric or collection of torchmetrics, or any other object with these methods."""

    def update(self, *args: Any, **kwargs: Any) -> Any: ...

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


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
        self.metrics = _named(metrics)
        self.prepare = prepare
        self.on = on
        self.names = set(names) | _value_names(self.metrics)
        self._pristine = deepcopy(self.metrics)
        self._train = deepcopy(self.metrics) if on == "both" else self.metrics
        self._running: list[dict[str, UpdatedMetric]] = []
        self._runtime: Runtime | None = None
        self._loaded: list[Mapping[str, Any]] = []

    def metric_names(self, known: set[str]) -> set[str]:
        of_eval = {f"eval_{name}" for name in self.names} if self.on != "train" else set()
        return of_eval | (self.names if self.on != "eval" else set())

    def on_train_start(self, trainer: Trainer) -> None:
        self._running = []
        self._runtime = trainer.runtime
        if self.on != "eval":
            if trainer.run.files.directory is not None:
                _check_stateful(self._train)
            self._take_loaded()
            _move(self._train, trainer.runtime.device)

    def on_epoch_start(self, trainer: Trainer) -> None:
        if self.on != "eval":
            _reset(self._train)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if self.on != "eval" and trainer.run.window.size:
            self._update(self._train, trainer, batch, result)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        if self.on != "eval":
            trainer.log(_compute(self._train, trainer.runtime.gather_samples))

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        """Reset the metrics; an evaluation inside another one, as of averaged weights, gets
        copies."""
        if self.on != "train":
            metrics = deepcopy(self._pristine) if self._running else self.metrics
            _move(metrics, trainer.runtime.device)
            _reset(metrics)
            self._running.append(metrics)

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if self.on != "train":
            self._update(self._running[-1], trainer, batch, result)

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        if self.on != "train":
            trainer.log(_compute(self._running.pop(), trainer.runtime.gather_samples))

    def state_dict(self) -> dict[str, Any]:
        """The states of the training epoch; there is no checkpoint in the middle of an
        evaluation."""
        if self.on == "eval":
            return {}
        if self._loaded:  # and not trained since
            return dict(self._loaded[0]) if len(self._loaded) == 1 else {PROCESSES: self._loaded}
        state = {name: _state_of(metric) for name, metric in self._train.items()}
        gather = None if self._runtime is None else self._runtime.gather_samples
        return state if gather is None else {PROCESSES: gather(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = list(state.get(PROCESSES, [state]))
        if self._runtime is not None:
            self._take_loaded()
            _move(self._train, self._runtime.device)

    def _take_loaded(self) -> None:
        """Load the state of this process; on another number of processes, rank 0 loads the states
        of all, merged."""
        assert self._runtime is not None
        states = self._loaded
        self._loaded = []
        if len(states) == self._runtime.num_shares:
            states = [states[self._runtime.sample_rank]]
        elif states and self._runtime.sample_rank:
            _reset(self._train)
            return
        for name, metric in self._train.items():
            _load_states(metric, [state[name] for state in states if name in state])

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


def _named(metrics: Any) -> dict[str, UpdatedMetric]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metrics).__name__).lower()
        named = {name: metrics}
    for name, metric in named.items():
        if not isinstance(metric, UpdatedMetric):
            raise ConfigurationError(
                "not-an-updated-metric",
                f"TorchMetrics: {name!r} is {kind_of(metric)}; pass a metric with `update`, "
                "`compute` and `reset`, a collection, or a dict of them.",
            )
    return named


def _value_names(metrics: Mapping[str, UpdatedMetric]) -> set[str]:
    """The names of the values as far as they are known before `compute`: a collection has its own
    names."""
    names: set[str] = set()
    for name, metric in metrics.items():
        names |= set(map(str, metric.keys())) if isinstance(metric, nn.ModuleDict) else {name}
    return names


def _compute(metrics: Mapping[str, UpdatedMetric], gather: Gather | None) -> dict[str, float]:
    computed = (
        {name: metric.compute() for name, metric in metrics.items()}
        if gather is None
        else compute_together(metrics, gather)
    )
    values: dict[str, float] = {}
    for name, value in computed.items():
        values |= _numbers(name, value)
    return values


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Convert a value to named numbers: a dict by its keys, a vector (one number per class, say) by
    position."""
    if isinstance(value, Mapping):
        numbers: dict[str, float] = {}
        for part, item in value.items():
            numbers |= _numbers(str(part), item)
        return numbers
    if isinstance(value, Tensor) and value.dim() == 1 and value.numel() != 1:
        return {f"{name}/{i}": number for i, number in enumerate(value.tolist())}
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return {name: float(value)}
    raise ConfigurationError(
        "metric-not-numbers",
        f"Metric {name!r} computed {kind_of(value)}, which cannot be logged as numbers: log a "
        "summary of it from your own callback.",
    )


def _reset(metrics: Mapping[str, UpdatedMetric]) -> None:
    for metric in metrics.values():
        metric.reset()


def _move(metrics: Mapping[str, UpdatedMetric], device: torch.device) -> None:
    for metric in metrics.values():
        if isinstance(metric, nn.Module):
            metric.to(device)


def _check_stateful(metrics: Mapping[str, UpdatedMetric]) -> None:
    for name, metric in metrics.items():
        if not isinstance(metric, Stateful):
            raise ConfigurationError(
                "metric-without-state",
                f"TorchMetrics: {name!r} cannot be resumed inside an epoch: give "
                f"{type(metric).__name__} `state_dict` and `load_state_dict`, measure on 'eval' "
                "only, or train without `run_dir`.",
            )


def _state_of(metric: UpdatedMetric) -> dict[str, Any]:
    counts = {}
    for path, part in _persistent_parts(metric).items():
        part.persistent(True)
        counts[path] = update_count(part)
    return {"state": metric.state_dict() if isinstance(metric, Stateful) else {}, "counts": counts}


def _load_state(metric: UpdatedMetric, saved: Mapping[str, Any]) -> None:
    metric.reset()
    parts = _persistent_parts(metric)
    for part in parts.values():
        part.persistent(True)
    if isinstance(metric, Stateful):
        metric.load_state_dict(saved["state"])
    for path, part in parts.items():
        set_update_count(part, saved["counts"][path])


def _load_states(metric: UpdatedMetric, saved: Sequence[Mapping[str, Any]]) -> None:
    if len(saved) <= 1:
        for state in saved:
            _load_state(metric, state)
        return
    copies = [deepcopy(metric) for _ in saved]
    for copy, state in zip(copies, saved, strict=True):
        _load_state(copy, state)
    merge_copies(metric, copies)


def _persistent_parts(metric: UpdatedMetric) -> dict[str, PersistentMetric]:
    modules = metric.named_modules() if isinstance(metric, nn.Module) else ()
    return {path: module for path, module in modules if isinstance(module, PersistentMetric)}

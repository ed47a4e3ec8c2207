"""The `metrics=` of a trainer: functions of outputs and targets, averaged over the samples of an
evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..callback import Callback
from ..errors import ConfigurationError
from .torchmetrics import TorchMetrics, UpdatedMetric

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.result import StepResult

MetricFunction = Callable[[Any, Any], Any]
ACCURACY = "accuracy"
OWN_ACCURACY = (
    "metrics={'accuracy': lambda outputs, targets: (outputs.argmax(1) == targets).float()}"
)
_EXPECTED = (
    "give 'accuracy', a function of (outputs, targets) such as `metrics={'mae': "
    "torch.nn.functional.l1_loss}`, or a metric of torchmetrics."
)
# The value above which an output means "yes", by the loss that it was trained with.
THRESHOLDS: tuple[tuple[Any, float], ...] = (
    (nn.BCEWithLogitsLoss, 0.0),
    (functional.binary_cross_entropy_with_logits, 0.0),
    (nn.BCELoss, 0.5),
    (functional.binary_cross_entropy, 0.5),
)


def build_callbacks(metrics: Any) -> list[Callback]:
    """The callbacks that measure what a trainer was given as `metrics`."""
    functions: dict[str, MetricFunction | str] = {}
    objects: dict[str, UpdatedMetric] = {}
    for name, metric in _named(metrics).items():
        if isinstance(metric, UpdatedMetric) and not isinstance(metric, type):
            objects[name] = metric
        elif metric == ACCURACY or (callable(metric) and not isinstance(metric, type)):
            functions[name] = metric
        else:
            what = f"{name!r} is not known" if metric == name else f"{name!r} is {_shown(metric)}"
            raise ConfigurationError(f"metrics: {what}; {_EXPECTED}")
    callbacks: list[Callback] = [MetricFunctions(functions)] if functions else []
    return [*callbacks, TorchMetrics(objects)] if objects else callbacks


def _named(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    elif isinstance(metrics, Iterable) and not isinstance(metrics, str | nn.Module):
        named = {}
        for metric in metrics:
            if (name := _name_of(metric)) in named:
                raise ConfigurationError(
                    f"metrics: two are named {name!r}; give a dict of names and metrics."
                )
            named[name] = metric
    else:
        named = {_name_of(metrics): metrics}
    for name in named:
        if not isinstance(name, str) or not name or name == "loss":
            raise ConfigurationError(
                f"metrics: {name!r} cannot be the name of a metric; choose another."
            )
    return named


def _name_of(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    if isinstance(metric, UpdatedMetric) and not isinstance(metric, type):
        return next(iter(TorchMetrics(metric).metrics))
    name = getattr(metric, "__name__", "<lambda>")
    if not callable(metric) or isinstance(metric, type):
        raise ConfigurationError(f"metrics: {_shown(metric)} is not a metric; {_EXPECTED}")
    if name == "<lambda>":
        raise ConfigurationError(
            "metrics: a function without a name; give a dict of names and functions."
        )
    return str(name)


def _shown(metric: Any) -> str:
    if isinstance(metric, type):
        return f"the class {metric.__name__} (give an object: `{metric.__name__}(...)`)"
    return repr(metric) if isinstance(metric, str) else f"a {type(metric).__name__}"


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
        if trainer.run.eval_stream is None:
            names = ", ".join(self.functions)
            trainer.run.say(
                f"metrics ({names}) are measured in evaluations, and this run has none: pass "
                "`eval_data=`."
            )

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if result.outputs is None:
            raise ConfigurationError(
                "metrics: there are no outputs to measure, since `eval_step` returned none. Return "
                "StepResult(loss, outputs=outputs) from it."
            )
        targets = trainer.split_batch(batch)[1]
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
        kind = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else f"a {type(value).__name__}"
        )
        raise ConfigurationError(
            f"The metric {name!r} returned {kind} for a batch of {result.size} samples: return "
            "their mean, or one number for each sample."
        )


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
            f"metrics='accuracy' needs two tensors, but outputs are a {type(outputs).__name__} "
            f"and targets a {type(targets).__name__}: give a function, as in {OWN_ACCURACY}."
        )
    threshold = next(
        (value for loss, value in THRESHOLDS if loss_fn is loss or type(loss_fn) is loss), None
    )
    if threshold is not None and outputs.shape == targets.shape:
        return ((outputs > threshold) == (targets > 0.5)).float().mean()
    is_class = not (
        targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool
    )
    if (
        is_class
        and outputs.dim() == 2
        and targets.dim() == 1
        and len(outputs) == len(targets)
        and outputs.shape[1] > 1
    ):
        return (outputs.argmax(1) == targets).float().mean()
    is_one_hot = outputs.shape == targets.shape and outputs.dim() == 2 and outputs.shape[1] > 1
    own = (
        f"{OWN_ACCURACY.replace('== targets', '== targets.argmax(1)')} for one-hot targets"
        if is_one_hot
        else OWN_ACCURACY
    )
    raise ConfigurationError(
        "metrics='accuracy' does not know what is right for outputs of shape "
        f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} ({targets.dtype}): "
        f"give a function, as in {own}."
    )

"""The result of one step: `StepResult`, and how the values that a step may return become one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..errors import ConfigurationError
from ..text import kind_of

_ACCEPTED = "a tensor, a dict of named values, a (sum, count) pair, a StepResult, or None"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The loss of one step and its other measurements.

    Args:
        loss: the mean over the batch; with `count` the sum over that number of items (tokens, say),
            which is optimised and reported as sum / count, also across the batches of an
            accumulation window.
        size: the number of samples, by which means are weighted; default: the size of the batch.
        metrics: further values by name.
        count: the number of items that `loss` is a sum over.
        outputs: the model's outputs, for callbacks.
        losses: the names of the metrics that are losses, of which smaller values are better
            whatever their names.

    >>> import torch
    >>> StepResult.of({"loss": torch.tensor(0.5), "accuracy": 0.75}, 8).metrics
    {'accuracy': 0.75}
    """

    loss: Tensor | float | None = None
    size: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    count: Tensor | float | None = None
    outputs: Any = None
    losses: Collection[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return self.loss is None and not self.metrics

    @staticmethod
    def of(returned: Any, size: int, outputs: Any = None) -> StepResult:
        """Make a result of the value that `train_step` or `eval_step` returned for a batch of
        `size` samples."""
        if isinstance(returned, StepResult):
            return returned if returned.size is not None else replace(returned, size=size)
        if isinstance(returned, Tensor):
            return StepResult(returned, size, {}, None, outputs)
        if type(returned) is dict or isinstance(returned, Mapping):
            rest = {name: value for name, value in returned.items() if name != "loss"}
            return StepResult(returned.get("loss"), size, rest, None, outputs)
        if isinstance(returned, tuple) and len(returned) == 2:
            return StepResult(returned[0], size, {}, _whole_count(returned[1]), outputs)
        if returned is None or isinstance(returned, (int, float)):
            return StepResult(returned, size, {}, None, outputs)
        raise ConfigurationError(
            "step-returned", f"A step returned {type(returned).__name__}; expected {_ACCEPTED}."
        )

    @staticmethod
    def of_loss(computed: Any, size: int, outputs: Any = None) -> StepResult:
        """Make a result of the value that `compute_loss` returned; named losses without a "loss"
        are summed."""
        if isinstance(computed, Mapping) and "loss" not in computed:
            if not computed:
                raise ConfigurationError(
                    "no-named-loss",
                    "compute_loss returned an empty dict: return at least one named loss.",
                )
            return StepResult(
                sum(computed.values()), size, dict(computed), None, outputs, tuple(computed)
            )
        if isinstance(computed, tuple) and len(computed) == 2:
            result = StepResult(computed[0], size, {}, _checked_count(computed[1]), outputs)
        else:
            result = StepResult.of(computed, size, outputs)
        if result.loss is None:
            raise ConfigurationError(
                "no-loss", "compute_loss returned None: return the loss, or pass `loss_fn=`."
            )
        return result


def _checked_count(count: Any) -> Any:
    """The count of a (sum, count) pair; anything else is more likely a model's outputs, and
    refused."""
    if isinstance(count, (int, float)) or (isinstance(count, Tensor) and count.numel() == 1):
        return count
    raise ConfigurationError(
        "pair-of-loss-and-outputs",
        f"A step returned a pair whose second part is {kind_of(count)}; a pair means (sum, count): the "
        "loss summed over that number of items. To return a loss with outputs, use "
        "StepResult(loss, outputs=outputs).",
    )


def _whole_count(count: Any) -> Any:
    """The count of a pair that a step returned; one that is not a whole number is more likely a
    metric, and refused."""
    count = _checked_count(count)
    if isinstance(count, float) or (isinstance(count, Tensor) and count.is_floating_point()):
        raise ConfigurationError(
            "pair-of-loss-and-metric",
            "A step returned a pair whose second part is a float; a pair is (sum, count), a loss "
            "summed over that number of items. To return a loss with a metric, use a dict: "
            "`{'loss': loss, 'accuracy': accuracy}`. For a count that is not a whole number, use "
            "StepResult(total, count=count).",
        )
    return count


def mistake_in_loss(loss: Any, count: Any, takes_count: bool = True) -> str | None:
    """The mistake in a loss that could not be trained, or in its count; None if there is none."""
    if not isinstance(loss, Tensor) or loss.is_complex():
        return (
            f"is {kind_of(loss)}: return one tensor with a real number, itself, without `.item()`, "
            "`float()` or `.tolist()`; of several losses, such as their sum"
        )
    if loss.numel() != 1:
        other = ", or return its sum with `count=`" if takes_count else ""
        return f"has shape {tuple(loss.shape)}: reduce it to one number, such as its mean{other}"
    if not loss.requires_grad:
        return (
            "has no graph, so there is nothing to train: compute it from the model's outputs, "
            "without `.detach()`, `torch.tensor(...)` or `torch.no_grad()`, and with parameters "
            "that are not all frozen"
        )
    if count is None:
        return None
    if not isinstance(count, (int, float, Tensor)) or (
        isinstance(count, Tensor) and count.numel() != 1
    ):
        return f"has the count {count!r}: pass the number of items in the sum"
    if not count >= 0:  # also where it is NaN
        return f"has the count {float(count):g}: pass the number of items in the sum"
    return None

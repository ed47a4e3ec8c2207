"""Which states are worth a checkpoint: resume points by time, kept models by a metric, finite
ones only.

A run looks at these before its first step, so nothing here imports the format of the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._torch_compat import are_finite
from ..errors import ConfigurationError, check_number
from ..metrics.best import Mode, ranked
from ..trees import leaves


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """When to save resume points: every n updates, epochs or minutes, whichever comes first.

    Args:
        every_updates: Save after every n updates; None for never.
        every_epochs: Save after every n epochs; None for never.
        every_minutes: Save when this many minutes have passed since the last one; None for never.
        keep: The number of newest resume points to keep.

    >>> from loopwright.checkpoint import ResumePolicy
    >>> ResumePolicy(every_updates=100).is_due(update=200)
    True
    """

    every_updates: int | None = None
    every_epochs: int | None = None
    every_minutes: float | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("every_updates", "every_epochs", "every_minutes"):
            if (value := getattr(self, name)) is not None:
                label = f"Checkpoints({name}"
                check_number(label, value, above=0, is_whole=False, otherwise="None")
        check_number("Checkpoints(keep", self.keep, least=1)

    def is_due(
        self, *, update: int, epoch_end: int | None = None, minutes_since_last: float = 0.0
    ) -> bool:
        """Whether to save now; `epoch_end` is the number of epochs completed, where one has just
        ended.

        The end of an epoch is asked about apart from its last update, so updates do not count
        there.
        """
        if self.every_minutes is not None and minutes_since_last >= self.every_minutes:
            return True
        every = self.every_updates
        number = update
        if epoch_end is not None:
            every = self.every_epochs
            number = epoch_end
        return every is not None and number > 0 and number % every == 0


@dataclass(frozen=True)
class Candidate:
    """A model that may be kept: its name, its metric, and the update it was taken at."""

    name: str
    value: float
    update: int


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep the best few models by a metric.

    Infinities rank as numbers; NaN ranks below everything; of equal values the earlier one is
    better.

    Args:
        metric: The name of the metric.
        mode: Whether smaller ("min") or larger ("max") values are better.
        keep: The number of models to keep.

    >>> from loopwright.checkpoint import Candidate, KeepPolicy
    >>> kept = [Candidate("a", 0.3, update=100)]
    >>> KeepPolicy("eval_loss").is_worth_keeping(Candidate("b", 0.2, update=200), kept)
    True
    """

    metric: str
    mode: Mode = "min"
    keep: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigurationError(
                "unknown-mode", f"KeepPolicy(mode={self.mode!r}): use 'min' or 'max'."
            )
        check_number("BestModel(keep", self.keep, least=1)

    def ranked(self, candidates: Iterable[C]) -> list[C]:
        """The candidates, best first."""
        by_age = sorted(candidates, key=lambda candidate: (candidate.update, candidate.name))
        return ranked(by_age, lambda candidate: candidate.value, self.mode)

    def is_worth_keeping(self, candidate: Candidate, kept: Iterable[Candidate]) -> bool:
        """Whether it would be among the best few, together with those kept so far."""
        others = [other for other in kept if other.name != candidate.name]
        return candidate in self.ranked([*others, candidate])[: self.keep]


class FiniteCheck:
    """Finds a weight or a value of an optimizer's state that is not finite.

    Buffers and frozen parameters may be infinite, as masks are; they may be NaN where they were
    before training.

    Args:
        trained: The names of the parameters that are trained, by model.
        nan_before: The names of other entries that were NaN before training, by model.

    Example:
        >>> import torch
        >>> from loopwright.checkpoint.policy import FiniteCheck
        >>> model = torch.nn.Linear(1, 1)
        >>> check = FiniteCheck.of({"model": model})
        >>> _ = model.bias.detach().fill_(torch.inf)
        >>> check.problem({"models": {"model": model.state_dict()}})
        "weight 'bias' of model 'model' is not finite"
    """

    def __init__(
        self, trained: Mapping[str, Collection[str]], nan_before: Mapping[str, Collection[str]]
    ) -> None:
        self.trained = trained
        self.nan_before = nan_before

    @classmethod
    def of(cls, models: Mapping[str, nn.Module]) -> FiniteCheck:
        """Look at models before they are trained."""
        trained = {
            name: {key for key, p in m.named_parameters() if p.requires_grad}
            for name, m in models.items()
        }
        nan_before = {}
        for name, model in models.items():
            others = chain(model.named_buffers(), model.named_parameters())
            nan_before[name] = {
                key
                for key, value in others
                if key not in trained[name] and not value.is_meta and not _has_no_nan(value)
            }
        return cls(trained, nan_before)

    def problem(self, tree: Mapping[str, Any]) -> str | None:
        """Say which value of a state is not finite; None where all are."""
        if _are_finite([tree.get("models"), tree.get("optimizers")]):
            return None
        for name, state in tree.get("models", {}).items():
            trained = self.trained.get(name, ())
            known = self.nan_before.get(name, ())
            for key, value in state.items():
                if key not in known and not (
                    _are_finite(value) if key in trained else _has_no_nan(value)
                ):
                    return f"weight {key!r} of model {name!r} is not finite"
        for name, state in tree.get("optimizers", {}).items():
            if not _are_finite(state):
                return f"the state of optimizer {name!r} is not finite"
        return None


def _are_finite(tree: Any) -> bool:
    tensors = [_plain(leaf) for leaf in leaves(tree) if hasattr(leaf, "dtype")]
    return are_finite([tensor for tensor in tensors if tensor is not None])


def _has_no_nan(value: Any) -> bool:
    plain = _plain(value)
    return plain is None or not bool(plain.isnan().any())


def _plain(value: Any) -> Tensor | None:
    """Return the floating-point values that this process has of a value: a tensor of its own, sharded
    or in a file; None for anything else."""
    if type(value) is not Tensor:
        value = value.read() if hasattr(value, "read") else value  # a `StoredTensor`
        value = value.to_local() if hasattr(value, "to_local") else value  # a `DTensor`
        value = getattr(value, "local", value)  # a `TensorShard`
        if not isinstance(value, Tensor) or is_lazy(value):
            return None
    is_number = value.dtype.is_floating_point or value.dtype.is_complex
    return value.detach() if is_number and value.numel() else None

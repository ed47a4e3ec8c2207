"""Values of a saved state that are not finite: such a state is neither written nor resumed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._torch_compat import are_finite


class FiniteCheck:
    """Finds a weight or a value of an optimizer's state that is not finite.

    Buffers and frozen parameters may be infinite, as masks are; they may be NaN where they were
    before training.

    Args:
        trained: The names of the parameters that are trained, by model.
        nan_before: The names of other entries that were NaN before training, by model.

    Example:
        >>> import torch
        >>> from loopwright.checkpoint.finite import FiniteCheck
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
        if _are_finite(_tensors([tree.get("models"), tree.get("optimizers")])):
            return None
        for name, state in tree.get("models", {}).items():
            trained = self.trained.get(name, ())
            known = self.nan_before.get(name, ())
            for key, value in state.items():
                if key not in known and not (
                    _are_finite([value]) if key in trained else _has_no_nan(value)
                ):
                    return f"weight {key!r} of model {name!r} is not finite"
        for name, state in tree.get("optimizers", {}).items():
            if not _are_finite(_tensors([state])):
                return f"the state of optimizer {name!r} is not finite"
        return None


def _tensors(left: list[Any]) -> list[Any]:
    """Return the tensors in nested dicts, lists and tuples: whole, sharded, or in a file."""
    found = []
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, (list, tuple)):
            left.extend(value)
        elif hasattr(value, "dtype"):
            found.append(value)
    return found


def _are_finite(values: Iterable[Any]) -> bool:
    return are_finite(value for value in map(_plain, values) if value is not None)


def _has_no_nan(value: Any) -> bool:
    plain = _plain(value)
    return plain is None or not bool(plain.isnan().any())


def _plain(value: Any) -> Tensor | None:
    """Return the floating-point values that this process has of a tensor: one of its own, sharded,
    or in a file."""
    if type(value) is not Tensor:
        value = value.read() if hasattr(value, "read") else value  # a `StoredTensor`
        value = value.to_local() if hasattr(value, "to_local") else value  # a `DTensor`
        value = getattr(value, "local", value)  # a `TensorShard`
        if not isinstance(value, Tensor) or is_lazy(value):
            return None
    is_number = value.dtype.is_floating_point or value.dtype.is_complex
    return value.detach() if is_number and value.numel() else None

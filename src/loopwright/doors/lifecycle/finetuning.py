"""Freezing and unfreezing a model by its parts, from the first to the last."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ...callbacks.freezing import BATCH_NORMS
from ...errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Layer:
    """A module without modules in it, the group it belongs to, and whether all its parameters are frozen."""

    layer_group_idx: int
    layer: nn.Module
    is_frozen: bool


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A direct child of the model, the layers in it, and whether all their parameters are frozen."""

    layer_group_idx: int
    layers: list[nn.Module]
    is_frozen: bool


class ModelFreezer:
    """Freezes groups of layers. A group is a direct child of the model; groups are counted as the model defines them.

    Indices are inclusive and may count from the end. Batch norms are left to train, unless `freeze_batch_norms`.
    """

    def __init__(self, model: nn.Module, freeze_batch_norms: bool = False) -> None:
        self.model = model
        self.freeze_batch_norms = freeze_batch_norms
        self._groups = [_leaves(child) for child in model.children()]
        if not self._groups:
            raise ConfigurationError(f"ModelFreezer: {type(model).__name__} has no parts that could be frozen.")

    def get_layer_groups(self) -> list[LayerGroup]:
        return [LayerGroup(at, layers, self._is_frozen(layers)) for at, layers in enumerate(self._groups)]

    def get_layers(self) -> list[Layer]:
        return [Layer(at, layer, self._is_frozen([layer])) for at, group in enumerate(self._groups) for layer in group]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        return [param for param in self.model.parameters() if param.requires_grad]

    def freeze(self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False) -> None:
        """Freeze groups, by default all but the last; `set_modules_as_eval` puts them in eval mode too."""
        for at in self._indices(from_index, to_index):
            for layer in self._groups[at]:
                if self.freeze_batch_norms or not isinstance(layer, BATCH_NORMS):
                    layer.requires_grad_(False)
                    if set_modules_as_eval:
                        layer.eval()

    def unfreeze(
        self, from_index: int = -1, to_index: int = 0, set_modules_as_training: bool = True
    ) -> dict[int, list[nn.Parameter]]:
        """Unfreeze groups, by default all; the parameters that were frozen come back by group, for an optimizer."""
        unfrozen: dict[int, list[nn.Parameter]] = {}
        for at in self._indices(from_index, to_index):
            for layer in self._groups[at]:
                unfrozen.setdefault(at, []).extend(p for p in layer.parameters() if not p.requires_grad)
                layer.requires_grad_(True)
                if set_modules_as_training:
                    layer.train()
        return {at: params for at, params in unfrozen.items() if params}

    def _indices(self, first: int, last: int) -> range:
        count = len(self._groups)
        for index in (first, last):
            if not -count <= index < count:
                raise ConfigurationError(f"There is no layer group {index}: the model has {count} of them.")
        low, high = sorted((first % count, last % count))
        return range(low, high + 1)

    def _is_frozen(self, layers: list[nn.Module]) -> bool:
        return not any(param.requires_grad for layer in layers for param in layer.parameters())


def _leaves(module: nn.Module) -> list[nn.Module]:
    """The modules that hold parameters of their own or have no others in them, in order."""
    return [
        m
        for m in module.modules()
        if not any(True for _ in m.children()) or any(True for _ in m.parameters(recurse=False))
    ]

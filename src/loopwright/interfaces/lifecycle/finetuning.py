"""Freezing and unfreezing a model by its parts, from the first to the last."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from ...callbacks.freezing import BATCH_NORMS
from ...errors import ConfigurationError


class Layer(NamedTuple):
    """A module without modules in it, the index of its group (from the first and from the last),
    and its state.

    A module without parameters counts as frozen in eval mode.
    """

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class LayerGroup(NamedTuple):
    """A direct child of the model, its index (from the first and from the last), and whether any of
    it is frozen."""

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class ModelFreezer:
    """Freezes groups of layers. A group is a direct child of the model; groups are counted as the
    model defines them.

    Making one unfreezes the whole model. Indices are inclusive and may count from the end. Batch
    norms are left to train, unless `freeze_batch_norms`.
    """

    def __init__(self, model: nn.Module, freeze_batch_norms: bool = False) -> None:
        self.model = model
        self.freeze_bn = freeze_batch_norms
        self._groups = list(model.children())
        self.num_groups = len(self._groups)
        if not self._groups:
            raise ConfigurationError(
                "nothing-to-freeze",
                f"ModelFreezer: {type(model).__name__} has no layers that can be frozen.",
            )
        model.requires_grad_(True)

    def get_layer_groups(self) -> list[LayerGroup]:
        return [
            LayerGroup(
                (at, at - self.num_groups),
                group,
                any(not p.requires_grad for p in group.parameters()),
            )
            for at, group in enumerate(self._groups)
        ]

    def get_layers(self) -> list[Layer]:
        return [
            Layer((at, at - self.num_groups), layer, _is_frozen(layer))
            for at, group in enumerate(self._groups)
            for layer in _leaves(group)
        ]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        return [param for param in self.model.parameters() if param.requires_grad]

    def freeze(
        self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False
    ) -> None:
        """Freeze groups, by default all but the last; `set_modules_as_eval` puts them in eval mode
        too."""
        for layer in self._between(from_index, to_index):
            layer.module.requires_grad_(False)
            if set_modules_as_eval:
                layer.module.eval()

    def unfreeze(
        self, from_index: int = -1, to_index: int = 0, set_modules_as_training: bool = True
    ) -> dict[int, dict[str, list[nn.Parameter]]]:
        """Unfreeze groups, by default all.

        What was frozen comes back by group, each ready for `optimizer.add_param_group`.
        """
        unfrozen: dict[int, dict[str, list[nn.Parameter]]] = {}
        for layer in self._between(from_index, to_index):
            frozen = [param for param in layer.module.parameters() if not param.requires_grad]
            if frozen:
                unfrozen.setdefault(layer.layer_group_idx[0], {"params": []})["params"].extend(
                    frozen
                )
            layer.module.requires_grad_(True)
            if set_modules_as_training:
                layer.module.train()
        return unfrozen

    def _between(self, first: int, last: int) -> list[Layer]:
        low, high = self._convert_idxs(first, last)
        return [
            layer
            for layer in self.get_layers()
            if low <= layer.layer_group_idx[0] <= high
            and (self.freeze_bn or not _module_is_batch_norm(layer.module))
        ]

    def _convert_idxs(self, from_idx: int, to_idx: int) -> tuple[int, int]:
        """Indices from the first group, the smaller one first."""
        count = self.num_groups
        for index in (from_idx, to_idx):
            if not -count <= index < count:
                raise ConfigurationError(
                    "unknown-layer-group",
                    f"There is no layer group {index}: the model has {count} of them.",
                )
        low, high = sorted((from_idx % count, to_idx % count))
        return low, high


def _module_is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORMS)


def _is_frozen(layer: nn.Module) -> bool:
    params = list(layer.parameters())
    return not any(param.requires_grad for param in params) if params else not layer.training


def _leaves(module: nn.Module) -> list[nn.Module]:
    """The modules that hold parameters of their own or have no others in them, in order."""
    return [
        m
        for m in module.modules()
        if not any(True for _ in m.children()) or any(True for _ in m.parameters(recurse=False))
    ]

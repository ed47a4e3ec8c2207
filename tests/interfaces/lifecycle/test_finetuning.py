"""Freezing a model by the groups of its layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import ModelFreezer, Trainer

from ...loops import build_net
from .runs import train


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = build_net()
        self.neck = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.neck(self.body(inputs)))
        return outputs


def frozen(freezer: ModelFreezer) -> list[bool]:
    return [group.is_frozen for group in freezer.get_layer_groups()]


def test_by_default_all_but_the_last_group_are_frozen_without_batch_norms() -> None:
    model = Layered()
    freezer = ModelFreezer(model)
    freezer.freeze()
    names = [name for name, param in model.named_parameters() if param.requires_grad]
    assert names == [
        "body.1.weight", "body.1.bias", "neck.1.weight", "neck.1.bias", "head.weight", "head.bias"
    ]  # fmt: skip
    assert len(freezer.get_trainable_parameters()) == 6
    assert model.body.training


def test_unfreezing_gives_back_what_was_frozen_by_group() -> None:
    model = Layered()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze()
    unfrozen = freezer.unfreeze(from_index=1, to_index=-1)
    assert list(unfrozen) == [1]
    assert {id(p) for p in unfrozen[1]["params"]} == {id(p) for p in model.neck.parameters()}
    assert frozen(freezer) == [True, False, False]
    freezer.unfreeze()
    assert frozen(freezer) == [False, False, False]
    indices = [layer.layer_group_idx for layer in freezer.get_layers()]
    assert indices == [(0, -3)] * 5 + [(1, -2)] * 2 + [(2, -1)]


def test_fine_tuning_trains_the_head_first_and_then_everything(points: TensorDataset) -> None:
    model = Layered()
    freezer = ModelFreezer(model, freeze_batch_norms=True)
    freezer.freeze(set_modules_as_eval=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
    trainer = train(Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=()), points, 1)
    changed = {
        name.split(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"head"}
    for group in freezer.unfreeze().values():
        optimizer.add_param_group(group | {"lr": 0.01})
    train(trainer, points, 1)
    changed = {
        name.split(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"body", "neck", "head"}

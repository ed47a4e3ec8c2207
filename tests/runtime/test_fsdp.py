"""Questions that all processes have to ask together are asked equally often on each."""

from __future__ import annotations

import torch
from torch import nn

from loopwright.runtime.fsdp import ShardedModels


def test_an_optimizer_is_looked_at_once_however_often_its_parameters_are_listed_anew() -> None:
    asked = []
    shards = ShardedModels(lambda names: asked.append(names) or [names])
    model = nn.Linear(2, 2)
    for _ in range(3):
        params = list(model.parameters())
        shards.prepare(model(torch.ones(1, 2)).sum(), params, None, is_last=True)
    assert len(asked) == 1


def test_parameters_added_to_an_optimizer_are_looked_at() -> None:
    asked = []
    shards = ShardedModels(lambda names: asked.append(names) or [names])
    model = nn.Linear(2, 2)
    for params in ([model.weight], [model.weight, model.bias]):
        shards.prepare(model(torch.ones(1, 2)).sum(), params, None, is_last=True)
    assert len(asked) == 2

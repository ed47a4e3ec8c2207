"""Trainers with steps of their own, for tests of what such steps may do."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from loopwright import Trainer
from tests.loops import build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


class Own(Trainer):
    """Counts the steps that were begun."""

    begun = 0

    def on_train_step_start(self, batch):
        self.begun += 1

    def loss(self, batch):
        return cross_entropy(self.model(batch[0]), batch[1])


def own(kind: type[Trainer], net: nn.Module | None = None, **options) -> Trainer:
    net = build_net() if net is None else net
    return kind(net, sgd(net.parameters()), progress="silent", **options)

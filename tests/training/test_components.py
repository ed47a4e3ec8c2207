"""What a trainer finds on itself, and what it refuses to train."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from loopwright import Trainer
from tests.loops import build_linear, build_net
from tests.mistakes import raises

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def test_a_model_without_trainable_parameters_is_refused():
    net = build_linear().requires_grad_(False)
    with raises("no-trainable-model", "model"):
        Trainer(net, torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), cross_entropy).train([])


def test_an_optimizer_of_another_model_is_refused_with_a_remedy():
    net, other = build_linear(), build_net()
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with raises("foreign-parameters", "'optimizer'", "6 of 6"):
        Trainer(net, optimizer, cross_entropy).train([])


def test_a_loss_with_weights_of_its_own_is_placed_but_not_exported(points, tmp_path):
    from safetensors.torch import load_file

    net = build_linear()
    trainer = Trainer(net, sgd, nn.CrossEntropyLoss(weight=torch.ones(3)), progress="silent")
    trainer.train(points)
    trainer.export(tmp_path / "weights.safetensors")
    assert set(load_file(tmp_path / "weights.safetensors")) == {"weight", "bias"}


def test_an_optimizer_that_chooses_its_own_rate_trains(points):
    class OwnRate(torch.optim.Optimizer):
        """Its rate is None, as that of Adafactor of transformers."""

        def __init__(self, params):
            super().__init__(params, {"lr": None})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    param.sub_(param.grad)

    trainer = Trainer(build_linear(), OwnRate, cross_entropy, progress="silent")
    trainer.train(points, 1, batch_size=8)
    assert trainer.progress.update > 0

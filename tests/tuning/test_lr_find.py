"""The range test of the learning rate: what it measures, what it suggests, and that it leaves no
trace."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import EMA, Freeze
from loopwright.checkpoint import snapshot
from loopwright.checkpoint.compare import compare_trees
from loopwright.data.random import rng_state
from loopwright.debug.unsaved_state import unsaved_state
from loopwright.errors import ConfigurationError
from loopwright.schedules import Cosine
from loopwright.training.state import capture
from loopwright.tuning import LearningRateScan, find_learning_rate
from tests.loops import batches, build_linear, build_net


def make_trainer(model: nn.Module | None = None, **options) -> Trainer:
    options = {
        "optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        "progress": "silent",
    } | options
    return Trainer(
        build_net() if model is None else model, loss_fn=nn.functional.cross_entropy, **options
    )


def test_losses_are_those_of_a_loop_with_growing_rates(points):
    scan = find_learning_rate(
        make_trainer(build_linear(), optimizer=partial(torch.optim.SGD, lr=0.05)),
        points,
        lowest=1e-3,
        highest=1.0,
        num_updates=10,
        batch_size=8,
    )
    model, losses = build_linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    both_epochs = [batch for epoch in (0, 1) for batch in batches(points, 8, epoch)]
    for number, (inputs, targets) in enumerate(both_epochs):
        optimizer.param_groups[0]["lr"] = 1e-3 * 1000.0 ** (number / 9)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert scan.losses == tuple(losses)
    assert scan.rates == tuple(1e-3 * 1000.0 ** (number / 9) for number in range(10))
    assert scan.reason == "all 10 updates were taken"


class Counting(nn.Module):
    """Keeps more than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build_net()
        self.calls, self.seen = 0, []
        self.register_buffer("last", torch.zeros(6), persistent=False)

    def forward(self, inputs):
        self.calls += 1
        self.seen.append(len(inputs))
        self.last = inputs[0] if self.training else self.last
        return self.body(inputs)


def everything(trainer: Trainer, data) -> dict:
    return snapshot(
        {
            "state": capture(trainer.run),
            "seen": {
                key: str(value) for key, value in flatten(unsaved_state(trainer, data)).items()
            },
            "modes": {name: module.training for name, module in trainer.model.named_modules()},
            "grads": {name: param.grad for name, param in trainer.model.named_parameters()},
            "rng": rng_state(),
        }
    )


def flatten(tree, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value
        for name, item in tree.items()
        for key, value in flatten(item, f"{prefix}/{name}").items()
    }


@pytest.mark.parametrize("updates_before", [0, 7])
def test_trainer_is_left_exactly_as_it_was(points, updates_before, tmp_path):
    trainer = make_trainer(
        Counting(),
        optimizer=partial(torch.optim.AdamW, lr=0.01),
        scheduler=Cosine(),
        callbacks=[EMA(0.9)],
        run_dir=tmp_path / "run",
    )
    trainer.setup()
    if updates_before:
        trainer.train(points, num_updates=updates_before, eval_data=points, batch_size=8)
    before = everything(trainer, points)
    attributes = {name: id(value) for name, value in vars(trainer).items()}
    scan = find_learning_rate(trainer, points, num_updates=12, batch_size=8)
    assert compare_trees(before, everything(trainer, points)) == ()
    assert {name: id(value) for name, value in vars(trainer).items()} == attributes
    assert len(scan.losses) > 3


def test_frozen_layers_stay_frozen_while_it_scans_and_are_as_before_afterwards(points):
    trainer = make_trainer(callbacks=[Freeze("0")])
    scan = find_learning_rate(trainer, points, num_updates=5, batch_size=8)
    frozen = make_trainer()
    for param in frozen.model[0].parameters():
        param.requires_grad_(False)
    assert scan.losses == find_learning_rate(frozen, points, num_updates=5, batch_size=8).losses
    assert all(param.requires_grad for param in trainer.model.parameters())


def test_groups_keep_their_proportions(points):
    seen = []

    class Watched(Trainer):
        def train_step(self, batch):
            seen.append([group["lr"] for group in self.optimizers["optimizer"].param_groups])
            return super().train_step(batch)

    model = build_net()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[4].parameters(), "lr": 0.025},
    ]
    trainer = Watched(
        model, torch.optim.SGD(groups), nn.functional.cross_entropy, progress="silent"
    )
    find_learning_rate(trainer, points, lowest=1e-4, highest=1e-2, num_updates=3, batch_size=8)
    assert seen == [pytest.approx([rate, rate / 4]) for rate in (1e-4, 1e-3, 1e-2)]
    assert [group["lr"] for group in trainer.optimizers["optimizer"].param_groups] == [0.1, 0.025]


def test_it_ends_when_the_loss_rises_and_suggests_a_rate_below_that():
    data = TensorDataset(torch.linspace(-1, 1, 64)[:, None], torch.linspace(-3, 3, 64)[:, None])
    trainer = Trainer(
        nn.Linear(1, 1), partial(torch.optim.SGD, lr=1.0), nn.MSELoss(), progress="silent"
    )
    scan = find_learning_rate(
        trainer, data, lowest=1e-4, highest=1e3, num_updates=100, batch_size=64
    )
    assert "rose to more than 4 times its lowest" in scan.reason
    assert len(scan.losses) < 100
    # where gradient descent on this parabola begins to
    diverges = 1 / (data.tensors[0] ** 2).mean().item()
    assert 1e-3 < scan.suggestion < diverges


def test_it_ends_at_a_loss_that_is_not_finite(points):
    class Breaking(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.calls = build_linear(), 0

        def forward(self, inputs):
            self.calls += 1
            return self.body(inputs) * (math.nan if self.calls > 4 else 1.0)

    trainer = make_trainer(Breaking())
    scan = find_learning_rate(trainer, points, num_updates=30, batch_size=8)
    assert len(scan.losses) == 4
    assert "nan" in scan.reason
    assert trainer.model.calls == 0


def test_a_loss_that_never_falls_suggests_nothing():
    scan = LearningRateScan((0.1, 0.2, 0.3), (1.0, 1.0, 1.0), "")
    assert scan.suggestion is None


def test_suggestion_is_where_the_loss_falls_fastest_also_with_noise():
    rates = tuple(10.0 ** (-6 + number / 20) for number in range(120))  # to 1
    noise = torch.randn(120, generator=torch.Generator().manual_seed(0)).tolist()
    curve = [
        4 - 3 / (1 + math.exp(-4 * (math.log10(rate) + 3))) + max(rate - 0.3, 0) * 20
        for rate in rates
    ]
    scan = LearningRateScan(
        rates, tuple(c + 0.4 * n for c, n in zip(curve, noise, strict=True)), ""
    )
    assert 3e-4 < scan.suggestion < 3e-3  # it falls fastest at 1e-3
    assert scan.to_dict()["suggestion"] == scan.suggestion


def test_a_stateful_loader_is_left_where_it_was(points):
    class Walking:
        """Batches that go on from one epoch to the next."""

        def __init__(self):
            self.at = 3

        def __iter__(self):
            for _ in range(4):
                inputs, targets = points[self.at * 4 : self.at * 4 + 4]
                self.at = (self.at + 1) % 8
                yield inputs, targets

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    loader = Walking()
    find_learning_rate(make_trainer(), loader, num_updates=5)
    assert loader.at == 3


MISTAKES = {
    "rates the wrong way round": ({"lowest": 1.0, "highest": 0.1}, "0 < lowest < highest"),
    "too few updates": ({"num_updates": 2}, "3 or more"),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_scanned_is_refused(points, options, message):
    with pytest.raises(ConfigurationError, match=message):
        find_learning_rate(make_trainer(), points, **options)

"""From a loss to changed weights: several optimizers, and schedules."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import TensorDataset

from loopwright import Callback, Schedule, Trainer
from loopwright.data.random import seed_everything
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    batches,
    build_linear,
    build_net,
    evaluate_by_hand,
    train_by_hand,
)

cross_entropy = nn.functional.cross_entropy
bce = nn.functional.binary_cross_entropy_with_logits


# Several optimizers


class Gan(Trainer):
    """The discriminator first, on a detached fake; then the generator, through the
    discriminator."""

    def configure_models(self):
        torch.manual_seed(1)
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def configure_optimizers(self):
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), 0.01)
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), 0.02)

    def train_step(self, batch):
        real = batch[0]
        fake = self.generator(torch.randn(len(real), 4))
        judged, unmasked = self.discriminator(real), self.discriminator(fake.detach())
        d_loss = bce(judged, torch.ones_like(judged)) + bce(unmasked, torch.zeros_like(unmasked))
        self.update(d_loss, self.discriminator_optimizer)
        fooled = self.discriminator(fake)
        g_loss = bce(fooled, torch.ones_like(fooled))
        self.update(g_loss, self.generator_optimizer)
        return {"g_loss": g_loss, "d_loss": d_loss}


def gan_by_hand(
    data: TensorDataset, epochs: int, autocast: bool = False
) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    g_opt = torch.optim.Adam(generator.parameters(), 0.01)
    d_opt = torch.optim.Adam(discriminator.parameters(), 0.02)
    seed_everything(0)
    for epoch in range(epochs):
        for (real,) in batches(data, 8, epoch):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                fake = generator(torch.randn(len(real), 4))
                judged, unmasked = discriminator(real), discriminator(fake.detach())
                d_loss = bce(judged, torch.ones_like(judged)) + bce(
                    unmasked, torch.zeros_like(unmasked)
                )
            d_loss.backward()
            d_opt.step()
            d_opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                fooled = discriminator(fake)
                g_loss = bce(fooled, torch.ones_like(fooled))
            g_loss.backward()
            g_opt.step()
            g_opt.zero_grad()
            d_opt.zero_grad()  # the generator's loss went through the discriminator
    return generator, discriminator


@pytest.fixture
def reals(points) -> TensorDataset:
    return TensorDataset(points.tensors[0])


def test_a_gan_in_bf16_sees_the_discriminator_that_was_just_updated(reals):
    trainer = Gan(progress="silent", precision="bf16")
    trainer.train(reals, num_epochs=3, batch_size=8)
    generator, discriminator = gan_by_hand(reals, 3, autocast=True)
    assert_same_model(trainer.generator, generator)
    assert_same_model(trainer.discriminator, discriminator)


def test_accumulation_never_mixes_the_gradients_of_two_optimizers(reals):
    """Over a window, the discriminator's gradient is what its own losses alone give."""

    class Recording(Gan):
        grads = None

        def on_optimizer_start(self, optimizer):
            if optimizer == "discriminator_optimizer":
                self.grads = [p.grad.clone() for p in self.discriminator.parameters()]

    class WithoutGenerator(Recording):
        def train_step(self, batch):
            real = batch[0]
            fake = self.generator(torch.randn(len(real), 4))
            judged, unmasked = self.discriminator(real), self.discriminator(fake.detach())
            d_loss = bce(judged, torch.ones_like(judged)) + bce(
                unmasked, torch.zeros_like(unmasked)
            )
            self.update(d_loss, "discriminator_optimizer")
            return d_loss

    both, alone = (
        Recording(accumulate=3, progress="silent"),
        WithoutGenerator(accumulate=3, progress="silent"),
    )
    both.train(reals, num_updates=1, batch_size=8)
    alone.train(reals, num_updates=1, batch_size=8)
    for grad, other in zip(both.grads, alone.grads, strict=True):
        assert torch.equal(grad, other)


def test_one_graph_can_serve_two_optimizers(reals):
    class Shared(Gan):
        def train_step(self, batch):
            before = [self.generator[2].bias.clone(), self.discriminator[2].bias.clone()]
            loss = self.discriminator(self.generator(torch.randn(8, 4))).mean()
            self.update(-loss, "generator_optimizer", retain_graph=True)
            self.update(loss, "discriminator_optimizer")
            assert not torch.equal(before[0], self.generator[2].bias)
            assert not torch.equal(before[1], self.discriminator[2].bias)

    trainer = Shared(progress="silent")
    trainer.train(reals, num_updates=1, batch_size=8)
    assert trainer.progress.update == 1


def test_a_step_that_multiplies_matrices_is_taken_outside_of_autocast(points):
    def muon(net):
        return torch.optim.Muon([net.weight], lr=0.02)

    ours, theirs = build_linear(), build_linear()
    Trainer(ours, muon(ours), cross_entropy, precision="fp16", progress="silent").train(
        points, 2, batch_size=8
    )
    scaler = torch.amp.GradScaler("cpu")
    train_by_hand(theirs, muon(theirs), points, epochs=2, autocast=torch.float16, scaler=scaler)
    assert_same_model(ours, theirs)


# Schedules


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def test_a_schedule_per_update_is_the_hand_written_one(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = sgd(ours), sgd(theirs)
    cycle = partial(OneCycleLR, max_lr=0.3, total_steps=10)
    Trainer(ours, optimizer, cross_entropy, scheduler=cycle, progress="silent").train(
        points, 2, batch_size=8
    )
    train_by_hand(theirs, other, points, epochs=2, every_update=cycle(other))
    assert_same_model(ours, theirs)
    assert_same_optimizer(optimizer, other)


def test_a_schedule_per_epoch_is_the_hand_written_one(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = sgd(ours), sgd(theirs)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    Trainer(ours, optimizer, cross_entropy, scheduler=scheduler, progress="silent").train(
        points, 3, batch_size=8
    )
    train_by_hand(theirs, other, points, epochs=3, every_epoch=StepLR(other, 1, gamma=0.5))
    assert_same_model(ours, theirs)
    assert optimizer.param_groups[0]["lr"] == 0.0125


def test_the_cadence_of_any_schedule_can_be_chosen(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = sgd(ours), sgd(theirs)
    schedule = Schedule(partial(ExponentialLR, gamma=0.9), every="update")
    trainer = Trainer(
        ours, optimizer, cross_entropy, scheduler=schedule, accumulate=2, progress="silent"
    )
    trainer.train(points, 2, batch_size=8)
    train_by_hand(
        theirs, other, points, epochs=2, accumulate=2, every_update=ExponentialLR(other, gamma=0.9)
    )
    assert_same_model(ours, theirs)


def test_a_plateau_schedule_watches_the_evaluation(points):
    ours, theirs = build_net(), build_net()
    optimizer, other = sgd(ours), sgd(theirs)
    plateau = partial(ReduceLROnPlateau, patience=0, factor=0.1, threshold=0.2)
    trainer = Trainer(ours, optimizer, cross_entropy, scheduler=plateau, progress="silent")
    history = trainer.train(points, 4, eval_data=points, batch_size=37)
    scheduler = plateau(other)

    class Evaluating:
        def step(self):
            scheduler.step(evaluate_by_hand(theirs, points))

    train_by_hand(theirs, other, points, epochs=4, batch_size=37, every_epoch=Evaluating())
    assert history["eval_loss"][-1] == pytest.approx(evaluate_by_hand(theirs, points), rel=1e-6)
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"] < 0.1


# Parameters that an optimizer gets later


class Unfreezing(Callback):
    """Gives the optimizer the first layer in the middle of an epoch."""

    def on_update_end(self, trainer):
        if trainer.progress.update == 2:
            trainer.model[0].requires_grad_()
            trainer.optimizers["optimizer"].add_param_group(
                {"params": list(trainer.model[0].parameters()), "lr": 0.05}
            )


@pytest.mark.parametrize("is_frozen", [False, True])
def test_parameters_added_in_the_middle_of_an_epoch_are_trained_from_there(points, is_frozen):
    ours, theirs = build_net(dropout=0.0), build_net(dropout=0.0)
    ours[0].requires_grad_(not is_frozen)
    optimizer = torch.optim.SGD(ours[4].parameters(), lr=0.1)
    Trainer(ours, optimizer, cross_entropy, callbacks=[Unfreezing()], progress="silent").train(
        points, 2, batch_size=8
    )
    optimizer, number = torch.optim.SGD(theirs[4].parameters(), lr=0.1), 0
    for epoch in range(2):
        for inputs, targets in batches(points, 8, epoch):
            cross_entropy(theirs(inputs), targets).backward()
            optimizer.step()
            theirs.zero_grad()
            number += 1
            if number == 2:
                optimizer.add_param_group({"params": list(theirs[0].parameters()), "lr": 0.05})
    assert_same_model(ours, theirs)

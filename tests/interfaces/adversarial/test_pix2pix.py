"""Pix2pix: the same numbers as a loop written by hand, and the traps that such loops fall into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loopwright.data import permutation, seed_everything
from loopwright.errors import NonFiniteLossError
from loopwright.interfaces.adversarial import (
    Discriminator,
    PairedDataset,
    Pix2pixTrainer,
    UnetGenerator,
)

from .runs import SIZE, tiny, train

PLAIN = {"augmentations": {"both": {"h_flip_chance": 0.0}}}


def plain(data: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Nothing random but the order, the first weights and dropout."""
    config = tiny(data, output, **changes)
    return config | {"dataloader": config["dataloader"] | PLAIN}


def train_by_hand(dataset: PairedDataset, num_epochs: int) -> tuple[nn.Module, nn.Module]:
    """Two epochs at 2e-4, two more in equal steps towards 0, as anybody would write them."""
    seed_everything(0)
    gen, disc = (
        UnetGenerator(SIZE, features=4, n_downs=1),
        Discriminator(n_layers=2, base_channels=4),
    )
    opt_gen, opt_disc = (
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (gen, disc)
    )
    seed_everything(0)
    for epoch in range(num_epochs):
        order = permutation(0, epoch, len(dataset)).tolist()
        for start in range(0, len(order), 2):
            pairs = [dataset[index] for index in order[start : start + 2]]
            x, y = (torch.stack(images) for images in zip(*pairs, strict=True))
            y_fake = gen(x)
            real, fake = disc(x, y), disc(x, y_fake.detach())
            loss_real = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
            loss_fake = F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
            opt_disc.zero_grad()
            ((loss_real + loss_fake) * 0.5).backward()
            opt_disc.step()
            verdict = disc(x, y_fake)
            loss = (
                F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))
                + F.l1_loss(y_fake, y) * 100.0
            )
            opt_gen.zero_grad()
            loss.backward()
            opt_gen.step()
        for optimizer in (opt_gen, opt_disc):
            done = max(epoch + 2 - 2, 0) / 3
            optimizer.param_groups[0]["lr"] = 2e-4 + (0.0 - 2e-4) * done
    return gen, disc


def test_epochs_equal_a_loop_written_by_hand_bit_for_bit(data: Path, tmp_path: Path):
    trainer = train(Pix2pixTrainer(plain(data, tmp_path)), 4)
    gen, disc = train_by_hand(PairedDataset(trainer.config, data / "train"), 4)
    for ours, theirs in ((trainer.gen, gen), (trainer.disc, disc)):
        for (name, value), other in zip(
            ours.state_dict().items(), theirs.state_dict().values(), strict=True
        ):
            assert torch.equal(value, other), name


def test_each_network_has_a_scaler_of_its_own(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    config["common"]["precision"] = "fp16"
    trainer = train(Pix2pixTrainer(config), 1)
    assert trainer.g_scaler is not trainer.d_scaler
    updates = trainer._core.run.updates.by_name
    assert (updates["opt_gen"].scaler, updates["opt_disc"].scaler) == (
        trainer.g_scaler,
        trainer.d_scaler,
    )
    assert trainer.d_scaler.state_dict()["_growth_tracker"] == 3
    assert trainer.d_scaler.get_scale() == 65536.0
    # its loss of 100 L1 overflowed, which is none of the other's business
    assert trainer.g_scaler.get_scale() == 8192.0


def test_the_learning_rate_is_constant_then_falls_and_is_never_zero_in_an_epoch(
    data: Path, tmp_path: Path
):
    trainer, rates = Pix2pixTrainer(tiny(data, tmp_path)), []
    for epoch in range(4):
        rates.append(
            (trainer.opt_gen.param_groups[0]["lr"], trainer.opt_disc.param_groups[0]["lr"])
        )
        trainer.train_paired(epoch)
    expected = [2e-4, 2e-4, 2e-4 * 2 / 3, 2e-4 / 3]
    for (gen, disc), rate in zip(rates, expected, strict=True):
        assert gen == disc == pytest.approx(rate)


def test_extended_losses_are_added_to_the_generators(data: Path, tmp_path: Path):
    config = tiny(data, tmp_path)
    config["train"]["loss"] = {
        "lambda_l2": 1.0,
        "lambda_sobel": 1.0,
        "lambda_laplacian": 1.0,
        "lambda_vgg": 1.0,
    }
    features = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())
    from loopwright.losses import Perceptual

    trainer = Pix2pixTrainer(config, "extended+vgg", perceptual=Perceptual(features))
    x, y = torch.rand(2, 1, 3, SIZE, SIZE).unbind()
    total = trainer.forward_G(x, y, trainer.gen(x))
    values = trainer.loss_manager.get_loss_values(query=["G"], precision=None)
    assert len(values) == 6
    assert all(values.values())
    assert total.item() == pytest.approx(sum(values.values()), rel=1e-5)


def test_a_single_update_works_outside_of_an_epoch(data: Path, tmp_path: Path):
    trainer = Pix2pixTrainer(tiny(data, tmp_path))
    before = trainer.gen.last[0].weight.clone()
    trainer.backward_G(trainer.gen(torch.rand(1, 3, SIZE, SIZE)).mean())
    assert not torch.equal(before, trainer.gen.last[0].weight)
    with pytest.raises(NonFiniteLossError):
        trainer.backward_G(trainer.gen(torch.rand(1, 3, SIZE, SIZE)).mean() * float("inf"))

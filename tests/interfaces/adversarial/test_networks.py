"""The UNet and the PatchGAN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopwright.interfaces.adversarial import (
    Discriminator,
    ResidualUnetBlock,
    UnetGenerator,
)


@pytest.mark.parametrize("block", ["UnetBlock", ResidualUnetBlock])
@pytest.mark.parametrize("upsampling", ["Transposed", "Bilinear"])
def test_the_generator_keeps_the_size_and_gives_values_of_tanh(block, upsampling):
    network = UnetGenerator(32, features=4, n_downs=2, block_type=block, upconv_type=upsampling)
    output = network(torch.randn(2, 3, 32, 32) * 100)
    assert output.shape == (2, 3, 32, 32)
    assert output.abs().max() <= 1


def test_the_three_deepest_up_blocks_have_dropout():
    network = UnetGenerator(64, features=2, n_downs=4)
    has_dropout = [
        any(isinstance(layer, nn.Dropout) for layer in up.modules()) for up in network.ups
    ]
    assert has_dropout == [True, True, True, False, False]


@pytest.mark.parametrize(
    "network", [UnetGenerator(64, features=16, n_downs=2), Discriminator(base_channels=16)]
)
def test_weights_are_drawn_from_a_narrow_normal_distribution(network):
    weights = torch.cat(
        [
            m.weight.flatten()
            for m in network.modules()
            if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)
        ]
    )
    assert abs(weights.mean().item()) < 0.001
    assert abs(weights.std().item() - 0.02) < 0.001
    assert all(
        (m.bias == 0).all()
        for m in network.modules()
        if isinstance(m, nn.Conv2d) and m.bias is not None
    )


def test_the_discriminator_judges_patches_of_seventy_pixels():
    network = Discriminator(base_channels=2, n_layers=4)
    image = torch.zeros(1, 3, 128, 128, requires_grad=True)
    verdict = network.model[0](torch.cat([image, image], 1))
    for layer in network.model[1:]:
        if not isinstance(layer, nn.InstanceNorm2d):  # which sees the whole image
            verdict = layer(verdict)
    verdict[0, 0, 7, 7].backward()
    seen = image.grad[0].abs().sum(0).nonzero()
    assert (seen.amax(0) - seen.amin(0) + 1).tolist() == [70, 70]

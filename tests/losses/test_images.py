"""Losses that torch does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from loopwright.losses import GANLoss, Laplacian, Perceptual, Sobel, vgg_stages

from ..mistakes import raises


def ramp(slope: float, size: int = 8) -> torch.Tensor:
    """An image that gets brighter to the right."""
    return (torch.arange(size) * slope).expand(1, 3, size, size)


@pytest.mark.parametrize("loss", [Sobel(), Laplacian()])
def test_equal_images_cost_next_to_nothing(loss):
    image = torch.rand(2, 3, 8, 8)
    assert loss(image, image).item() == 0


def test_sobel_measures_how_much_stronger_edges_are():
    inside = Sobel().edges(ramp(0.1) - ramp(0.0))[:, :, 1:-1, 1:-1]
    # the kernel spans two steps with weight 4
    torch.testing.assert_close(inside, torch.full_like(inside, 0.8))
    assert Sobel()(ramp(0.1), ramp(0.0)).item() > 0


def test_laplacian_does_not_see_slopes_but_bends():
    bent = ramp(0.1) ** 2
    assert Laplacian().texture(ramp(0.1))[:, :, 1:-1, 1:-1].abs().max().item() < 1e-6
    inside = Laplacian().texture(bent)[:, :, 1:-1, 1:-1]
    # the second difference of (0.1 n)²
    torch.testing.assert_close(inside, torch.full_like(inside, 0.02))


@pytest.mark.parametrize("loss", [Sobel(), Laplacian()])
def test_gradients_of_flat_images_are_finite(loss):
    flat = torch.zeros(1, 3, 8, 8, requires_grad=True)
    loss(flat, torch.rand(1, 3, 8, 8)).backward()
    assert torch.isfinite(flat.grad).all()


def test_gan_loss_takes_truth_values_and_soft_labels():
    logits = torch.randn(2, 1, 3, 3)
    assert torch.equal(GANLoss()(logits, True), GANLoss()(logits, torch.ones_like(logits)))
    torch.testing.assert_close(GANLoss()(logits, False), F.softplus(logits).mean())
    assert torch.equal(GANLoss("lsgan")(logits, True), ((logits - 1) ** 2).mean())


def test_perceptual_adds_up_the_stages_of_a_module():
    stages = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    first, second = torch.rand(2, 2, 3, 8, 8).unbind()
    one, other = stages[0]((first + 1) / 2 * 2 - 1), stages[0]((second + 1) / 2 * 2 - 1)
    expected = F.l1_loss(one, other) + F.l1_loss(stages[1](one), stages[1](other))
    torch.testing.assert_close(Perceptual(stages)(first, second), expected.detach())


def test_perceptual_features_stay_frozen_and_in_eval_mode():
    loss = Perceptual(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()))
    loss.train()
    assert not any(module.training for module in loss.stages.modules())
    assert not any(parameter.requires_grad for parameter in loss.parameters())
    image = torch.rand(1, 3, 8, 8, requires_grad=True)
    loss(image, torch.rand(1, 3, 8, 8)).backward()
    assert image.grad.abs().sum() > 0


def vgg_weights(width: int = 2) -> dict[str, torch.Tensor]:
    """A VGG19 with few channels, under torchvision's names."""
    generator = torch.Generator().manual_seed(0)
    widths = {0: width, 5: 2 * width, 10: 4 * width, 19: 8 * width, 28: 8 * width}
    weights, inputs, outputs = {}, 3, width
    for number in (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34):
        outputs = widths.get(number, outputs)
        weights[f"features.{number}.weight"] = torch.randn(
            outputs, inputs, 3, 3, generator=generator
        )
        weights[f"features.{number}.bias"] = torch.randn(outputs, generator=generator)
        inputs = outputs
    return weights | {"classifier.0.weight": torch.zeros(2, 2)}


def test_vgg_is_built_from_a_file_of_its_weights(tmp_path: Path):
    weights = vgg_weights()
    torch.save(weights, tmp_path / "vgg19.pth")
    stages = vgg_stages(tmp_path / "vgg19.pth")
    image = torch.rand(1, 3, 32, 32)
    expected = F.relu(
        F.conv2d(image, weights["features.0.weight"], weights["features.0.bias"], padding=1)
    )
    assert torch.equal(stages[0](image), expected)
    seen = [image]
    for stage in stages:
        seen.append(stage(seen[-1]))
    assert [tuple(image.shape[1:]) for image in seen[1:]] == [
        (2, 32, 32),
        (4, 16, 16),
        (8, 8, 8),
        (16, 4, 4),
        (16, 2, 2),
    ]


def test_a_missing_vgg_file_says_how_to_get_one(tmp_path: Path):
    with raises("no-vgg-weights"):
        Perceptual(tmp_path / "none.pth")

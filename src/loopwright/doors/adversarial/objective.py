"""The objective of pix2pix as a loss spec."""

from __future__ import annotations

import torch
from torch import nn

from ...errors import ConfigurationError
from ...losses import GANLoss, Laplacian, Perceptual, Sobel
from .config import Config
from .losses import LMLoss

SUBSPECS = ("basic", "basic+vgg", "extended", "extended+vgg")


def pix2pix(
    config: Config,
    subspec: str = "basic",
    *,
    perceptual: nn.Module | None = None,
    device: torch.device | str | None = None,
) -> dict[str, LMLoss]:
    """The losses of both networks with the weights of a config; tags "G" and "D" say whose they are.

    `basic` is the paper's: a GAN loss and L1. `extended` adds L2, Sobel and Laplacian. `+vgg` adds what a trained
    network sees, from `train.loss.vgg_weights` or from the module given as `perceptual`.
    """
    if subspec not in SUBSPECS:
        raise ConfigurationError(f"loss_subspec={subspec!r}: use one of {', '.join(SUBSPECS)}.")
    weights = config.train.loss
    functions: dict[str, tuple[nn.Module, float]] = {
        "G_GAN": (GANLoss(), weights.lambda_gan),
        "G_L1": (nn.L1Loss(), weights.lambda_l1),
    }
    if subspec.startswith("extended"):
        functions["G_L2"] = (nn.MSELoss(), weights.lambda_l2)
        functions["G_SOBEL"] = (Sobel(), weights.lambda_sobel)
        functions["G_LAP"] = (Laplacian(), weights.lambda_laplacian)
    if subspec.endswith("+vgg"):
        functions["G_VGG"] = (perceptual or _vgg(config), weights.lambda_vgg)
    functions |= {"D_real": (GANLoss(), 1.0), "D_fake": (GANLoss(), 1.0)}
    return {
        name: LMLoss(name, function.to(device), weight, tags=[name[0]])
        for name, (function, weight) in functions.items()
    }


def _vgg(config: Config) -> Perceptual:
    path = config.train.loss.vgg_weights
    if path is None:
        raise ConfigurationError(
            "A sub-spec with +vgg needs trained VGG19 weights, which are not downloaded: set train.loss.vgg_weights "
            "to a file of torchvision's vgg19 state dict, or pass `perceptual=` a module."
        )
    return Perceptual(path)

"""Losses that torch does not have, as small modules that any trainer can use."""

from .adversarial import GANLoss
from .edges import Laplacian, Sobel
from .perceptual import Perceptual, vgg_stages

__all__ = ["GANLoss", "Laplacian", "Perceptual", "Sobel", "vgg_stages"]

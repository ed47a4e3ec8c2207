"""Losses that torch does not have, as small modules that any trainer can use."""

from .images import GANLoss, Laplacian, Perceptual, Sobel, vgg_stages

__all__ = ["GANLoss", "Laplacian", "Perceptual", "Sobel", "vgg_stages"]

"""Losses on what a filter sees of two images: their edges (Sobel) or their fine texture (Laplacian)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_SOBEL = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]
_LAPLACIAN = [[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]
_TINY = 1e-12  # keeps the gradient of a square root finite where an image is flat


class Sobel(nn.Module):
    """The mean absolute difference of two images' edge strengths."""

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor(_SOBEL)
        self.register_buffer("kernels", torch.stack([across, across.T]).unsqueeze(1), persistent=False)

    def edges(self, image: Tensor) -> Tensor:
        """How strong the edges of a grey version of the image are, pixel by pixel."""
        gradients = _filtered(image, self.kernels)
        return (gradients.square().sum(1, keepdim=True) + _TINY).sqrt()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return F.l1_loss(self.edges(first), self.edges(second))


class Laplacian(nn.Module):
    """The mean absolute difference of two images' second derivatives, which is where fine texture shows."""

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernels", torch.tensor(_LAPLACIAN).reshape(1, 1, 3, 3), persistent=False)

    def texture(self, image: Tensor) -> Tensor:
        return _filtered(image, self.kernels)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return F.l1_loss(self.texture(first), self.texture(second))


def _filtered(image: Tensor, kernels: Tensor) -> Tensor:
    """The grey image under each kernel; its border is repeated, so that it is no edge itself."""
    grey = image.mean(1, keepdim=True)
    return F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels.to(grey.dtype))

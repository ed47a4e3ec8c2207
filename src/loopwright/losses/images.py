"""Losses between images, and the loss of a discriminator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigurationError

# torchvision's `vgg19().features`: where its convolutions and poolings are. A stage ends after relu
# k_1.
_CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34)
_POOLINGS = (4, 9, 18, 27, 36)
_STAGE_ENDS = (1, 6, 11, 20, 29)


class Perceptual(nn.Module):
    """Perceptual loss: the sum over stages of a network of the mean absolute difference of two
    images' features.

    The network is frozen and stays in eval mode. Nothing is downloaded.

    Args:
        features: A path to VGG19 weights in torchvision's naming (`.pth` or `.safetensors`), a
            module (each child of an `nn.Sequential` is a stage), or a list of consecutive stages.
        statistics: Mean and standard deviation per channel, to normalise images in the range -1 to
            1; None leaves images unchanged, except for VGG19, which gets ImageNet's.

    >>> import torch
    >>> from loopwright.losses import Perceptual
    >>> loss = Perceptual(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()))
    >>> image = torch.zeros(1, 3, 8, 8)
    >>> loss(image, image).item()
    0.0
    """

    IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        features: str | Path | nn.Module | Sequence[nn.Module],
        *,
        statistics: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(features, (str, Path)):
            features = vgg_stages(features)
            statistics = statistics or self.IMAGENET
        stages = (
            [features]
            if isinstance(features, nn.Module) and not isinstance(features, nn.Sequential)
            else features
        )
        self.stages = nn.ModuleList(stages).requires_grad_(False).eval()
        # by default they cancel the change of range in `_normalised`
        mean, deviation = statistics or ((0.5,), (0.5,))
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer(
            "deviation", torch.tensor(deviation).reshape(1, -1, 1, 1), persistent=False
        )

    def train(self, mode: bool = True) -> Perceptual:
        """Do nothing: the network stays in eval mode."""
        return self

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        first = self._normalised(first)
        second = self._normalised(second)
        total = first.new_zeros(())
        for stage in self.stages:
            first = stage(first)
            second = stage(second)
            total = total + F.l1_loss(first, second)
        return total

    def _normalised(self, image: Tensor) -> Tensor:
        return ((image + 1) / 2 - self.mean) / self.deviation


def vgg_stages(path: str | Path) -> list[nn.Module]:
    """Return the five stages of VGG19 from a file of weights in torchvision's naming.

    Args:
        path: The file, `.pth` or `.safetensors`; layers have the sizes of the file's tensors.

    >>> from loopwright.losses import vgg_stages
    >>> vgg_stages("missing.pth")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    loopwright.errors.ConfigurationError: There are no VGG19 weights at missing.pth, ...
    """
    from ..checkpoint.weights import load_weights

    if not Path(path).is_file():
        raise ConfigurationError(
            "no-vgg-weights",
            f"There are no VGG19 weights at {path}, and they are not downloaded automatically: "
            "save torchvision's `vgg19(weights='IMAGENET1K_V1').state_dict()` to a file where "
            "you have network access and pass its path, or pass your own module.",
        )
    weights = load_weights(path)
    prefix = "features." if "features.0.weight" in weights else ""
    stages: list[nn.Module] = []
    start = 0
    for end in _STAGE_ENDS:
        layers = [_layer(number, weights, prefix) for number in range(start, end + 1)]
        stages.append(nn.Sequential(*layers))
        start = end + 1
    return stages


def _layer(number: int, weights: Mapping[str, Tensor], prefix: str) -> nn.Module:
    if number in _POOLINGS:
        return nn.MaxPool2d(2)
    if number not in _CONVOLUTIONS:
        return nn.ReLU()
    weight = weights[f"{prefix}{number}.weight"]
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
    layer.load_state_dict({"weight": weight, "bias": weights[f"{prefix}{number}.bias"]})
    return layer


class GANLoss(nn.Module):
    """The loss of a discriminator's prediction: `loss(prediction, target)`.

    The target is True for real, False for generated, or a tensor of the prediction's shape for soft
    labels.

    Args:
        mode: "bce" for binary cross-entropy, where the prediction is a logit, or "lsgan" for least
            squares.

    >>> import torch
    >>> from loopwright.losses import GANLoss
    >>> GANLoss("lsgan")(torch.ones(4, 1), True).item()
    0.0
    """

    def __init__(self, mode: Literal["bce", "lsgan"] = "bce") -> None:
        super().__init__()
        if mode not in ("bce", "lsgan"):
            raise ConfigurationError("gan-loss-mode", f"GANLoss({mode!r}): use 'bce' or 'lsgan'.")
        self.mode = mode

    def forward(self, prediction: Tensor, target: bool | Tensor) -> Tensor:
        if not isinstance(target, Tensor):
            target = prediction.new_full(prediction.shape, float(target))
        if self.mode == "bce":
            return F.binary_cross_entropy_with_logits(prediction, target)
        return F.mse_loss(prediction, target)


_SOBEL = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]
_LAPLACIAN = [[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]
_TINY = 1e-12  # keeps the gradient of a square root finite where an image is flat


class Sobel(nn.Module):
    """The mean absolute difference of the edge strengths of two images: `loss(first, second)`.

    >>> import torch
    >>> from loopwright.losses import Sobel
    >>> image = torch.rand(1, 3, 8, 8)
    >>> Sobel()(image, image + 0.5).item() < 1e-6
    True
    """

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor(_SOBEL)
        self.register_buffer(
            "kernels", torch.stack([across, across.T]).unsqueeze(1), persistent=False
        )

    def edges(self, image: Tensor) -> Tensor:
        """Return the edge strength of the grey image at each pixel."""
        gradients = _filtered(image, self.kernels)
        return (gradients.square().sum(1, keepdim=True) + _TINY).sqrt()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return F.l1_loss(self.edges(first), self.edges(second))


class Laplacian(nn.Module):
    """The mean absolute difference of the second derivatives of two images, which show fine
    texture.

    >>> import torch
    >>> from loopwright.losses import Laplacian
    >>> image = torch.rand(1, 3, 8, 8)
    >>> Laplacian()(image, image).item()
    0.0
    """

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "kernels", torch.tensor(_LAPLACIAN).reshape(1, 1, 3, 3), persistent=False
        )

    def texture(self, image: Tensor) -> Tensor:
        """Return the second derivative of the grey image at each pixel."""
        return _filtered(image, self.kernels)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return F.l1_loss(self.texture(first), self.texture(second))


def _filtered(image: Tensor, kernels: Tensor) -> Tensor:
    """Convolve the grey image with each kernel; the border is replicated, so that it is no edge
    itself."""
    grey = image.mean(1, keepdim=True)
    return F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels.to(grey.dtype))

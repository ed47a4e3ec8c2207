"""The two networks of pix2pix: a UNet that generates images and a PatchGAN that judges them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...errors import ConfigurationError

NUM_DROPOUTS = 3  # of the deepest up-sampling blocks, which is where pix2pix takes its noise from
MAX_WIDENING = 8


def initialise_weights(network: nn.Module, deviation: float = 0.02) -> None:
    """Weights of convolutions N(0, deviation), those of normalisations N(1, deviation), biases
    0."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, deviation)
        elif isinstance(module, nn.InstanceNorm2d) and module.affine:
            nn.init.normal_(module.weight, 1.0, deviation)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class UnetBlock(nn.Module):
    """Halves or doubles an image: a convolution, a normalisation, an activation, and perhaps
    dropout."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        is_down: bool,
        upsampling: Literal["Transposed", "Bilinear"] = "Transposed",
        has_dropout: bool = False,
    ) -> None:
        super().__init__()
        layers = [
            scaling_layer(
                in_channels, out_channels, is_down=is_down, upsampling=upsampling, bias=False
            ),
            nn.InstanceNorm2d(out_channels, affine=True),
            nn.LeakyReLU(0.2) if is_down else nn.ReLU(),
        ]
        self.layers = nn.Sequential(*layers, *([nn.Dropout(0.5)] if has_dropout else []))

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.layers(image)
        return result


class ResidualUnetBlock(UnetBlock):
    """The same with a residual part behind it: two more convolutions, whose result is added."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.residual = nn.Sequential(
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.InstanceNorm2d(out_channels, affine=True),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.InstanceNorm2d(out_channels, affine=True),
        )

    def forward(self, image: Tensor) -> Tensor:
        scaled: Tensor = self.layers(image)
        return scaled + self.residual(scaled)  # type: ignore[no-any-return]


BLOCKS: dict[str, type[UnetBlock]] = {
    "UnetBlock": UnetBlock,
    "ResidualUnetBlock": ResidualUnetBlock,
}


def scaling_layer(
    in_channels: int,
    out_channels: int,
    *,
    is_down: bool,
    upsampling: Literal["Transposed", "Bilinear"],
    bias: bool,
) -> nn.Module:
    """What halves an image, or doubles it by a transposed convolution, or by interpolation and a
    convolution."""
    if is_down:
        return nn.Conv2d(in_channels, out_channels, 4, 2, 1, bias=bias, padding_mode="reflect")
    if upsampling == "Transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 4, 2, 1, bias=bias)
    if upsampling != "Bilinear":
        raise ConfigurationError(
            "upconv-type", f"upconv_type={upsampling!r}: use 'Transposed' or 'Bilinear'."
        )
    larger = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return nn.Sequential(larger, nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=bias))


class UnetGenerator(nn.Module):
    """An image to an image of the same size, with values in -1...1.

    The image is halved once, `n_downs` times, and once more in the bottleneck, then doubled as
    often; every doubling but the first also sees what the halving of its size gave. Channels double
    from `features` to eight times that. `use_checkpointing` computes the blocks again in the
    backward pass instead of storing their activations.
    """

    def __init__(
        self,
        input_size: int,
        in_channels: int = 3,
        features: int = 64,
        n_downs: int = 6,
        use_dropout_layers: int = NUM_DROPOUTS,
        block_type: str | type[UnetBlock] = UnetBlock,
        upconv_type: Literal["Transposed", "Bilinear"] = "Transposed",
        use_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.use_checkpointing = use_checkpointing
        if isinstance(block_type, str):
            block_type = BLOCKS[block_type]
        if input_size % 2 ** (n_downs + 2):
            raise ConfigurationError(
                "image-size",
                f"An image of {input_size} pixels cannot be halved {n_downs + 2} times "
                f"(n_downs={n_downs}, the first layer and the bottleneck): use a multiple of "
                f"{2 ** (n_downs + 2)}, or another n_downs.",
            )
        widths = [features * min(2**depth, MAX_WIDENING) for depth in range(n_downs + 1)]
        self.first = nn.Sequential(
            scaling_layer(in_channels, features, is_down=True, upsampling=upconv_type, bias=True),
            nn.LeakyReLU(0.2),
        )
        self.downs = nn.ModuleList(
            block_type(wide, wider, is_down=True) for wide, wider in pairwise(widths)
        )
        # no normalisation: it may be down to one pixel
        self.bottleneck = nn.Sequential(nn.Conv2d(widths[-1], widths[-1], 4, 2, 1), nn.ReLU())
        inputs = [widths[-1], *(2 * width for width in reversed(widths[1:]))]
        self.ups = nn.ModuleList(
            block_type(
                wide,
                width,
                is_down=False,
                upsampling=upconv_type,
                has_dropout=number < use_dropout_layers,
            )
            for number, (wide, width) in enumerate(zip(inputs, reversed(widths), strict=True))
        )
        self.last = nn.Sequential(
            scaling_layer(
                2 * features, in_channels, is_down=False, upsampling=upconv_type, bias=True
            ),
            nn.Tanh(),
        )
        initialise_weights(self)

    def forward(self, image: Tensor) -> Tensor:
        seen = [self.first(image)]
        for down in self.downs:
            seen.append(self._through(down, seen[-1]))
        result = self.bottleneck(seen[-1])
        for up in self.ups:
            result = torch.cat([self._through(up, result), seen.pop()], dim=1)
        return self.last(result)  # type: ignore[no-any-return]

    def _through(self, block: nn.Module, image: Tensor) -> Tensor:
        if not (self.use_checkpointing and self.training and torch.is_grad_enabled()):
            return block(image)  # type: ignore[no-any-return]
        result: Tensor = checkpoint(block, image, use_reentrant=False)
        return result


class Discriminator(nn.Module):
    """Says of every patch of an image whether it is real, as a logit, given the input it was made
    from."""

    def __init__(
        self,
        in_channels: int = 3,
        base_channels: int = 64,
        n_layers: int = 3,
        max_channels: int = 512,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(2 * in_channels, base_channels, 4, 2, 1, padding_mode="reflect"),
            nn.LeakyReLU(0.2),
        ]
        width = base_channels
        for number in range(1, n_layers):
            wider = min(2 * width, max_channels)
            stride = 1 if number == n_layers - 1 else 2
            layers += [
                nn.Conv2d(width, wider, 4, stride, 1, bias=False, padding_mode="reflect"),
                nn.InstanceNorm2d(wider, affine=True),
                nn.LeakyReLU(0.2),
            ]
            width = wider
        layers.append(nn.Conv2d(width, 1, 4, 1, 1, padding_mode="reflect"))
        self.model = nn.Sequential(*layers)
        initialise_weights(self)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.model(torch.cat([x, y], dim=1))
        return result

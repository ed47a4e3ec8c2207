"""Image files and tensors: reading and writing through Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checkpoint.atomic import staged_file
from ...errors import MissingExtraError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


def pillow() -> Any:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Image files need Pillow: pip install 'loopwright[images]'.") from error
    return Image


def read_image(path: Path, size: tuple[int, int], num_channels: int) -> Tensor:
    """An image scaled to (width, height), as channels of bytes."""
    import numpy as np

    Image = pillow()  # noqa: N806  (the name that everybody knows it by)
    with Image.open(path) as file:
        image = file.convert("L" if num_channels == 1 else "RGB")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(image).copy())
    return pixels.unsqueeze(0) if num_channels == 1 else pixels.permute(2, 0, 1)


def as_bytes(image: Tensor) -> Tensor:
    """An image with values in -1...1 as channels of bytes, in the host's memory."""
    values = image.detach().float().clamp(-1, 1).add(1).mul(127.5).round()
    return values.to("cpu", torch.uint8)


def write_image(path: Path, image: Tensor) -> None:
    """Write channels of bytes, or values in -1...1, so that whoever looks finds a whole picture or the one before."""
    Image = pillow()  # noqa: N806
    pixels = image if image.dtype == torch.uint8 else as_bytes(image)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    with staged_file(path) as staging:
        Image.fromarray(array).save(staging, format="JPEG" if path.suffix in (".jpg", ".jpeg") else "PNG")


def side_by_side(rows: Sequence[Sequence[Tensor]], *, gap: int = 2, scale: int = 1) -> Tensor:
    """Rows of equally large images as one picture of bytes, with white between them."""
    lines = [_joined([as_bytes(image) for image in row], gap, dim=2) for row in rows]
    picture = _joined(lines, gap, dim=1)
    return picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2)


def _joined(parts: Sequence[Tensor], gap: int, dim: int) -> Tensor:
    size = list(parts[0].shape)
    size[dim] = gap
    space = torch.full(size, 255, dtype=torch.uint8)
    spaced = [piece for part in parts for piece in (part, space)]
    return torch.cat(spaced[:-1], dim)

"""Image files and tensors: reading and writing through Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ...checkpoint.atomic import staged_file
from ...data.open import open_stream
from ...data.order import permutation
from ...data.random import preserved_rng
from ...errors import ConfigurationError, MissingExtraError
from ...runtime.modes import evaluating

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


def pillow() -> Any:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "Image files need Pillow: pip install 'loopwright[images]'."
        ) from error
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
    """Write channels of bytes, or values in -1...1, so that a reader finds a complete picture or
    the one before."""
    Image = pillow()  # noqa: N806
    pixels = image if image.dtype == torch.uint8 else as_bytes(image)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    with staged_file(path) as staging:
        Image.fromarray(array).save(
            staging, format="JPEG" if path.suffix in (".jpg", ".jpeg") else "PNG"
        )


def side_by_side(rows: Sequence[Sequence[Tensor]], *, gap: int = 2, scale: int = 1) -> Tensor:
    """Rows of equally large images as one picture of bytes, with white between them."""
    lines = [_joined([as_bytes(image) for image in row], gap, dim=2) for row in rows]
    picture = _joined(lines, gap, dim=1)
    return picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2)


def _joined(parts: Sequence[Tensor], gap: int, dim: int) -> Tensor:
    size = list(parts[0].shape)
    size[dim] = gap
    space = torch.full(size, 255, dtype=torch.uint8)
    spaced = [column for part in parts for column in (part, space)]
    return torch.cat(spaced[:-1], dim)


PARTS = ("input", "output", "target")


def check_network(network: object) -> None:
    """Refuse what is no network as the first argument of `save_xyz_examples`."""
    if not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"save_xyz_examples was given a {type(network).__name__} as the network; expected "
            "save_xyz_examples(network, dataloader)."
        )


def write_examples(
    directory: Path,
    network: nn.Module,
    loader: Any,
    *,
    epoch: int,
    count: int,
    seed: int,
    device: torch.device,
) -> list[Path]:
    """Write three files for each of `count` images; modes and random generators are left as they
    were."""
    paths = []
    with evaluating([network], ()), torch.no_grad(), preserved_rng():
        for number, (x, y) in enumerate(choose_pairs(loader, count, seed, epoch), start=1):
            output = network(x.unsqueeze(0).to(device))[0]
            for part, image in zip(PARTS, (x, output, y), strict=True):
                paths.append(directory / f"epoch{epoch}_{number}_{part}.png")
                write_image(paths[-1], image)
    return paths


def choose_pairs(loader: Any, count: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some pairs, which ones following from the seed and the epoch; of data without an order, the
    first ones."""
    dataset: Any = loader.dataset if isinstance(loader, DataLoader) else None
    if dataset is not None and not isinstance(dataset, IterableDataset):
        for index in permutation(seed, epoch, len(dataset))[:count].tolist():
            yield dataset[index]
        return
    stream = open_stream(loader, seed=seed, shuffle=False)
    stream.begin(0)
    pairs = (pair for batch, _, _ in stream for pair in zip(*batch, strict=True))
    yield from islice(pairs, count)
    stream.close()

"""Pairs of images from files in which the two are side by side, and their augmentation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ...errors import ConfigurationError, DataError, MissingExtraError
from .config import Augmentations, ColorJitter, Config, ImageAugmentation, PairAugmentation

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
Change = Callable[[Tensor], Tensor]


def pillow() -> Any:
    """`PIL.Image`, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "no-pillow", "Image files need Pillow: pip install 'loopwright[images]'."
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


class PairTransform:
    """Changes input and target, both with values in 0...1, as a config says.

    What happens to both happens to one picture that has the channels of both, so they cannot get
    out of step.
    """

    def __init__(self, settings: Augmentations, size: int) -> None:
        self.both = pair_changes(settings.both, size)
        self.input = image_changes(settings.input)
        self.target = image_changes(settings.target)

    def __call__(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        if self.both:
            both = _applied(self.both, torch.cat([first, second]))
            first, second = both[: len(first)], both[len(first) :]
        return _applied(self.input, first).clamp(0, 1), _applied(self.target, second).clamp(0, 1)


def _applied(changes: list[Change], image: Tensor) -> Tensor:
    for change in changes:
        image = change(image)
    return image


def _kornia() -> Any:
    try:
        import kornia.augmentation
    except ImportError as error:
        raise MissingExtraError(
            "no-kornia", "Augmentation needs kornia: pip install 'loopwright[images]'."
        ) from error
    return kornia.augmentation


def pair_changes(settings: PairAugmentation, size: int) -> list[Change]:
    """What is done to both images, in this order; only what has a chance to happen."""
    s = settings
    changes = list[Change]()
    if s.h_flip_chance:
        changes.append(_through(_kornia().RandomHorizontalFlip(p=s.h_flip_chance)))
    if s.v_flip_chance:
        changes.append(_through(_kornia().RandomVerticalFlip(p=s.v_flip_chance)))
    if s.rot90_chance:
        changes.append(_sometimes(s.rot90_chance, _turned))
    if s.colorjitter_chance:
        changes.append(color_jitter(s, num_images=2))
    if s.elastic_transform_chance:
        kernel = min(63, size - 1 + size % 2)  # odd, and no larger than the image
        changes.append(
            _through(
                _kornia().RandomElasticTransform(
                    kernel_size=(kernel, kernel),
                    sigma=(s.elastic_transform_sigma,) * 2,
                    alpha=(s.elastic_transform_alpha,) * 2,
                    padding_mode="reflection",
                    p=s.elastic_transform_chance,
                )
            )
        )
    if s.optical_distortion_chance:
        limits = _range(s, "optical_distortion_*")
        is_fisheye = s.optical_distortion_mode == "fisheye"
        changes.append(
            _sometimes(
                s.optical_distortion_chance,
                lambda image: _distorted(image, _uniform(*limits), is_fisheye),
            )
        )
    if s.coarse_dropout_chance:
        holes = [_range(s, f"coarse_dropout_{part}_*") for part in ("holes", "height", "width")]
        changes.append(
            _sometimes(s.coarse_dropout_chance, lambda image: _with_holes(image, *holes))
        )
    return changes


def image_changes(settings: ImageAugmentation) -> list[Change]:
    """What is done to one image, in this order; only what has a chance to happen."""
    s = settings
    changes = list[Change]()
    if s.colorjitter_chance:
        changes.append(color_jitter(s))
    if s.gaussnoise_chance:
        noise = _range(s, "gaussnoise_*")
        changes.append(
            _sometimes(
                s.gaussnoise_chance,
                lambda image: image + torch.randn_like(image) * _uniform(*noise),
            )
        )
    if s.motionblur_chance:
        kernel = (3, s.motionblur_limit)
        blur = _kornia().RandomMotionBlur(kernel, (0.0, 360.0), (-1.0, 1.0), p=s.motionblur_chance)
        changes.append(_through(blur))
    if s.randgamma_chance:
        low, high = _range(s, "randgamma_*")
        changes.append(
            _through(_kornia().RandomGamma((low / 100, high / 100), p=s.randgamma_chance))
        )
    if s.grayscale_chance:
        weights = torch.full((3,), 1 / 3) if s.grayscale_method == "average" else None
        changes.append(
            _through(
                _kornia().RandomGrayscale(rgb_weights=weights, p=s.grayscale_chance), num_channels=3
            )
        )
    if s.compression_chance:
        low, high = _range(s, "compression_quality_*")
        jpeg = _kornia().RandomJPEG((float(low), float(high)), p=s.compression_chance)
        changes.append(_through(jpeg, num_channels=3))
    return changes


def color_jitter(settings: ColorJitter, num_images: int = 1) -> Change:
    """Kornia's, with the ranges of a config; the same for all images whose channels are in one
    picture."""
    ranges = {
        part: _range(settings, f"colorjitter_*_{part}")
        for part in ("brightness", "contrast", "saturation", "hue")
    }
    used = {
        part: limits
        for part, limits in ranges.items()
        if limits != ((0.0, 0.0) if part == "hue" else (1.0, 1.0))
    }
    jitter = _kornia().ColorJitter(
        **used, p=settings.colorjitter_chance, same_on_batch=num_images > 1
    )
    needs_colour = bool({"saturation", "hue"} & set(used))

    def change(picture: Tensor) -> Tensor:
        images = torch.stack(picture.chunk(num_images))
        return picture if needs_colour and images.shape[1] != 3 else torch.cat(list(jitter(images)))

    return change


def _range(settings: Any, name: str) -> tuple[float, float]:
    """The smallest and largest value of a setting; the star in its name is for min and max."""
    low, high = (getattr(settings, name.replace("*", end)) for end in ("min", "max"))
    if low > high:
        raise ConfigurationError(
            "empty-range",
            f"dataloader.augmentations: {name.replace('*', 'min')} is {low}, above "
            f"{name.replace('*', 'max')} ({high}).",
        )
    return low, high


def _through(augmentation: Any, num_channels: int | None = None) -> Change:
    """A kornia augmentation of one image; kinds that are about colours leave other images alone."""

    def change(image: Tensor) -> Tensor:
        if num_channels not in (None, len(image)):
            return image
        result: Tensor = augmentation(image.unsqueeze(0))
        return result.squeeze(0)

    return change


def _sometimes(chance: float, change: Change) -> Change:
    return lambda image: change(image) if torch.rand(()).item() < chance else image


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _whole(low: int, end: int) -> int:
    return int(torch.randint(low, end, ()).item())


def _turned(image: Tensor) -> Tensor:
    return torch.rot90(image, _whole(1, 4), (1, 2))


def _distorted(image: Tensor, strength: float, is_fisheye: bool) -> Tensor:
    """The image through a lens: pixels are taken from further out or in, the more so the further
    out they are."""
    height, width = image.shape[1:]
    down, across = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    radius = (down.square() + across.square()).sqrt()
    bent = torch.atan(radius) if is_fisheye else radius
    bent = bent * (1 + strength * bent.square() + strength * bent.pow(4))
    factor = torch.where(radius > 0, bent / radius.clamp(min=1e-6), torch.ones(()))
    grid = torch.stack([across * factor, down * factor], dim=-1).unsqueeze(0)
    return F.grid_sample(
        image.unsqueeze(0), grid, padding_mode="reflection", align_corners=True
    ).squeeze(0)


def _with_holes(
    image: Tensor,
    counts: tuple[float, float],
    heights: tuple[float, float],
    widths: tuple[float, float],
) -> Tensor:
    height, width = image.shape[1:]
    image = image.clone()
    for _ in range(_whole(int(counts[0]), int(counts[1]) + 1)):
        tall = max(1, round(height * _uniform(*heights)))
        wide = max(1, round(width * _uniform(*widths)))
        top = _whole(0, height - tall + 1)
        left = _whole(0, width - wide + 1)
        image[:, top : top + tall, left : left + wide] = 0
    return image


class PairedDataset(Dataset[tuple[Tensor, Tensor]]):
    """(input, target) of every image file in a directory, in the order of their names, with values
    in -1...1.

    A is the left half of a file and B the right one; `dataloader.direction` says which is the
    input. With `is_train` they are augmented; by default those of a directory named train are. All
    that is random in it comes from torch's generator, so that the loop can derive it from the seed,
    the epoch and the image.
    """

    def __init__(
        self, config: Config, root_dir: str | os.PathLike[str], is_train: bool | None = None
    ) -> None:
        self.root = Path(root_dir)
        self.is_train = self.root.name == "train" if is_train is None else is_train
        settings = config.dataloader
        self.load_size = settings.load.load_size
        self.crop_size = settings.load.crop_size
        self.num_channels = settings.load.input_nc
        self.is_reversed = settings.direction == "BtoA"
        if self.crop_size > self.load_size:
            raise ConfigurationError(
                "crop-size",
                f"dataloader.load.crop_size is {self.crop_size}, larger than "
                f"dataloader.load.load_size ({self.load_size}).",
            )
        self.transform = (
            PairTransform(settings.augmentations, self.crop_size) if self.is_train else None
        )
        self.paths = _image_paths(self.root)

    @property
    def list_files(self) -> list[Path]:
        """The image files; the name that the published program has for `paths`."""
        return self.paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        size = self.load_size
        image = read_image(self.paths[index], (2 * size, size), self.num_channels)
        first, second = self._cropped(image[:, :, :size], image[:, :, size:])
        if self.is_reversed:
            first, second = second, first
        first = first.float() / 255
        second = second.float() / 255
        if self.transform is not None:
            first, second = self.transform(first, second)
        return first * 2 - 1, second * 2 - 1

    def _cropped(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The same part of both: anywhere for training, the middle otherwise."""
        room = self.load_size - self.crop_size
        if room == 0:
            return first, second
        top, left = (
            torch.randint(room + 1, (2,)).tolist() if self.is_train else (room // 2, room // 2)
        )
        part = (slice(None), slice(top, top + self.crop_size), slice(left, left + self.crop_size))
        return first[part], second[part]


def _image_paths(root: Path) -> list[Path]:
    files = root.iterdir() if root.is_dir() else ()
    paths = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(
            "no-images",
            f"There are no images in {root}: dataloader.dataroot needs the folders train, val and "
            "(for tests) test, with image files that have A and B side by side; image files end in "
            f"{', '.join(SUFFIXES)}.",
        )
    return paths

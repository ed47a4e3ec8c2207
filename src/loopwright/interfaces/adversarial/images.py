"""Images: pairs from files in which the two are side by side, their augmentation, and the pictures
and curves that a training shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from ...checkpoint.atomic import staged_file
from ...errors import ConfigurationError, DataError, MissingExtraError
from ...metrics.media import encode_png
from ...metrics.media import read_image as as_pixels
from .config import AdversarialConfig, ColorJitter, ImageAugmentation, PairAugmentation

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
PARTS = ("input", "output", "target")
Change = Callable[[Tensor], Tensor]


def read_image(path: Path, size: tuple[int, int], num_channels: int) -> Tensor:
    """An image scaled to (width, height), as channels of bytes."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "no-pillow", "Image files need Pillow: pip install 'loopwright[images]'."
        ) from error
    with Image.open(path) as file:
        image = file.convert("L" if num_channels == 1 else "RGB")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(image).copy())
    return pixels.unsqueeze(0) if num_channels == 1 else pixels.permute(2, 0, 1)


def write_image(path: Path, image: Tensor) -> None:
    """Write an image with values in -1...1 as PNG; a reader finds a complete picture or the one
    before."""
    pixels, _ = as_pixels("write_image", image.detach(), (-1.0, 1.0))
    with staged_file(path) as staging:
        staging.write_bytes(encode_png(pixels))


def write_triplet(folder: Path, begin: str, images: Iterable[Tensor]) -> list[Path]:
    """Write input, output and target to files whose names begin like that; return the paths."""
    paths = [folder / f"{begin}_{part}.png" for part in PARTS]
    for path, image in zip(paths, images, strict=True):
        write_image(path, image)
    return paths


# Augmentation


def _kornia(name: str, chance: float, *args: Any, **options: Any) -> list[Change]:
    """One of kornia's augmentations; none without a chance."""
    if not chance:
        return []
    try:
        import kornia.augmentation as augmentations
    except ImportError as error:
        raise MissingExtraError(
            "no-kornia", "Augmentation needs kornia: pip install 'loopwright[images]'."
        ) from error
    return [getattr(augmentations, name)(*args, p=chance, keepdim=True, **options)]


def _sometimes(chance: float, change: Change) -> list[Change]:
    """A change that is made with this chance; none without a chance."""
    if not chance:
        return []
    return [lambda image: change(image) if torch.rand(()).item() < chance else image]


def pair_changes(s: PairAugmentation, size: int, num_channels: int = 3) -> list[Change]:
    """What is done to both images, in this order; only what has a chance to happen.

    It is done to one picture that has the channels of both, so they cannot get out of step.
    """
    kernel = min(63, size - 1 + size % 2)  # odd, and no larger than the image
    sigma = s.elastic_transform_sigma
    alpha = s.elastic_transform_alpha
    return [
        *_kornia("RandomHorizontalFlip", s.h_flip_chance),
        *_kornia("RandomVerticalFlip", s.v_flip_chance),
        *_kornia("RandomRotation90", s.rot90_chance, (1, 3)),
        *color_jitter(s, num_channels),
        *_kornia(
            "RandomElasticTransform",
            s.elastic_transform_chance,
            (kernel, kernel),
            (sigma, sigma),
            (alpha, alpha),
            padding_mode="reflection",
        ),
        *_sometimes(s.optical_distortion_chance, lambda image: _distorted(image, s)),
        *_sometimes(s.coarse_dropout_chance, lambda image: _with_holes(image, s)),
    ]


def image_changes(s: ImageAugmentation, num_channels: int = 3) -> list[Change]:
    """What is done to one image, in this order; only what has a chance to happen."""
    changes = [
        *color_jitter(s, num_channels),
        *_sometimes(s.gaussnoise_chance, lambda image: _with_noise(image, s)),
        *_kornia(
            "RandomMotionBlur",
            s.motionblur_chance,
            (3, s.motionblur_limit),
            (0.0, 360.0),
            (-1.0, 1.0),
        ),
        *_kornia("RandomGamma", s.randgamma_chance, (s.randgamma_min / 100, s.randgamma_max / 100)),
    ]
    if num_channels == 3:  # a grey image has no colours to change
        weights = torch.full((3,), 1 / 3) if s.grayscale_method == "average" else None
        quality = (float(s.compression_quality_min), float(s.compression_quality_max))
        changes += _kornia("RandomGrayscale", s.grayscale_chance, weights)
        changes += _kornia("RandomJPEG", s.compression_chance, quality)
    return changes


def color_jitter(s: ColorJitter, num_channels: int) -> list[Change]:
    """Kornia's, with the ranges of a config; the same for all images whose channels are in one
    picture."""
    if not s.colorjitter_chance:
        return []
    ranges = {
        "brightness": (s.colorjitter_min_brightness, s.colorjitter_max_brightness),
        "contrast": (s.colorjitter_min_contrast, s.colorjitter_max_contrast),
    }
    if num_channels == 3:
        ranges["saturation"] = (s.colorjitter_min_saturation, s.colorjitter_max_saturation)
        ranges["hue"] = (s.colorjitter_min_hue, s.colorjitter_max_hue)
    (jitter,) = _kornia("ColorJitter", s.colorjitter_chance, same_on_batch=True, **ranges)

    def change(picture: Tensor) -> Tensor:
        images = picture.reshape(-1, num_channels, *picture.shape[1:])
        return jitter(images).reshape(picture.shape)

    return [change]


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _with_noise(image: Tensor, s: ImageAugmentation) -> Tensor:
    return image + torch.randn_like(image) * _uniform(s.gaussnoise_min, s.gaussnoise_max)


def _distorted(image: Tensor, s: PairAugmentation) -> Tensor:
    """The image through a lens: pixels are taken from further out or in, the more so the further
    out they are."""
    strength = _uniform(s.optical_distortion_min, s.optical_distortion_max)
    height, width = image.shape[1:]
    down = torch.linspace(-1, 1, height).unsqueeze(1).expand(height, width)
    across = torch.linspace(-1, 1, width).expand(height, width)
    radius = (down.square() + across.square()).sqrt().clamp(min=1e-6)
    bent = torch.atan(radius) if s.optical_distortion_mode == "fisheye" else radius
    factor = bent * (1 + strength * bent.square() + strength * bent.pow(4)) / radius
    grid = torch.stack([across * factor, down * factor], dim=-1)
    return F.grid_sample(image[None], grid[None], padding_mode="reflection", align_corners=True)[0]


def _with_holes(image: Tensor, s: PairAugmentation) -> Tensor:
    image = image.clone()
    height, width = image.shape[1:]
    for _ in range(round(_uniform(s.coarse_dropout_holes_min, s.coarse_dropout_holes_max))):
        tall = _uniform(s.coarse_dropout_height_min, s.coarse_dropout_height_max)
        wide = _uniform(s.coarse_dropout_width_min, s.coarse_dropout_width_max)
        image[:, _part(height, tall), _part(width, wide)] = 0
    return image


def _part(length: int, share: float) -> slice:
    """This share of a length, at least 1, anywhere in it."""
    size = max(1, round(length * share))
    start = round(_uniform(0, length - size))
    return slice(start, start + size)


# Pairs


class PairedDataset(Dataset[tuple[Tensor, Tensor]]):
    """(input, target) of every image file in a directory, in the order of their names, with values
    in -1...1.

    A is the left half of a file and B the right one; `dataloader.direction` says which is the
    input. With `is_train` they are augmented; by default those of a directory named train are. All
    that is random in it comes from torch's generator, so that the loop can derive it from the seed,
    the epoch and the image.
    """

    def __init__(
        self,
        config: AdversarialConfig,
        root_dir: str | os.PathLike[str],
        is_train: bool | None = None,
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
        # what is done to both images, to the input and to the target
        self.changes: tuple[list[Change], ...] = ([], [], [])
        if self.is_train:
            given = settings.augmentations
            self.changes = (
                pair_changes(given.both, self.crop_size, self.num_channels),
                image_changes(given.input, self.num_channels),
                image_changes(given.target, self.num_channels),
            )
        files = self.root.iterdir() if self.root.is_dir() else ()
        self.list_files = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
        if not self.list_files:
            raise DataError(
                "no-images",
                f"There are no images in {self.root}: dataloader.dataroot needs the folders train, "
                "val and (for tests) test, with image files that have A and B side by side; image "
                f"files end in {', '.join(SUFFIXES)}.",
            )

    def __len__(self) -> int:
        return len(self.list_files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        size = self.load_size
        image = read_image(self.list_files[index], (2 * size, size), self.num_channels)
        left, right = image.chunk(2, dim=2)
        halves = [right, left] if self.is_reversed else [left, right]
        both = _applied(self.changes[0], self._cropped(torch.cat(halves)).float() / 255)
        first, second = both.chunk(2)
        first = _applied(self.changes[1], first).clamp(0, 1)
        second = _applied(self.changes[2], second).clamp(0, 1)
        return first * 2 - 1, second * 2 - 1

    def _cropped(self, picture: Tensor) -> Tensor:
        """A part of it: anywhere for training, the middle otherwise."""
        room = self.load_size - self.crop_size
        top = left = room // 2
        if self.is_train and room:
            top, left = torch.randint(room + 1, (2,)).tolist()
        return picture[:, top : top + self.crop_size, left : left + self.crop_size]


def _applied(changes: list[Change], image: Tensor) -> Tensor:
    for change in changes:
        image = change(image)
    return image


# Showing


class LiveView:
    """Takes the calls of the published program to its Visdom client: the newest triplet and the
    loss curves are files in the experiment's folder `live`.

    Training does not wait for the thread, if one was started: what comes while it writes is written
    with what comes next, or at the end. An error in it is raised there. Without a directory nothing
    is written.
    """

    def __init__(self, directory: Path | None, image_size: int) -> None:
        self.directory = directory
        self.image_size = image_size
        self.points: dict[str, list[tuple[float, float]]] = {}
        self._images: list[Tensor] = []
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def update_images(
        self, x: Tensor, y: Tensor, z: Tensor, title: str = "", image_size: int | None = None
    ) -> None:
        """Show the first image of three batches side by side."""
        self.image_size = image_size or self.image_size
        if self.directory is not None:
            self._images = [batch[0].detach().to("cpu", copy=True) for batch in (x, y, z)]
            self._write()

    def update_loss_graphs(
        self,
        graph_step: float,
        losses_G: Mapping[str, float],  # noqa: N803
        losses_D: Mapping[str, float],  # noqa: N803
    ) -> None:
        """Add a point at `graph_step`, in epochs, to the curve of each loss."""
        for name, value in (*losses_G.items(), *losses_D.items()):
            self.points.setdefault(name, []).append((float(graph_step), float(value)))
        self._write()

    def clear_env(self) -> None:
        """Delete the curves."""
        self.points.clear()

    def start_thread(self) -> None:
        """Let a thread write from now on."""
        self._thread = self._thread or ThreadPoolExecutor(1, "loopwright-live")

    def stop_thread(self) -> None:
        """End the thread, and write what it has not."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
            self._write()

    def _write(self) -> None:
        if self._writing is not None and self._writing.done():
            writing = self._writing
            self._writing = None
            writing.result()
        if self._thread is None:
            self._write_files()
        elif self._writing is None:
            self._writing = self._thread.submit(self._write_files)

    def _write_files(self) -> None:
        if self.directory is None or not (self._images or self.points):
            return
        if self._images:
            picture = torch.cat(self._images, dim=2)
            scale = max(1, self.image_size // picture.shape[1])
            picture = picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
            write_image(self.directory / "images.png", picture)
        points = {name: list(line) for name, line in dict(self.points).items()}
        with staged_file(self.directory / "losses.json") as staging:
            staging.write_text(json.dumps(points))

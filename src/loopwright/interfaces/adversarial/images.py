"""Images: pairs from files in which the two are side by side, their augmentation, and the pictures
and curves that a training shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
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


# Augmentation


def _kornia() -> Any:
    try:
        import kornia.augmentation
    except ImportError as error:
        raise MissingExtraError(
            "no-kornia", "Augmentation needs kornia: pip install 'loopwright[images]'."
        ) from error
    return kornia.augmentation


def pair_changes(settings: PairAugmentation, size: int, num_channels: int = 3) -> list[Change]:
    """What is done to both images, in this order; only what has a chance to happen.

    It is done to one picture that has the channels of both, so they cannot get out of step.
    """
    s = settings
    changes = list[Change]()
    if s.h_flip_chance:
        changes.append(_kornia().RandomHorizontalFlip(p=s.h_flip_chance, keepdim=True))
    if s.v_flip_chance:
        changes.append(_kornia().RandomVerticalFlip(p=s.v_flip_chance, keepdim=True))
    if s.rot90_chance:
        changes.append(_kornia().RandomRotation90((1, 3), p=s.rot90_chance, keepdim=True))
    if s.colorjitter_chance:
        changes.append(color_jitter(s, num_channels))
    if s.elastic_transform_chance:
        kernel = min(63, size - 1 + size % 2)  # odd, and no larger than the image
        changes.append(
            _kornia().RandomElasticTransform(
                kernel_size=(kernel, kernel),
                sigma=(s.elastic_transform_sigma, s.elastic_transform_sigma),
                alpha=(s.elastic_transform_alpha, s.elastic_transform_alpha),
                padding_mode="reflection",
                p=s.elastic_transform_chance,
                keepdim=True,
            )
        )
    if s.optical_distortion_chance:
        changes.append(_sometimes(s.optical_distortion_chance, lambda image: _distorted(image, s)))
    if s.coarse_dropout_chance:
        changes.append(_sometimes(s.coarse_dropout_chance, lambda image: _with_holes(image, s)))
    return changes


def image_changes(settings: ImageAugmentation, num_channels: int = 3) -> list[Change]:
    """What is done to one image, in this order; only what has a chance to happen."""
    s = settings
    changes = list[Change]()
    if s.colorjitter_chance:
        changes.append(color_jitter(s, num_channels))
    if s.gaussnoise_chance:
        changes.append(_sometimes(s.gaussnoise_chance, lambda image: _with_noise(image, s)))
    if s.motionblur_chance:
        kernel = (3, s.motionblur_limit)
        blur = _kornia().RandomMotionBlur
        changes.append(blur(kernel, (0.0, 360.0), (-1.0, 1.0), p=s.motionblur_chance, keepdim=True))
    if s.randgamma_chance:
        gamma = (s.randgamma_min / 100, s.randgamma_max / 100)
        changes.append(_kornia().RandomGamma(gamma, p=s.randgamma_chance, keepdim=True))
    if s.grayscale_chance and num_channels == 3:
        weights = torch.full((3,), 1 / 3) if s.grayscale_method == "average" else None
        changes.append(_kornia().RandomGrayscale(weights, p=s.grayscale_chance, keepdim=True))
    if s.compression_chance and num_channels == 3:
        quality = (float(s.compression_quality_min), float(s.compression_quality_max))
        changes.append(_kornia().RandomJPEG(quality, p=s.compression_chance, keepdim=True))
    return changes


def color_jitter(settings: ColorJitter, num_channels: int) -> Change:
    """Kornia's, with the ranges of a config; the same for all images whose channels are in one
    picture."""
    s = settings
    ranges = {
        "brightness": (s.colorjitter_min_brightness, s.colorjitter_max_brightness),
        "contrast": (s.colorjitter_min_contrast, s.colorjitter_max_contrast),
    }
    if num_channels == 3:  # a grey image has no colours to change
        ranges["saturation"] = (s.colorjitter_min_saturation, s.colorjitter_max_saturation)
        ranges["hue"] = (s.colorjitter_min_hue, s.colorjitter_max_hue)
    jitter = _kornia().ColorJitter(**ranges, p=s.colorjitter_chance, same_on_batch=True)

    def change(picture: Tensor) -> Tensor:
        images = picture.reshape(-1, num_channels, *picture.shape[1:])
        changed: Tensor = jitter(images)
        return changed.reshape(picture.shape)

    return change


def _sometimes(chance: float, change: Change) -> Change:
    return lambda image: change(image) if torch.rand(()).item() < chance else image


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _with_noise(image: Tensor, settings: ImageAugmentation) -> Tensor:
    return image + torch.randn_like(image) * _uniform(
        settings.gaussnoise_min, settings.gaussnoise_max
    )


def _distorted(image: Tensor, settings: PairAugmentation) -> Tensor:
    """The image through a lens: pixels are taken from further out or in, the more so the further
    out they are."""
    strength = _uniform(settings.optical_distortion_min, settings.optical_distortion_max)
    height, width = image.shape[1:]
    down, across = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    radius = (down.square() + across.square()).sqrt().clamp(min=1e-6)
    bent = torch.atan(radius) if settings.optical_distortion_mode == "fisheye" else radius
    bent = bent * (1 + strength * bent.square() + strength * bent.pow(4))
    grid = torch.stack([across, down], dim=-1) * (bent / radius).unsqueeze(-1)
    bent_image = F.grid_sample(
        image.unsqueeze(0), grid.unsqueeze(0), padding_mode="reflection", align_corners=True
    )
    return bent_image.squeeze(0)


def _with_holes(image: Tensor, settings: PairAugmentation) -> Tensor:
    s = settings
    height, width = image.shape[1:]
    image = image.clone()
    for _ in range(round(_uniform(s.coarse_dropout_holes_min, s.coarse_dropout_holes_max))):
        tall = max(
            1, round(height * _uniform(s.coarse_dropout_height_min, s.coarse_dropout_height_max))
        )
        wide = max(
            1, round(width * _uniform(s.coarse_dropout_width_min, s.coarse_dropout_width_max))
        )
        top = round(_uniform(0, height - tall))
        left = round(_uniform(0, width - wide))
        image[:, top : top + tall, left : left + wide] = 0
    return image


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
        self.changes: tuple[list[Change], list[Change], list[Change]] = ([], [], [])
        if self.is_train:
            augmentations = settings.augmentations
            self.changes = (
                pair_changes(augmentations.both, self.crop_size, self.num_channels),
                image_changes(augmentations.input, self.num_channels),
                image_changes(augmentations.target, self.num_channels),
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
        halves = [image[:, :, size:], image[:, :, :size]]
        if not self.is_reversed:
            halves.reverse()
        both = _applied(self.changes[0], self._cropped(torch.cat(halves)).float() / 255)
        first, second = both.chunk(2)
        first = _applied(self.changes[1], first).clamp(0, 1)
        second = _applied(self.changes[2], second).clamp(0, 1)
        return first * 2 - 1, second * 2 - 1

    def _cropped(self, picture: Tensor) -> Tensor:
        """A part of it: anywhere for training, the middle otherwise."""
        room = self.load_size - self.crop_size
        if room == 0:
            return picture
        top = left = room // 2
        if self.is_train:
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

    Training does not wait for the thread, if one was started; an error in it is raised at the next
    call or when it is stopped. Without a directory nothing is written.
    """

    def __init__(self, directory: Path | None, image_size: int) -> None:
        self.directory = directory
        self.image_size = image_size
        self.points: dict[str, list[tuple[float, float]]] = {}
        self._images: list[Tensor] = []
        self._is_written = True  # the newest there is
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def update_images(
        self, x: Tensor, y: Tensor, z: Tensor, title: str = "", image_size: int | None = None
    ) -> None:
        """Show the first image of three batches side by side."""
        if self.directory is not None:
            self.image_size = image_size or self.image_size
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
        if self.directory is not None:
            self._write()

    def clear_env(self) -> None:
        """Delete the curves."""
        self.points.clear()

    def start_thread(self) -> None:
        """Let a thread write from now on."""
        self._thread = self._thread or ThreadPoolExecutor(1, "loopwright-live")

    def stop_thread(self) -> None:
        """End the thread when everything is written, or raise what went wrong."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
            self._check()

    def _check(self) -> None:
        """Raise what went wrong in the thread."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    def _write(self) -> None:
        self._is_written = False
        if self._thread is None:
            self._write_files()
        else:
            self._check()
            self._writing = self._thread.submit(self._write_files)

    def _write_files(self) -> None:
        if self._is_written or self.directory is None:
            return  # written in the place of an older one
        self._is_written = True
        images = self._images
        points = {name: list(line) for name, line in dict(self.points).items()}
        if images:
            picture = torch.cat(images, dim=2)
            scale = max(1, self.image_size // images[0].shape[-1])
            picture = picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
            write_image(self.directory / "images.png", picture)
        with staged_file(self.directory / "losses.json") as staging:
            staging.write_text(json.dumps(points))

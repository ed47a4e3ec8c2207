"""Pairs of images from files in which the two are side by side."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...errors import ConfigurationError, DataError
from .augmentation import PairTransform
from .config import Config
from .images import SUFFIXES, read_image


class PairedDataset(Dataset[tuple[Tensor, Tensor]]):
    """(input, target) of every image file in a directory, in the order of their names, with values in -1...1.

    A is the left half of a file and B the right one; `dataloader.direction` says which is the input. With `is_train`
    they are augmented; by default those of a directory named train are. All that is random in it comes from
    torch's generator, so that the loop can derive it from the seed, the epoch and the image.
    """

    def __init__(self, config: Config, root_dir: str | os.PathLike[str], is_train: bool | None = None) -> None:
        self.root = Path(root_dir)
        self.is_train = self.root.name == "train" if is_train is None else is_train
        settings = config.dataloader
        self.load_size, self.crop_size = settings.load.load_size, settings.load.crop_size
        self.num_channels = settings.load.input_nc
        self.is_reversed = settings.direction == "BtoA"
        if self.crop_size > self.load_size:
            raise ConfigurationError(
                f"dataloader.load.crop_size is {self.crop_size}, larger than dataloader.load.load_size "
                f"({self.load_size}): nothing that large can be cut from an image. Set crop_size to "
                f"{self.load_size} or less."
            )
        self.transform = PairTransform(settings.augmentations, self.crop_size) if self.is_train else None
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
        first, second = first.float() / 255, second.float() / 255
        if self.transform is not None:
            first, second = self.transform(first, second)
        return first * 2 - 1, second * 2 - 1

    def _cropped(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The same part of both: anywhere for training, the middle otherwise."""
        room = self.load_size - self.crop_size
        if room == 0:
            return first, second
        top, left = torch.randint(room + 1, (2,)).tolist() if self.is_train else (room // 2, room // 2)
        part = (slice(None), slice(top, top + self.crop_size), slice(left, left + self.crop_size))
        return first[part], second[part]


def _image_paths(root: Path) -> list[Path]:
    if not root.is_dir():
        raise DataError(
            f"There is no directory {root}: dataloader.dataroot needs the folders train, val and (for tests) test, "
            "with image files that have A and B side by side."
        )
    paths = sorted(path for path in root.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"There are no images in {root}; image files end in {', '.join(SUFFIXES)}.")
    return paths

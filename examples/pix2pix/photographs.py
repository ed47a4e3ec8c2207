"""Pairs of edges and photographs, cut from real photographs that come inside two Python packages;
nothing is fetched.

Every photograph is divided into squares. Of ten squares two are held out for the test and one for
looking at examples during training; patches are cut from within a square, so no pixel that is
tested on was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data, filters
from sklearn.datasets import load_sample_image

SIZE = 32  # of a patch
SIDE = 64  # of a square
SPLITS = ("train", "val", "test")


def photographs() -> dict[str, np.ndarray]:
    """Photographs as bytes of red, green and blue."""
    return {
        "astronaut": data.astronaut(),
        "coffee": data.coffee(),
        "cat": data.cat(),
        "rocket": data.rocket(),
        "motorcycle": data.stereo_motorcycle()[0],
        "china": load_sample_image("china.jpg"),
        "flower": load_sample_image("flower.jpg"),
    }


def edges_of(photo: np.ndarray) -> np.ndarray:
    """A drawing: the strongest edges in the photograph's colours, on white."""
    strength = np.max([filters.sobel(photo[..., channel]) for channel in range(3)], axis=0)
    is_edge = strength > np.quantile(strength, 0.75)
    return np.where(is_edge[..., None], photo, np.uint8(255))


def squares(photo: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The squares of a photograph, each with what it is for."""
    height, width = photo.shape[:2]
    corners = [
        (top, left)
        for top in range(0, height - SIDE + 1, SIDE)
        for left in range(0, width - SIDE + 1, SIDE)
    ]
    for number, (top, left) in enumerate(corners):
        split = {2: "test", 4: "val", 7: "test"}.get(number % 10, "train")
        yield split, photo[top : top + SIDE, left : left + SIDE]


def patches(picture: np.ndarray, stride: int) -> Iterator[np.ndarray]:
    for top in range(0, picture.shape[0] - SIZE + 1, stride):
        for left in range(0, picture.shape[1] - SIZE + 1, stride):
            yield picture[top : top + SIZE, left : left + SIZE]


def write_pairs(root: Path, shrink: int = 2, limit: int | None = None) -> dict[str, int]:
    """Write files with edges on the left and the photograph on the right; how many there are of
    each split.

    Photographs are shrunk first, so that a patch shows more than a texture. `limit` is for a quick
    try.
    """
    counts = dict.fromkeys(SPLITS, 0)
    for name in SPLITS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for photo_name, photo in photographs().items():
        small = np.asarray(Image.fromarray(photo).reduce(shrink))
        numbers = dict.fromkeys(SPLITS, 0)
        for split, square in squares(np.concatenate([edges_of(small), small], axis=2)):
            for pair in patches(square, SIZE // 2 if split == "train" else SIZE):
                if limit is None or numbers[split] < limit:
                    picture = np.concatenate([pair[..., :3], pair[..., 3:]], axis=1)
                    Image.fromarray(picture).save(
                        root / split / f"{photo_name}-{numbers[split]:03d}.png"
                    )
                    numbers[split] += 1
        counts = {split: counts[split] + numbers[split] for split in SPLITS}
    return counts

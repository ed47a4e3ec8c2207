"""Pairs of images: how they are cut from files, and that input and target are augmented in step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from loopwright.data.open import open_stream
from loopwright.errors import MissingExtraError
from loopwright.interfaces.adversarial import PairedDataset, Trainer, load_config

from .runs import SIZE, tiny

PAIRED = ("h_flip", "v_flip", "rot90", "elastic_transform", "optical_distortion", "coarse_dropout")
EVERYTHING = {f"{name}_chance": 0.5 for name in PAIRED}
SINGLE = ("colorjitter", "gaussnoise", "motionblur", "randgamma", "grayscale", "compression")
COLOURS = {f"{name}_chance": 1.0 for name in SINGLE}


def dataset(
    data: Path, *, is_train: bool | None = True, folder: str = "train", **groups: Any
) -> PairedDataset:
    """The tiny images, whose target is the negative of the input; nothing is augmented unless
    said."""
    groups = {"both": {"h_flip_chance": 0.0} | groups.pop("both", {}), **groups}
    load = {"load_size": SIZE, "crop_size": SIZE} | groups.pop("load", {})
    loader = {"load": load, "direction": groups.pop("direction", "AtoB"), "augmentations": groups}
    return PairedDataset(load_config({"dataloader": loader}), data / folder, is_train)


def test_the_left_half_is_the_input_and_the_right_one_the_target(data: Path):
    x, y = dataset(data)[1]
    pixels = torch.from_numpy(np.asarray(Image.open(data / "train" / "01.png")).copy()).permute(
        2, 0, 1
    )
    torch.testing.assert_close(x, pixels[:, :, :SIZE] / 127.5 - 1)
    torch.testing.assert_close(y, pixels[:, :, SIZE:] / 127.5 - 1)
    a, b = dataset(data, direction="BtoA")[1]
    assert torch.equal(x, b)
    assert torch.equal(y, a)
    grey, _ = dataset(data, load={"input_nc": 1}, both={"h_flip_chance": 1.0})[1]
    assert grey.shape == (1, SIZE, SIZE)


@pytest.mark.parametrize(
    "both",
    [
        {"h_flip_chance": 1.0},
        {"v_flip_chance": 1.0},
        {"rot90_chance": 1.0},
        {
            "elastic_transform_chance": 1.0,
            "elastic_transform_sigma": 4.0,
            "elastic_transform_alpha": 4.0,
        },
        {
            "optical_distortion_chance": 1.0,
            "optical_distortion_min": 0.2,
            "optical_distortion_max": 0.4,
        },
        {"optical_distortion_chance": 1.0, "optical_distortion_mode": "fisheye"},
    ],
    ids=lambda both: "-".join(key.removesuffix("_chance") for key in both),
)
def test_input_and_target_are_changed_in_step(data: Path, both: dict[str, float]):
    plain, changed = dataset(data), dataset(data, both=both)
    for index in range(3):
        x, y = changed[index]
        # still each other's negatives, pixel by pixel
        torch.testing.assert_close(x, -y, atol=1e-5, rtol=0)
        assert (x - plain[index][0]).abs().mean() > 0.05


def test_holes_are_in_the_same_places_of_both(data: Path):
    settings = {
        "coarse_dropout_chance": 1.0,
        "coarse_dropout_holes_min": 2,
        "coarse_dropout_holes_max": 2,
    }
    x, y = dataset(data, both=settings)[0]
    holes = (x == -1) & (y == -1)
    assert torch.equal(holes, (x + y).abs() > 1e-5)
    assert holes.any()


def test_both_are_cropped_at_the_same_place(data: Path):
    cropped = dataset(data, load={"crop_size": SIZE - 6})
    x, y = cropped[0]
    assert x.shape == (3, SIZE - 6, SIZE - 6)
    torch.testing.assert_close(x, -y, atol=1e-6, rtol=0)
    assert any(not torch.equal(cropped[0][0], x) for _ in range(8))


@pytest.mark.parametrize("name", COLOURS)
def test_what_is_for_the_input_leaves_the_target_alone(data: Path, name: str):
    settings = {name: 1.0, "compression_quality_min": 5, "compression_quality_max": 10}
    (x, y), (plain_x, plain_y) = dataset(data, input=settings)[0], dataset(data)[0]
    torch.testing.assert_close(y, plain_y)
    assert not torch.allclose(x, plain_x, atol=1e-3)
    assert x.abs().max() <= 1


@pytest.mark.parametrize("loader_type", ["val", "test"])
def test_images_that_are_not_for_training_are_not_augmented(
    data: Path, tmp_path: Path, loader_type: str
):
    chances = dict.fromkeys(EVERYTHING, 1.0)
    config = tiny(data, tmp_path)
    config["dataloader"] |= {
        "augmentations": {"both": chances, "input": COLOURS},
        "load": {"load_size": 20, "crop_size": 16},
    }
    trainer = Trainer(config, quicksetup=False)
    held_out = trainer.build_dataloader(loader_type).dataset
    plain = dataset(data, is_train=False, folder=loader_type, load={"load_size": 20})
    for index in range(len(held_out)):
        assert torch.equal(held_out[index][0], plain[index][0])
        assert torch.equal(held_out[index][1], plain[index][1])
    assert not torch.equal(
        trainer.build_dataloader("train").dataset[0][0], dataset(data, load={"load_size": 20})[0][0]
    )


def test_augmentation_does_not_depend_on_the_number_of_workers(data: Path):
    augmented = dataset(data, both=EVERYTHING, input={"gaussnoise_chance": 0.5})
    epochs = []
    for num_workers in (0, 2):
        torch.manual_seed(num_workers)
        stream = open_stream(
            DataLoader(augmented, 2, shuffle=True, num_workers=num_workers), seed=3, shuffle=True
        )
        stream.begin(1)
        epochs.append(torch.cat([torch.cat(batch.value) for batch in stream]))
        stream.close()
    assert torch.equal(*epochs)


def test_nothing_is_imported_for_augmentation_that_does_not_happen(data: Path):
    assert dataset(data).changes == ([], [], [])


def test_augmentation_without_kornia_names_the_command(data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'loopwright\[images\]'"):
        dataset(data, both={"h_flip_chance": 1.0})
    dataset(data)[0]

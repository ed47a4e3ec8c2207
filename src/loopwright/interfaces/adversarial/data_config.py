"""The settings of images: their files, sizes and augmentations; and the base class of all groups of
settings."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from ...errors import ConfigurationError


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A setting with what it means, which the table in docs/adversarial.md shows."""
    return Field(default=default, description=meaning, **limits)


def chance(of: str) -> Any:
    return setting(0.0, f"The probability of {of}.", ge=0.0, le=1.0)


def without_effect(default: Any, why: str) -> Any:
    """A setting that configs of the published program have and that changes nothing here; `why` is
    said once."""
    return Field(default=default, description=f"No effect: {why}.", json_schema_extra={"why": why})


class Group(BaseModel):
    """A group of settings; unknown names and wrong types are mistakes, when it is read and when it
    is changed."""

    model_config = ConfigDict(
        extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False
    )

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            wrong = ", or: ".join(
                found["msg"][0].lower() + found["msg"][1:] for found in error.errors()
            )
            near = difflib.get_close_matches(name, type(self).model_fields, n=1)
            hint = f" Did you mean {near[0]}?" if near and near[0] != name else ""
            raise ConfigurationError(
                f"The setting {name} cannot be {value!r}: {wrong}.{hint}"
            ) from None


class ImageSizes(Group):
    """Images are scaled to `load_size` and cut to `crop_size`: at random for training, from the
    middle otherwise."""

    input_nc: Literal[1, 3] = setting(3, "Channels of both images: 1 is grey, 3 is colour.")
    load_size: int = setting(256, "Each image is scaled to this width and height.", ge=1)
    crop_size: int = setting(
        256, "Then cut to this size: at random in training, from the middle otherwise.", ge=1
    )


class ColorJitter(Group):
    """Brightness, contrast and saturation are factors, where 1 changes nothing; hue is turned by a
    part of a circle."""

    colorjitter_chance: float = chance("changing the colours")
    colorjitter_min_brightness: float = setting(0.8, "Smallest factor of the brightness.", ge=0.0)
    colorjitter_max_brightness: float = setting(1.2, "Largest factor of the brightness.", ge=0.0)
    colorjitter_min_contrast: float = setting(1.0, "Smallest factor of the contrast.", ge=0.0)
    colorjitter_max_contrast: float = setting(1.0, "Largest factor of the contrast.", ge=0.0)
    colorjitter_min_saturation: float = setting(1.0, "Smallest factor of the saturation.", ge=0.0)
    colorjitter_max_saturation: float = setting(1.0, "Largest factor of the saturation.", ge=0.0)
    colorjitter_min_hue: float = setting(
        0.0, "Smallest rotation of the hue, in turns.", ge=-0.5, le=0.5
    )
    colorjitter_max_hue: float = setting(
        0.0, "Largest rotation of the hue, in turns.", ge=-0.5, le=0.5
    )


class PairAugmentation(ColorJitter):
    """Augmentations of input and target together."""

    h_flip_chance: float = setting(
        0.5, "The probability of mirroring left and right.", ge=0.0, le=1.0
    )
    v_flip_chance: float = chance("mirroring top and bottom")
    rot90_chance: float = chance("turning by 90, 180 or 270 degrees")
    elastic_transform_chance: float = chance("an elastic distortion")
    elastic_transform_alpha: float = setting(1.0, "Its strength.")
    elastic_transform_sigma: float = setting(50.0, "Its smoothness, in pixels.", gt=0.0)
    optical_distortion_chance: float = chance("a lens distortion")
    optical_distortion_min: float = setting(-0.05, "Its smallest strength.")
    optical_distortion_max: float = setting(0.05, "Its largest strength.")
    optical_distortion_mode: Literal["camera", "fisheye"] = setting("camera", "The kind of lens.")
    coarse_dropout_chance: float = chance("erasing rectangles")
    coarse_dropout_holes_min: int = setting(1, "Smallest number of rectangles.", ge=0)
    coarse_dropout_holes_max: int = setting(2, "Largest number of rectangles.", ge=0)
    coarse_dropout_height_min: float = setting(
        0.1, "Smallest height, as a fraction of the image.", ge=0.0, le=1.0
    )
    coarse_dropout_height_max: float = setting(
        0.2, "Largest height, as a fraction of the image.", ge=0.0, le=1.0
    )
    coarse_dropout_width_min: float = setting(
        0.1, "Smallest width, as a fraction of the image.", ge=0.0, le=1.0
    )
    coarse_dropout_width_max: float = setting(
        0.2, "Largest width, as a fraction of the image.", ge=0.0, le=1.0
    )


class ImageAugmentation(ColorJitter):
    """What is done to one of the two images."""

    gaussnoise_chance: float = chance("adding noise")
    gaussnoise_min: float = setting(
        0.2, "Smallest standard deviation; pixels are from 0 to 1.", ge=0.0
    )
    gaussnoise_max: float = setting(0.44, "Largest standard deviation.", ge=0.0)
    motionblur_chance: float = chance("motion blur")
    motionblur_limit: int = setting(7, "Largest length of the blur, in pixels.", ge=3)
    randgamma_chance: float = chance("another gamma")
    randgamma_min: float = setting(80.0, "Smallest gamma, in percent.", gt=0.0)
    randgamma_max: float = setting(120.0, "Largest gamma, in percent.", gt=0.0)
    grayscale_chance: float = chance("removing the colours")
    grayscale_method: Literal["weighted_average", "average"] = setting(
        "weighted_average",
        "How a grey value is computed: as the eye weighs colours, or as their mean.",
    )
    compression_chance: float = chance("JPEG artefacts")
    compression_type: Literal["jpeg"] = setting("jpeg", "The kind of compression.")
    compression_quality_min: int = setting(99, "Lowest JPEG quality.", ge=1, le=100)
    compression_quality_max: int = setting(100, "Highest JPEG quality.", ge=1, le=100)


class Augmentations(Group):
    both: PairAugmentation = PairAugmentation()
    input: ImageAugmentation = ImageAugmentation()
    target: ImageAugmentation = ImageAugmentation()


class Masking(Group):
    """Losses that look at parts of the images only, which is not supported; `enable` must be
    false."""

    enable: bool = setting(
        False, "Losses of parts of the images, which are not supported: true is an error."
    )
    mask_directory: str = without_effect("", "masks are not supported")
    mask_channel: int = without_effect(0, "masks are not supported")
    combination_type: str = without_effect("single_channel", "masks are not supported")
    blend_channel: int = without_effect(1, "masks are not supported")
    blend_amount: float = without_effect(0.5, "masks are not supported")
    visdom_overlay_mask: bool = without_effect(True, "masks are not supported")
    visdom_mask_color: list[float] = without_effect([1.0, 0.0, 0.0], "masks are not supported")
    visdom_mask_opacity: float = without_effect(0.5, "masks are not supported")

    @field_validator("enable")
    @classmethod
    def _check(cls, is_wanted: bool) -> bool:
        if is_wanted:
            raise PydanticCustomError(
                "masking",
                "masked losses are not supported: set it to false, or override forward_G with "
                "such a loss",
            )
        return is_wanted


class Dataloader(Group):
    """`dataroot` has the folders train, val and test; in an image file A is the left half and B the
    right one."""

    dataroot: str = setting(
        "data", "The folder with the folders `train`, `val` and, for tests, `test`."
    )
    direction: Literal["AtoB", "BtoA"] = setting(
        "AtoB", "Which half is the input: A, the left one, or B."
    )
    batch_size: int = setting(1, "Pairs in a batch of all processes together.", ge=1)
    num_workers: int = setting(0, "Worker processes that read images.", ge=0)
    load: ImageSizes = ImageSizes()
    masking: Masking = Masking()
    augmentations: Augmentations = Augmentations()

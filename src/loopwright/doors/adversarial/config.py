"""The settings of an adversarial training: groups of values with defaults, checked for name and type."""

from __future__ import annotations

import difflib
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from ...errors import ConfigurationError
from ...runtime import Runtime
from ...runtime.base import is_launched
from ...runtime.environment import Launch

Chance = Field(default=0.0, ge=0.0, le=1.0)


def without_effect(default: Any, why: str) -> Any:
    """A setting that configs of the published program have and that changes nothing here; `why` is said once."""
    return Field(default=default, json_schema_extra={"why": why})


class Group(BaseModel):
    """A group of settings; unknown names and wrong types are mistakes, when it is read and when it is changed."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            wrong = ", or: ".join(found["msg"][0].lower() + found["msg"][1:] for found in error.errors())
            near = difflib.get_close_matches(name, type(self).model_fields, n=1)
            hint = f" Did you mean {near[0]}?" if near and near[0] != name else ""
            raise ConfigurationError(f"The setting {name} cannot be {value!r}: {wrong}.{hint}") from None


class Cudnn(Group):
    """What the published program passes to torch's cuDNN backend."""

    benchmark: bool = without_effect(True, "set torch.backends.cudnn.benchmark in the program")
    deterministic: bool = without_effect(False, "set torch.backends.cudnn.deterministic in the program")
    fp32_precision: str = without_effect("tf32", "set torch.backends.cudnn.fp32_precision in the program")


class Common(Group):
    """Where it runs and where it writes: `{output_directory}/{experiment_name}_v{experiment_version}`.

    `device` "auto" is the best there is. `precision` is "fp32", "bf16" or "fp16". `seed` decides over the networks'
    first weights, the order of the images and their augmentation; null leaves that to chance. An empty
    `experiment_name`, as templates have it, is the default.
    """

    device: str = "auto"
    gpu_ids: list[int] = [0]
    cudnn: Cudnn = Cudnn()
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int | None = 0
    output_directory: str = "runs"
    experiment_name: str = Field(default="pix2pix", min_length=1, pattern=r"^[^/\\]+$")
    experiment_version: int = Field(default=1, ge=1)

    @field_validator("experiment_name", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return "pix2pix" if value == "" else value


class ImageSizes(Group):
    """Images are scaled to `load_size` and cut to `crop_size`: at random for training, from the middle otherwise."""

    input_nc: Literal[1, 3] = 3
    load_size: int = Field(default=256, ge=1)
    crop_size: int = Field(default=256, ge=1)


class ColorJitter(Group):
    """Brightness, contrast and saturation are factors, where 1 changes nothing; hue is turned by a part of a circle."""

    colorjitter_chance: float = Chance
    colorjitter_min_brightness: float = Field(default=0.8, ge=0.0)
    colorjitter_max_brightness: float = Field(default=1.2, ge=0.0)
    colorjitter_min_contrast: float = Field(default=1.0, ge=0.0)
    colorjitter_max_contrast: float = Field(default=1.0, ge=0.0)
    colorjitter_min_saturation: float = Field(default=1.0, ge=0.0)
    colorjitter_max_saturation: float = Field(default=1.0, ge=0.0)
    colorjitter_min_hue: float = Field(default=0.0, ge=-0.5, le=0.5)
    colorjitter_max_hue: float = Field(default=0.0, ge=-0.5, le=0.5)


class PairAugmentation(ColorJitter):
    """Augmentations of input and target together."""

    h_flip_chance: float = Field(default=0.5, ge=0.0, le=1.0)
    v_flip_chance: float = Chance
    rot90_chance: float = Chance
    elastic_transform_chance: float = Chance
    elastic_transform_alpha: float = 1.0
    elastic_transform_sigma: float = Field(default=50.0, gt=0.0)
    optical_distortion_chance: float = Chance
    optical_distortion_min: float = -0.05
    optical_distortion_max: float = 0.05
    optical_distortion_mode: Literal["camera", "fisheye"] = "camera"
    coarse_dropout_chance: float = Chance
    coarse_dropout_holes_min: int = Field(default=1, ge=0)
    coarse_dropout_holes_max: int = Field(default=2, ge=0)
    coarse_dropout_height_min: float = Field(default=0.1, ge=0.0, le=1.0)
    coarse_dropout_height_max: float = Field(default=0.2, ge=0.0, le=1.0)
    coarse_dropout_width_min: float = Field(default=0.1, ge=0.0, le=1.0)
    coarse_dropout_width_max: float = Field(default=0.2, ge=0.0, le=1.0)


class ImageAugmentation(ColorJitter):
    """What is done to one of the two images."""

    gaussnoise_chance: float = Chance
    gaussnoise_min: float = Field(default=0.2, ge=0.0)
    gaussnoise_max: float = Field(default=0.44, ge=0.0)
    motionblur_chance: float = Chance
    motionblur_limit: int = Field(default=7, ge=3)
    randgamma_chance: float = Chance
    randgamma_min: float = Field(default=80.0, gt=0.0)
    randgamma_max: float = Field(default=120.0, gt=0.0)
    grayscale_chance: float = Chance
    grayscale_method: Literal["weighted_average", "average"] = "weighted_average"
    compression_chance: float = Chance
    compression_type: Literal["jpeg"] = "jpeg"
    compression_quality_min: int = Field(default=99, ge=1, le=100)
    compression_quality_max: int = Field(default=100, ge=1, le=100)


class Augmentations(Group):
    both: PairAugmentation = PairAugmentation()
    input: ImageAugmentation = ImageAugmentation()
    target: ImageAugmentation = ImageAugmentation()


class Masking(Group):
    """Losses that look at parts of the images only, which is not supported; `enable` must be false."""

    enable: bool = False
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
                "masking", "masked losses are not supported: set it to false, or override forward_G with such a loss"
            )
        return is_wanted


class Dataloader(Group):
    """`dataroot` has the folders train, val and test; in an image file A is the left half and B the right one."""

    dataroot: str = "data"
    direction: Literal["AtoB", "BtoA"] = "AtoB"
    batch_size: int = Field(default=1, ge=1)
    num_workers: int = Field(default=0, ge=0)
    load: ImageSizes = ImageSizes()
    masking: Masking = Masking()
    augmentations: Augmentations = Augmentations()


class Continuing(Group):
    """Whether to go on with an experiment: true, false, or "auto": if there is something to go on from.

    `load_epoch` is the number of a saved epoch, or "latest" for the newest state there is, inside an epoch too.
    An experiment whose networks, optimizers or settings were others is refused, unless `accept_changes`.
    """

    continue_train: bool | Literal["auto"] = False
    accept_changes: bool = False
    load_epoch: int | Literal["latest"] = "latest"


class LearningRate(Group):
    """`initial` for `epochs`, then in equal steps towards `target`, which the epoch after `epochs_decay` would have."""

    epochs: int = Field(default=100, ge=0)
    epochs_decay: int = Field(default=100, ge=0)
    initial: float = Field(default=0.0002, ge=0.0)
    target: float = Field(default=0.0, ge=0.0)


class AdamSettings(Group):
    beta1: float = Field(default=0.5, ge=0.0, lt=1.0)


class Generator(Group):
    """A UNet; `use_checkpointing` computes its blocks again in the backward pass, which needs less memory."""

    features: int = Field(default=64, ge=1)
    n_downs: int = Field(default=6, ge=0)
    block_type: Literal["UnetBlock", "ResidualUnetBlock"] = "UnetBlock"
    upsample_type: Literal["Transposed", "Bilinear"] = "Transposed"
    use_checkpointing: bool = False
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class DiscriminatorSettings(Group):
    n_layers: int = Field(default=3, ge=1)
    base_channels: int = Field(default=64, ge=1)
    max_channels: int = Field(default=512, ge=1)
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class LossWeights(Group):
    """Weights of the generator's losses; `vgg_weights` is a file of VGG19 weights, for the sub-specs with +vgg."""

    lambda_gan: float = 1.0
    lambda_l1: float = 100.0
    lambda_l2: float = 0.0
    lambda_sobel: float = 0.0
    lambda_laplacian: float = 0.0
    lambda_vgg: float = 0.0
    vgg_weights: str | None = None


class Training(Group):
    separate_lr_schedules: bool = False
    load: Continuing = Continuing()
    generator: Generator = Generator()
    discriminator: DiscriminatorSettings = DiscriminatorSettings()
    loss: LossWeights = LossWeights()


class Saving(Group):
    """Models and examples, which a training script saves between epochs, and resume points, which are automatic."""

    save_model: bool = True
    model_save_rate: int = Field(default=5, ge=1)
    auto_increment_version: bool = True
    save_examples: bool = True
    example_save_rate: int = Field(default=1, ge=1)
    num_examples: int = Field(default=1, ge=0)
    resume_minutes: float | None = Field(default=5.0, gt=0.0)
    resume_updates: int | None = Field(default=None, gt=0)


class Live(Group):
    """Pictures and loss curves of a running training, in the experiment's folder `live`.

    They take Visdom's place, which needs a server.
    """

    enable: bool = True
    env_name: str = without_effect("main", "pictures and curves are files in the experiment's folder live")
    server: str = without_effect("http://localhost", "pictures and curves are files in the experiment's folder live")
    port: int = without_effect(8097, "pictures and curves are files in the experiment's folder live")
    image_size: int = Field(default=400, ge=1)
    update_frequency: int = Field(default=40, ge=1)


class Visualizer(Group):
    visdom: Live = Live()


class Config(Group):
    """All settings. A subclass may add groups and values of its own; give it to `Trainer.config_type`.

    >>> from loopwright.doors.adversarial import Config
    >>> Config().train.loss.lambda_l1
    100.0
    """

    config_type: Literal["pix2pix"] = "pix2pix"
    common: Common = Common()
    dataloader: Dataloader = Dataloader()
    train: Training = Training()
    save: Saving = Saving()
    visualizer: Visualizer = Visualizer()


def runtime_of(settings: Common) -> Runtime | str | None:
    """What a config asks to run on: all the processes there are, a device, or None for the best there is."""
    device = settings.device
    _check_device(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(
            f"common.device is {device!r}, but torch finds no such device here: use 'cpu', or 'auto' for the best "
            "available device."
        )
    if is_launched():
        from ...runtime.distributed import DistributedRuntime

        return DistributedRuntime("ddp", device=_own_device(settings), precision=settings.precision)
    if device == "cuda" and settings.gpu_ids:
        return f"cuda:{settings.gpu_ids[0]}"
    return None if device == "auto" else device


def _check_device(device: str) -> None:
    try:
        torch.device("cpu" if device == "auto" else device)
    except RuntimeError:
        raise ConfigurationError(
            f"common.device is {device!r}, which is not a device: use 'auto' for the best available device, 'cpu', "
            "'cuda', or a device with its number, such as 'cuda:1'."
        ) from None


def _own_device(settings: Common) -> str | None:
    """This process's device; None for the accelerator with its number on its host."""
    device, ids = settings.device, settings.gpu_ids
    if device == "auto" or (device == "cuda" and len(ids) < 2):  # one id is what the default has
        return None
    if device != "cuda":
        if ":" in device:
            raise ConfigurationError(
                f"common.device is {device!r}, which is a single device, but several processes were started: use "
                f"{device.partition(':')[0]!r}, and common.gpu_ids to use only some of the devices."
            )
        return device
    launch = Launch.from_environment()
    own = 0 if launch is None else launch.local_rank
    if own >= len(ids):
        raise ConfigurationError(
            f"common.gpu_ids names {len(ids)} devices, but more processes were started on this machine: start "
            f"{len(ids)}, or name one device for each process."
        )
    return f"cuda:{ids[own]}"

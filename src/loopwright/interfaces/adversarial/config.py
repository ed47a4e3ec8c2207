"""The config of an adversarial training: groups of settings with defaults, read from a file, a
dict or nothing, and written back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ...config import load_model

ConfigSource: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | AdversarialConfig | ConfigManager | None"
)
AnyConfig = TypeVar("AnyConfig", bound="AdversarialConfig")


def as_text(value: Any) -> Any:
    """Paths become text, which is what JSON has."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


FolderName = Annotated[str, Field(min_length=1, pattern=r"^[^/\\]+$")]
PathText = Annotated[str, BeforeValidator(as_text)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Percent = Annotated[int, Field(ge=1, le=100)]
FromZero = Annotated[float, Field(ge=0.0)]
AboveZero = Annotated[float, Field(gt=0.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Turn = Annotated[float, Field(ge=-0.5, le=0.5)]


class SettingsGroup(BaseModel):
    """A group of settings; unknown names and wrong types are mistakes, when it is read and when it
    is changed. The text below a setting is its meaning in the table of docs/adversarial.md."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        validate_assignment=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


# Images


class ImageSizes(SettingsGroup):
    """Images are scaled to `load_size` and cut to `crop_size`: at random for training, from the
    middle otherwise."""

    input_nc: Literal[1, 3] = 3
    """Channels of both images: 1 is grey, 3 is colour."""
    load_size: Positive = 256
    """Each image is scaled to this width and height."""
    crop_size: Positive = 256
    """Then cut to this size: at random in training, from the middle otherwise."""


class ColorJitter(SettingsGroup):
    """Brightness, contrast and saturation are factors, where 1 changes nothing; hue is turned by a
    part of a circle."""

    colorjitter_chance: Fraction = 0.0
    """The probability of changing the colours."""
    colorjitter_min_brightness: FromZero = 0.8
    """Smallest factor of the brightness."""
    colorjitter_max_brightness: FromZero = 1.2
    """Largest factor of the brightness."""
    colorjitter_min_contrast: FromZero = 1.0
    """Smallest factor of the contrast."""
    colorjitter_max_contrast: FromZero = 1.0
    """Largest factor of the contrast."""
    colorjitter_min_saturation: FromZero = 1.0
    """Smallest factor of the saturation."""
    colorjitter_max_saturation: FromZero = 1.0
    """Largest factor of the saturation."""
    colorjitter_min_hue: Turn = 0.0
    """Smallest rotation of the hue, in turns."""
    colorjitter_max_hue: Turn = 0.0
    """Largest rotation of the hue, in turns."""


class PairAugmentation(ColorJitter):
    """Augmentations of input and target together."""

    h_flip_chance: Fraction = 0.5
    """The probability of mirroring left and right."""
    v_flip_chance: Fraction = 0.0
    """The probability of mirroring top and bottom."""
    rot90_chance: Fraction = 0.0
    """The probability of turning by 90, 180 or 270 degrees."""
    elastic_transform_chance: Fraction = 0.0
    """The probability of an elastic distortion."""
    elastic_transform_alpha: float = 1.0
    """Its strength."""
    elastic_transform_sigma: AboveZero = 50.0
    """Its smoothness, in pixels."""
    optical_distortion_chance: Fraction = 0.0
    """The probability of a lens distortion."""
    optical_distortion_min: float = -0.05
    """Its smallest strength."""
    optical_distortion_max: float = 0.05
    """Its largest strength."""
    optical_distortion_mode: Literal["camera", "fisheye"] = "camera"
    """The kind of lens."""
    coarse_dropout_chance: Fraction = 0.0
    """The probability of erasing rectangles."""
    coarse_dropout_holes_min: Count = 1
    """Smallest number of rectangles."""
    coarse_dropout_holes_max: Count = 2
    """Largest number of rectangles."""
    coarse_dropout_height_min: Fraction = 0.1
    """Smallest height, as a fraction of the image."""
    coarse_dropout_height_max: Fraction = 0.2
    """Largest height, as a fraction of the image."""
    coarse_dropout_width_min: Fraction = 0.1
    """Smallest width, as a fraction of the image."""
    coarse_dropout_width_max: Fraction = 0.2
    """Largest width, as a fraction of the image."""


class ImageAugmentation(ColorJitter):
    """What is done to one of the two images."""

    gaussnoise_chance: Fraction = 0.0
    """The probability of adding noise."""
    gaussnoise_min: FromZero = 0.2
    """Smallest standard deviation; pixels are from 0 to 1."""
    gaussnoise_max: FromZero = 0.44
    """Largest standard deviation."""
    motionblur_chance: Fraction = 0.0
    """The probability of motion blur."""
    motionblur_limit: Annotated[int, Field(ge=3)] = 7
    """Largest length of the blur, in pixels."""
    randgamma_chance: Fraction = 0.0
    """The probability of another gamma."""
    randgamma_min: AboveZero = 80.0
    """Smallest gamma, in percent."""
    randgamma_max: AboveZero = 120.0
    """Largest gamma, in percent."""
    grayscale_chance: Fraction = 0.0
    """The probability of removing the colours."""
    grayscale_method: Literal["weighted_average", "average"] = "weighted_average"
    """How a grey value is computed: as the eye weighs colours, or as their mean."""
    compression_chance: Fraction = 0.0
    """The probability of JPEG artefacts."""
    compression_type: Literal["jpeg"] = "jpeg"
    """The kind of compression."""
    compression_quality_min: Percent = 99
    """Lowest JPEG quality."""
    compression_quality_max: Percent = 100
    """Highest JPEG quality."""


class Augmentations(SettingsGroup):
    both: PairAugmentation = PairAugmentation()
    input: ImageAugmentation = ImageAugmentation()
    target: ImageAugmentation = ImageAugmentation()


class Dataloader(SettingsGroup):
    """`dataroot` has the folders train, val and test; in an image file A is the left half and B the
    right one."""

    dataroot: PathText = "data"
    """The folder with the folders `train`, `val` and, for tests, `test`."""
    direction: Literal["AtoB", "BtoA"] = "AtoB"
    """Which half is the input: A, the left one, or B."""
    batch_size: Positive = 1
    """Pairs in a batch of all processes together."""
    num_workers: Count = 0
    """Worker processes that read images."""
    load: ImageSizes = ImageSizes()
    masking: dict[str, Any] | None = None
    """No effect, since masked losses are not supported: `enable: true` is an error."""
    augmentations: Augmentations = Augmentations()

    @field_validator("masking")
    @classmethod
    def _refuse_masks(cls, masking: dict[str, Any] | None) -> dict[str, Any] | None:
        if masking and masking.get("enable"):
            raise ValueError("masked losses are not supported: override forward_G with such a loss")
        return masking


# Training


class Common(SettingsGroup):
    """Where it runs and where it writes:
    `{output_directory}/{experiment_name}_v{experiment_version}`.

    `device` "auto" is the best there is. `precision` is "fp32", "bf16" or "fp16". `seed` decides
    over the networks' first weights, the order of the images and their augmentation; null leaves
    that to chance. An empty `experiment_name`, as templates have it, is the default.
    """

    device: str = "auto"
    """"auto" is CUDA, else MPS, else the CPU; or a device such as "cuda:1"."""
    gpu_ids: list[int] = [0]
    """The first is the GPU that "cuda" means; several processes take those of their ranks."""
    cudnn: dict[str, Any] | None = None
    """No effect: set the values of `torch.backends.cudnn` in the program."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """The precision of forward passes; each network has a loss scaler of its own."""
    seed: int | None = 0
    """The seed of weights, order and augmentation; null takes another one in every run."""
    output_directory: PathText = "runs"
    """The folder of the experiments."""
    experiment_name: FolderName = "pix2pix"
    """The experiment is `{name}_v{version}` in that folder."""
    experiment_version: Positive = 1
    """The version that is continued; a new experiment gets the next free one."""

    @field_validator("experiment_name", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return "pix2pix" if value == "" else value


class Continuing(SettingsGroup):
    """Whether to go on with an experiment: true, false, or "auto": if there is something to go on
    from.

    `load_epoch` is the number of a saved epoch, or "latest" for the newest state there is, inside
    an epoch too. An experiment whose networks, optimizers or settings were others is refused,
    unless `accept_changes`.
    """

    continue_train: bool | Literal["auto"] = False
    """Continue version `experiment_version`; "auto" does so if there is anything to continue from."""
    accept_changes: bool = False
    """Continue although networks, optimizers or settings have changed."""
    load_epoch: int | Literal["latest"] = "latest"
    """The saved epoch to continue from, or the newest state."""


class LearningRate(SettingsGroup):
    """`initial` for `epochs`, then in equal steps towards `target`, which the epoch after
    `epochs_decay` would have."""

    epochs: Count = 100
    """Epochs at the first learning rate."""
    epochs_decay: Count = 100
    """Epochs over which it then falls, in equal steps."""
    initial: FromZero = 0.0002
    """The first learning rate."""
    target: FromZero = 0.0
    """The learning rate that the epoch after the last would have."""


class AdamSettings(SettingsGroup):
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Adam's first beta; the second is 0.999."""


class Generator(SettingsGroup):
    """A UNet; `use_checkpointing` computes its blocks again in the backward pass, which needs less
    memory."""

    features: Positive = 64
    """Channels of the first block of the UNet."""
    n_downs: Count = 6
    """Blocks between the first and the innermost one; each halves the image."""
    block_type: Literal["UnetBlock", "ResidualUnetBlock"] = "UnetBlock"
    """Plain or residual blocks."""
    upsample_type: Literal["Transposed", "Bilinear"] = "Transposed"
    """Transposed convolutions, or bilinear scaling and a convolution."""
    use_checkpointing: bool = False
    """Compute blocks again in the backward pass, to save memory."""
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class DiscriminatorSettings(SettingsGroup):
    n_layers: Positive = 3
    """Layers of the PatchGAN."""
    base_channels: Positive = 64
    """Channels of its first layer; each next one has twice as many."""
    max_channels: Positive = 512
    """The largest number of channels."""
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class LossWeights(SettingsGroup):
    """Weights of the generator's losses; `vgg_weights` is a file of VGG19 weights, for the
    sub-specs with +vgg."""

    lambda_gan: float = 1.0
    """Weight of the discriminator's answer."""
    lambda_l1: float = 100.0
    """Weight of the mean absolute error."""
    lambda_l2: float = 0.0
    """Weight of the mean squared error, in the sub-spec "extended"."""
    lambda_sobel: float = 0.0
    """Weight of the error of edges, in "extended"."""
    lambda_laplacian: float = 0.0
    """Weight of the error of second derivatives, in "extended"."""
    lambda_vgg: float = 0.0
    """Weight of the perceptual loss, in sub-specs with "+vgg"."""
    vgg_weights: PathText | None = None
    """A file of torchvision's VGG19 weights for it; never downloaded."""


class TrainSettings(SettingsGroup):
    separate_lr_schedules: bool = False
    """Whether the discriminator has a learning rate of its own; otherwise the generator's is used."""
    load: Continuing = Continuing()
    generator: Generator = Generator()
    discriminator: DiscriminatorSettings = DiscriminatorSettings()
    loss: LossWeights = LossWeights()


class Saving(SettingsGroup):
    """Models and examples, which a training script saves between epochs, and resume points, which
    are automatic."""

    save_model: bool = True
    """For your script: whether to call `save_checkpoint`."""
    model_save_rate: Positive = 5
    """For your script: after every how many epochs."""
    auto_increment_version: bool = True
    """Give a new experiment the next free version; with false, a version that exists is an error."""
    save_examples: bool = True
    """For your script: whether to call `save_examples`."""
    example_save_rate: Positive = 1
    """For your script: after every how many epochs."""
    num_examples: Count = 1
    """How many triplets `save_examples` writes."""
    resume_minutes: AboveZero | None = 5.0
    """Minutes between checkpoints inside epochs."""
    resume_updates: Positive | None = None
    """Updates between checkpoints inside epochs."""


class LiveSettings(SettingsGroup):
    """Pictures and loss curves of a running training, in the experiment's folder `live`.

    They take Visdom's place, which needs a server.
    """

    enable: bool = True
    """Write the newest triplet and the loss curves to the folder `live`."""
    env_name: str | None = None
    """No effect: pictures and curves are files in the folder `live`."""
    server: str | None = None
    """No effect: pictures and curves are files in the folder `live`."""
    port: int | None = None
    """No effect: pictures and curves are files in the folder `live`."""
    image_size: Positive = 400
    """The size of an image there, in pixels."""
    update_frequency: Positive = 40
    """Show the losses and a triplet every so many batches."""


class Visualizer(SettingsGroup):
    visdom: LiveSettings = LiveSettings()


class AdversarialConfig(SettingsGroup):
    """All settings; `Config` for users. A subclass may add groups and values of its own; give it to
    `Trainer.config_type`.

    >>> from loopwright.interfaces.adversarial import Config
    >>> Config().train.loss.lambda_l1
    100.0
    """

    config_type: Literal["pix2pix"] = "pix2pix"
    """The kind of config."""
    common: Common = Common()
    dataloader: Dataloader = Dataloader()
    train: TrainSettings = TrainSettings()
    save: Saving = Saving()
    visualizer: Visualizer = Visualizer()


# Reading and writing


class ConfigManager:
    """Holds a config: `data` has the settings as attributes, `raw` as a dict.

    `Trainer` takes one as its config and then shares `data` with it.

    Args:
        input_config: what `load_config` takes.
        kind: `Config` or a subclass with further settings.

    >>> from loopwright.interfaces.adversarial import ConfigManager
    >>> manager = ConfigManager({"train": {"generator": {"features": 8}}})
    >>> manager.data.train.generator.features, manager.raw["common"]["precision"]
    (8, 'fp32')
    """

    def __init__(
        self, input_config: ConfigSource = None, kind: type[AdversarialConfig] = AdversarialConfig
    ) -> None:
        self.data = load_config(input_config, kind)

    @property
    def raw(self) -> dict[str, Any]:
        """All settings by group, as they are now."""
        return self.data.model_dump(mode="json")

    def export_config(self, output_directory: str | os.PathLike[str]) -> Path:
        """Write a copy as `train1_config.json`, or the next number that is free, and return its
        path."""
        folder = Path(output_directory)
        path = folder / f"train{num_copies(folder) + 1}_config.json"
        path.write_text(json.dumps({"config": self.raw}, indent=2) + "\n")
        return path


def load_config(
    source: ConfigSource = None,
    kind: type[AnyConfig] = AdversarialConfig,  # type: ignore[assignment]
) -> AnyConfig:
    """Read a config; a setting that is left out has its default.

    Args:
        source: the path of a JSON or YAML file, a mapping, a config, or None for the defaults. The
            settings may be under a key "config", as in a file that `export_config` wrote.
        kind: `Config` or a subclass with further settings.

    >>> from loopwright.interfaces.adversarial import load_config
    >>> load_config({"dataloader": {"batch_size": 4}}).dataloader.batch_size
    4
    """
    if isinstance(source, ConfigManager):
        source = source.data
    if isinstance(source, AdversarialConfig):
        return source.model_copy(deep=True)  # type: ignore[return-value]
    return load_model({} if source is None else source, kind, under="config")


def num_copies(directory: Path) -> int:
    """The number of copies in a directory, which is also that of the newest one."""
    return next(n for n in count() if not (directory / f"train{n + 1}_config.json").exists())

"""The config of an adversarial training: groups of settings with defaults, read from a file, a
dict or nothing, and written back; mistakes are named by their key."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ...config.tree import ConfigError, Node, Problem, child_of, to_node
from ...config.yaml import read_file
from ...errors import ConfigurationError
from ...runtime import Runtime
from ...runtime.base import checked_device, is_launched
from ...runtime.environment import Launch
from ...text import nearest

logger = logging.getLogger("loopwright")

ConfigSource: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | Config | ConfigManager | None"
)
AnyConfig = TypeVar("AnyConfig", bound="Config")

COPY_NAME = re.compile(r"train(\d+)_config\.json")
_said: set[str] = set()  # settings without an effect that this process has warned about


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A setting with what it means, which the table in docs/adversarial.md shows."""
    return Field(default=default, description=meaning, **limits)


def chance(of: str, default: float = 0.0) -> Any:
    return setting(default, f"The probability of {of}.", ge=0.0, le=1.0)


def without_effect(default: Any, why: str) -> Any:
    """A setting of the published program that changes nothing here; `why` is said once."""
    return Field(default=default, description=f"No effect: {why}.", json_schema_extra={"why": why})


class SettingsGroup(BaseModel):
    """A group of settings; unknown names and wrong types are mistakes, when it is read and when it
    is changed."""

    model_config = ConfigDict(
        extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False
    )


# Images


class ImageSizes(SettingsGroup):
    """Images are scaled to `load_size` and cut to `crop_size`: at random for training, from the
    middle otherwise."""

    input_nc: Literal[1, 3] = setting(3, "Channels of both images: 1 is grey, 3 is colour.")
    load_size: int = setting(256, "Each image is scaled to this width and height.", ge=1)
    crop_size: int = setting(
        256, "Then cut to this size: at random in training, from the middle otherwise.", ge=1
    )


class ColorJitter(SettingsGroup):
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

    h_flip_chance: float = chance("mirroring left and right", 0.5)
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


class Augmentations(SettingsGroup):
    both: PairAugmentation = PairAugmentation()
    input: ImageAugmentation = ImageAugmentation()
    target: ImageAugmentation = ImageAugmentation()


class Masking(SettingsGroup):
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
            raise ValueError("masked losses are not supported: override forward_G with such a loss")
        return is_wanted


class Dataloader(SettingsGroup):
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


# Training


class Cudnn(SettingsGroup):
    """What the published program passes to torch's cuDNN backend."""

    benchmark: bool = without_effect(True, "set torch.backends.cudnn.benchmark in the program")
    deterministic: bool = without_effect(
        False, "set torch.backends.cudnn.deterministic in the program"
    )
    fp32_precision: str = without_effect(
        "tf32", "set torch.backends.cudnn.fp32_precision in the program"
    )


class Common(SettingsGroup):
    """Where it runs and where it writes:
    `{output_directory}/{experiment_name}_v{experiment_version}`.

    `device` "auto" is the best there is. `precision` is "fp32", "bf16" or "fp16". `seed` decides
    over the networks' first weights, the order of the images and their augmentation; null leaves
    that to chance. An empty `experiment_name`, as templates have it, is the default.
    """

    device: str = setting(
        "auto", '"auto" is CUDA, else MPS, else the CPU; or a device such as "cuda:1".'
    )
    gpu_ids: list[int] = setting(
        [0], 'Which GPUs "cuda" means; with several processes, one for each.'
    )
    cudnn: Cudnn = Cudnn()
    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32", "The precision of forward passes; each network has a loss scaler of its own."
    )
    seed: int | None = setting(
        0, "The seed of weights, order and augmentation; null takes another one in every run."
    )
    output_directory: str = setting("runs", "The folder of the experiments.")
    experiment_name: str = setting(
        "pix2pix",
        "The experiment is `{name}_v{version}` in that folder.",
        min_length=1,
        pattern=r"^[^/\\]+$",
    )
    experiment_version: int = setting(
        1, "The version that is continued; a new experiment gets the next free one.", ge=1
    )

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

    continue_train: bool | Literal["auto"] = setting(
        False,
        'Continue version `experiment_version`; "auto" does so if there is anything to continue '
        "from.",
    )
    accept_changes: bool = setting(
        False, "Continue although networks, optimizers or settings have changed."
    )
    load_epoch: int | Literal["latest"] = setting(
        "latest", "The saved epoch to continue from, or the newest state."
    )


class LearningRate(SettingsGroup):
    """`initial` for `epochs`, then in equal steps towards `target`, which the epoch after
    `epochs_decay` would have."""

    epochs: int = setting(100, "Epochs at the first learning rate.", ge=0)
    epochs_decay: int = setting(100, "Epochs over which it then falls, in equal steps.", ge=0)
    initial: float = setting(0.0002, "The first learning rate.", ge=0.0)
    target: float = setting(
        0.0, "The learning rate that the epoch after the last would have.", ge=0.0
    )


class AdamSettings(SettingsGroup):
    beta1: float = setting(0.5, "Adam's first beta; the second is 0.999.", ge=0.0, lt=1.0)


class Generator(SettingsGroup):
    """A UNet; `use_checkpointing` computes its blocks again in the backward pass, which needs less
    memory."""

    features: int = setting(64, "Channels of the first block of the UNet.", ge=1)
    n_downs: int = setting(
        6, "Blocks between the first and the innermost one; each halves the image.", ge=0
    )
    block_type: Literal["UnetBlock", "ResidualUnetBlock"] = setting(
        "UnetBlock", "Plain or residual blocks."
    )
    upsample_type: Literal["Transposed", "Bilinear"] = setting(
        "Transposed", "Transposed convolutions, or bilinear scaling and a convolution."
    )
    use_checkpointing: bool = setting(
        False, "Compute blocks again in the backward pass, to save memory."
    )
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class DiscriminatorSettings(SettingsGroup):
    n_layers: int = setting(3, "Layers of the PatchGAN.", ge=1)
    base_channels: int = setting(
        64, "Channels of its first layer; each next one has twice as many.", ge=1
    )
    max_channels: int = setting(512, "The largest number of channels.", ge=1)
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class LossWeights(SettingsGroup):
    """Weights of the generator's losses; `vgg_weights` is a file of VGG19 weights, for the
    sub-specs with +vgg."""

    lambda_gan: float = setting(1.0, "Weight of the discriminator's answer.")
    lambda_l1: float = setting(100.0, "Weight of the mean absolute error.")
    lambda_l2: float = setting(0.0, 'Weight of the mean squared error, in the sub-spec "extended".')
    lambda_sobel: float = setting(0.0, 'Weight of the error of edges, in "extended".')
    lambda_laplacian: float = setting(
        0.0, 'Weight of the error of second derivatives, in "extended".'
    )
    lambda_vgg: float = setting(0.0, 'Weight of the perceptual loss, in sub-specs with "+vgg".')
    vgg_weights: str | None = setting(
        None, "A file of torchvision's VGG19 weights for it; never downloaded."
    )


class TrainSettings(SettingsGroup):
    separate_lr_schedules: bool = setting(
        False,
        "Whether the discriminator has a learning rate of its own; otherwise the generator's is "
        "used.",
    )
    load: Continuing = Continuing()
    generator: Generator = Generator()
    discriminator: DiscriminatorSettings = DiscriminatorSettings()
    loss: LossWeights = LossWeights()


class Saving(SettingsGroup):
    """Models and examples, which a training script saves between epochs, and resume points, which
    are automatic."""

    save_model: bool = setting(True, "For your script: whether to call `save_checkpoint`.")
    model_save_rate: int = setting(5, "For your script: after every how many epochs.", ge=1)
    auto_increment_version: bool = setting(
        True,
        "Give a new experiment the next free version; with false, a version that exists is an "
        "error.",
    )
    save_examples: bool = setting(True, "For your script: whether to call `save_examples`.")
    example_save_rate: int = setting(1, "For your script: after every how many epochs.", ge=1)
    num_examples: int = setting(1, "How many triplets `save_examples` writes.", ge=0)
    resume_minutes: float | None = setting(
        5.0, "Minutes between checkpoints inside epochs.", gt=0.0
    )
    resume_updates: int | None = setting(None, "Updates between checkpoints inside epochs.", gt=0)


class LiveSettings(SettingsGroup):
    """Pictures and loss curves of a running training, in the experiment's folder `live`.

    They take Visdom's place, which needs a server.
    """

    enable: bool = setting(
        True, "Write the newest triplet and the loss curves to the folder `live`."
    )
    env_name: str = without_effect(
        "main", "pictures and curves are files in the experiment's folder live"
    )
    server: str = without_effect(
        "http://localhost", "pictures and curves are files in the experiment's folder live"
    )
    port: int = without_effect(
        8097, "pictures and curves are files in the experiment's folder live"
    )
    image_size: int = setting(400, "The size of an image there, in pixels.", ge=1)
    update_frequency: int = setting(
        40, "Show the losses and a triplet every so many batches.", ge=1
    )


class Visualizer(SettingsGroup):
    visdom: LiveSettings = LiveSettings()


class Config(SettingsGroup):
    """All settings. A subclass may add groups and values of its own; give it to
    `Trainer.config_type`.

    >>> from loopwright.interfaces.adversarial import Config
    >>> Config().train.loss.lambda_l1
    100.0
    """

    config_type: Literal["pix2pix"] = setting("pix2pix", "The kind of config.")
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

    def __init__(self, input_config: ConfigSource = None, kind: type[Config] = Config) -> None:
        self.data = load_config(input_config, kind)

    @property
    def raw(self) -> dict[str, Any]:
        """All settings by group, as they are now."""
        return self.data.model_dump(mode="json")

    def export_config(self, output_directory: str | os.PathLike[str]) -> Path:
        """Write a numbered copy of the config as JSON and return its path."""
        return export_config(self.data, output_directory)


def load_config(source: ConfigSource = None, kind: type[AnyConfig] = Config) -> AnyConfig:  # type: ignore[assignment]
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
    if isinstance(source, Config):
        return source.model_copy(deep=True)  # type: ignore[return-value]
    if source is None:
        return kind()
    root = (
        to_node(_plain(source), "config", None)
        if isinstance(source, Mapping)
        else _read(Path(source))
    )
    if set(root.value) == {"config"} and isinstance(root.value["config"].value, dict):
        root = root.value["config"]
    try:
        return kind.model_validate(root.plain())
    except ValidationError as error:
        raise ConfigError(_problems(error, root, kind)) from None


def _read(path: Path) -> Node:
    if path.suffix.lower() != ".json":
        return read_file(path)
    try:  # as JSON and not as YAML, which does not allow tabs
        return to_node(json.loads(path.read_text()), str(path), None)
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(str(path), None, "", f"cannot be read: {error}.")]) from None


def _plain(value: Any) -> Any:
    """Paths become text, mappings dicts: what JSON has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _problems(error: ValidationError, root: Node, kind: type[Config]) -> Iterator[Problem]:
    """Every mistake with the key it is at, in pydantic's words."""
    for item in error.errors(include_url=False):
        node = root
        names = list[str]()
        for part in item["loc"]:
            child = child_of(node, str(part))
            if child is not None:  # pydantic's own names for the forms of a choice are left out
                node = child
                names.append(str(part))
        key = ".".join(names)
        text = f"{item['msg']}; it is {node.shown()}."
        if item["type"] == "extra_forbidden":
            text = f"there is no such setting; {nearest(key, _keys(kind()), cutoff=0.6)}"
        yield Problem(root.file, node.line, key, text)


def _fields(group: BaseModel, before: str = "") -> Iterator[tuple[str, BaseModel, str]]:
    """The dotted key of every setting, with the group that has it and its name there."""
    for name in type(group).model_fields:
        value = getattr(group, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", group, name


def _keys(config: Config) -> list[str]:
    return [key for key, _, _ in _fields(config)]


def export_config(config: Config, directory: str | os.PathLike[str]) -> Path:
    """Write a copy as `train1_config.json`, or the next number that is free; it can be loaded as it
    is."""
    folder = Path(directory)
    number = max((n for n, _ in config_copies(folder)), default=0) + 1
    path = folder / f"train{number}_config.json"
    values = config.model_dump(mode="json")
    for key, is_given, _ in settings_without_effect(config):
        if not is_given:  # so that reading the copy does not warn about it
            *groups, name = key.split(".")
            group = values
            for one in groups:
                group = group[one]
            del group[name]
    path.write_text(json.dumps({"config": values}, indent=2) + "\n")
    return path


def config_copies(directory: Path) -> list[tuple[int, Path]]:
    """The copies in a directory with their numbers, sorted by number."""
    found = [(COPY_NAME.fullmatch(path.name), path) for path in directory.glob("*")]
    return sorted((int(match[1]), path) for match, path in found if match)


def settings_without_effect(config: Config) -> Iterator[tuple[str, bool, str]]:
    """Of each such setting its key, whether it was given, and why it changes nothing."""
    for key, group, name in _fields(config):
        extra = type(group).model_fields[name].json_schema_extra
        if isinstance(extra, dict) and "why" in extra:
            yield key, name in group.model_fields_set, str(extra["why"])


def say_without_effect(config: Config) -> None:
    """Say which of the settings that were given change nothing here; of each, once in a process."""
    reasons: dict[str, list[str]] = {}
    for key, is_given, why in settings_without_effect(config):
        if is_given and key not in _said:
            _said.add(key)
            reasons.setdefault(why, []).append(key)
    for why, keys in reasons.items():
        logger.warning("Settings without an effect: %s (%s).", ", ".join(keys), why)


# Devices


def runtime_of(settings: Common) -> Runtime | str | None:
    """What a config asks to run on: all the processes there are, a device, or None for the best
    there is."""
    device = settings.device
    if device != "auto":
        checked_device(device)
    if is_launched():
        from ...runtime.distributed import DistributedRuntime

        return DistributedRuntime("ddp", device=_own_device(settings), precision=settings.precision)
    if device == "cuda" and settings.gpu_ids:
        return f"cuda:{settings.gpu_ids[0]}"
    return None if device == "auto" else device


def _own_device(settings: Common) -> str | None:
    """This process's device; None for the accelerator with its number on its host."""
    device = settings.device
    ids = settings.gpu_ids
    if device == "auto" or (device == "cuda" and len(ids) < 2):  # one id is what the default has
        return None
    launch = Launch.from_environment()
    rank = 0 if launch is None else launch.local_rank
    if ":" in device or (device == "cuda" and rank >= len(ids)):
        named = 1 if ":" in device else len(ids)
        raise ConfigurationError(
            "too-few-devices",
            f"common.device is {device!r} and common.gpu_ids {ids}, which is {named} for all "
            "processes on this machine: write the device without a number, and one of the gpu_ids "
            "for each process.",
        )
    return f"cuda:{ids[rank]}" if device == "cuda" else device

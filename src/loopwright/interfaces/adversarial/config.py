"""The settings of an adversarial training: groups of values with defaults, checked for name and
type."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import field_validator

from ...errors import ConfigurationError
from ...runtime import Runtime
from ...runtime.base import is_launched
from ...runtime.environment import Launch
from .data_config import Dataloader, Group, setting, without_effect


class Cudnn(Group):
    """What the published program passes to torch's cuDNN backend."""

    benchmark: bool = without_effect(True, "set torch.backends.cudnn.benchmark in the program")
    deterministic: bool = without_effect(
        False, "set torch.backends.cudnn.deterministic in the program"
    )
    fp32_precision: str = without_effect(
        "tf32", "set torch.backends.cudnn.fp32_precision in the program"
    )


class Common(Group):
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


class Continuing(Group):
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


class LearningRate(Group):
    """`initial` for `epochs`, then in equal steps towards `target`, which the epoch after
    `epochs_decay` would have."""

    epochs: int = setting(100, "Epochs at the first learning rate.", ge=0)
    epochs_decay: int = setting(100, "Epochs over which it then falls, in equal steps.", ge=0)
    initial: float = setting(0.0002, "The first learning rate.", ge=0.0)
    target: float = setting(
        0.0, "The learning rate that the epoch after the last would have.", ge=0.0
    )


class AdamSettings(Group):
    beta1: float = setting(0.5, "Adam's first beta; the second is 0.999.", ge=0.0, lt=1.0)


class Generator(Group):
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


class DiscriminatorSettings(Group):
    n_layers: int = setting(3, "Layers of the PatchGAN.", ge=1)
    base_channels: int = setting(
        64, "Channels of its first layer; each next one has twice as many.", ge=1
    )
    max_channels: int = setting(512, "The largest number of channels.", ge=1)
    learning_rate: LearningRate = LearningRate()
    optimizer: AdamSettings = AdamSettings()


class LossWeights(Group):
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


class Training(Group):
    separate_lr_schedules: bool = setting(
        False,
        "Whether the discriminator has a learning rate of its own; otherwise the generator's is "
        "used.",
    )
    load: Continuing = Continuing()
    generator: Generator = Generator()
    discriminator: DiscriminatorSettings = DiscriminatorSettings()
    loss: LossWeights = LossWeights()


class Saving(Group):
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


class Live(Group):
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


class Visualizer(Group):
    visdom: Live = Live()


class Config(Group):
    """All settings. A subclass may add groups and values of its own; give it to
    `Trainer.config_type`.

    >>> from loopwright.interfaces.adversarial import Config
    >>> Config().train.loss.lambda_l1
    100.0
    """

    config_type: Literal["pix2pix"] = setting("pix2pix", "The kind of config.")
    common: Common = Common()
    dataloader: Dataloader = Dataloader()
    train: Training = Training()
    save: Saving = Saving()
    visualizer: Visualizer = Visualizer()


def runtime_of(settings: Common) -> Runtime | str | None:
    """What a config asks to run on: all the processes there are, a device, or None for the best
    there is."""
    device = settings.device
    _check_device(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(
            f"common.device is {device!r}, but torch finds no such device here: use 'cpu', or "
            "'auto' for the best available device."
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
            f"common.device is {device!r}, which is not a device: use 'auto' for the best "
            "available device, 'cpu', 'cuda', or a device with its number, such as 'cuda:1'."
        ) from None


def _own_device(settings: Common) -> str | None:
    """This process's device; None for the accelerator with its number on its host."""
    device = settings.device
    ids = settings.gpu_ids
    if device == "auto" or (device == "cuda" and len(ids) < 2):  # one id is what the default has
        return None
    if device != "cuda":
        if ":" in device:
            raise ConfigurationError(
                f"common.device is {device!r}, which is a single device, but several processes "
                f"were started: use {device.partition(':')[0]!r}, and common.gpu_ids to use only "
                "some of the devices."
            )
        return device
    launch = Launch.from_environment()
    own = 0 if launch is None else launch.local_rank
    if own >= len(ids):
        raise ConfigurationError(
            f"common.gpu_ids names {len(ids)} devices, but more processes were started on this "
            f"machine: start {len(ids)}, or name one device for each process."
        )
    return f"cuda:{ids[own]}"

"""Pix2pix: a UNet that turns one image into another, against a PatchGAN that tells its images from
real ones; their losses, and the trainer of both."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint

from ...errors import ConfigurationError
from ...losses import GANLoss, Laplacian, Perceptual, Sobel
from .config import AdversarialConfig, ConfigSource, LearningRate
from .losses import EpochSchedule, LMLoss, ScheduledRate, TorchScheduler
from .trainer import Trainer

if TYPE_CHECKING:
    from ...trackers import Track

NUM_DROPOUTS = 3  # of the deepest up-sampling blocks, which is where pix2pix takes its noise from
MAX_WIDENING = 8
SUBSPECS = ("basic", "basic+vgg", "extended", "extended+vgg")

# The networks


def initialise_weights(network: nn.Module, deviation: float = 0.02) -> None:
    """Weights of convolutions N(0, deviation), those of normalisations N(1, deviation), biases
    0."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, deviation)
        elif isinstance(module, nn.InstanceNorm2d) and module.affine:
            nn.init.normal_(module.weight, 1.0, deviation)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class UnetBlock(nn.Module):
    """Halves or doubles an image: a convolution, a normalisation, an activation, and perhaps
    dropout."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        is_down: bool,
        upsampling: str = "Transposed",
        has_dropout: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            scaling_layer(in_channels, out_channels, None if is_down else upsampling, bias=False),
            nn.InstanceNorm2d(out_channels, affine=True),
            nn.LeakyReLU(0.2) if is_down else nn.ReLU(),
        )
        if has_dropout:
            self.layers.append(nn.Dropout(0.5))

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.layers(image)
        return result


class ResidualUnetBlock(UnetBlock):
    """The same with a residual part behind it: two more convolutions, whose result is added."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.residual = nn.Sequential(
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.InstanceNorm2d(out_channels, affine=True),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.InstanceNorm2d(out_channels, affine=True),
        )

    def forward(self, image: Tensor) -> Tensor:
        scaled = super().forward(image)
        residual: Tensor = self.residual(scaled)
        return scaled + residual


BLOCKS: dict[str, type[UnetBlock]] = {
    "UnetBlock": UnetBlock,
    "ResidualUnetBlock": ResidualUnetBlock,
}


def scaling_layer(
    in_channels: int, out_channels: int, upsampling: str | None, *, bias: bool
) -> nn.Module:
    """What halves an image, or doubles it by a transposed convolution, or by interpolation and a
    convolution."""
    if upsampling is None:
        return nn.Conv2d(in_channels, out_channels, 4, 2, 1, bias=bias, padding_mode="reflect")
    if upsampling == "Transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 4, 2, 1, bias=bias)
    if upsampling != "Bilinear":
        raise ValueError(f"upconv_type={upsampling!r}: use 'Transposed' or 'Bilinear'.")
    larger = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return nn.Sequential(larger, nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=bias))


class UnetGenerator(nn.Module):
    """An image to an image of the same size, with values in -1...1.

    The image is halved once, `n_downs` times, and once more in the bottleneck, then doubled as
    often; every doubling but the first also sees what the halving of its size gave. Channels double
    from `features` to eight times that. `use_checkpointing` computes the blocks again in the
    backward pass instead of storing their activations.
    """

    def __init__(
        self,
        input_size: int,
        in_channels: int = 3,
        features: int = 64,
        n_downs: int = 6,
        use_dropout_layers: int = NUM_DROPOUTS,
        block_type: str | type[UnetBlock] = UnetBlock,
        upconv_type: str = "Transposed",
        use_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.use_checkpointing = use_checkpointing
        if isinstance(block_type, str):
            block_type = BLOCKS[block_type]
        if input_size % 2 ** (n_downs + 2):
            raise ConfigurationError(
                "image-size",
                f"An image of {input_size} pixels cannot be halved {n_downs + 2} times "
                f"(n_downs={n_downs}, the first layer and the bottleneck): use a multiple of "
                f"{2 ** (n_downs + 2)}, or another n_downs.",
            )
        widths = [features * min(2**depth, MAX_WIDENING) for depth in range(n_downs + 1)]
        self.first = nn.Sequential(
            scaling_layer(in_channels, features, None, bias=True), nn.LeakyReLU(0.2)
        )
        self.downs = nn.ModuleList(
            block_type(wide, wider, is_down=True) for wide, wider in pairwise(widths)
        )
        # no normalisation: it may be down to one pixel
        self.bottleneck = nn.Sequential(nn.Conv2d(widths[-1], widths[-1], 4, 2, 1), nn.ReLU())
        inputs = [widths[-1], *(2 * width for width in reversed(widths[1:]))]
        self.ups = nn.ModuleList(
            block_type(
                wide,
                width,
                is_down=False,
                upsampling=upconv_type,
                has_dropout=number < use_dropout_layers,
            )
            for number, (wide, width) in enumerate(zip(inputs, reversed(widths), strict=True))
        )
        self.last = nn.Sequential(
            scaling_layer(2 * features, in_channels, upconv_type, bias=True), nn.Tanh()
        )
        initialise_weights(self)

    def forward(self, image: Tensor) -> Tensor:
        seen = [self.first(image)]
        for down in self.downs:
            seen.append(self._through(down, seen[-1]))
        result = self.bottleneck(seen[-1])
        for up in self.ups:
            result = torch.cat([self._through(up, result), seen.pop()], dim=1)
        return self.last(result)  # type: ignore[no-any-return]

    def _through(self, block: nn.Module, image: Tensor) -> Tensor:
        if self.use_checkpointing and self.training:
            return checkpoint(block, image, use_reentrant=False)  # type: ignore[no-any-return]
        return block(image)  # type: ignore[no-any-return]


class Discriminator(nn.Module):
    """Says of every patch of an image whether it is real, as a logit, given the input it was made
    from."""

    def __init__(
        self,
        in_channels: int = 3,
        base_channels: int = 64,
        n_layers: int = 3,
        max_channels: int = 512,
    ) -> None:
        super().__init__()
        conv = partial(nn.Conv2d, kernel_size=4, padding=1, padding_mode="reflect")
        widths = [min(base_channels * 2**depth, max_channels) for depth in range(n_layers)]
        layers = [conv(2 * in_channels, widths[0], stride=2), nn.LeakyReLU(0.2)]
        for number, (width, wider) in enumerate(pairwise(widths), start=2):
            stride = 1 if number == n_layers else 2
            layers += [
                conv(width, wider, stride=stride, bias=False),
                nn.InstanceNorm2d(wider, affine=True),
                nn.LeakyReLU(0.2),
            ]
        layers.append(conv(widths[-1], 1))
        self.model = nn.Sequential(*layers)
        initialise_weights(self)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self.model(torch.cat([x, y], dim=1))
        return result


# The losses


def pix2pix(
    config: AdversarialConfig,
    subspec: str = "basic",
    *,
    perceptual: nn.Module | None = None,
    device: torch.device | str | None = None,
) -> dict[str, LMLoss]:
    """The losses of both networks with the weights of a config; tags "G" and "D" say whose they
    are.

    `basic` is the paper's: a GAN loss and L1. `extended` adds L2, Sobel and Laplacian. `+vgg` adds
    what a trained network sees, from `train.loss.vgg_weights` or from the module given as
    `perceptual`.
    """
    if subspec not in SUBSPECS:
        raise ConfigurationError(
            "unknown-subspec", f"loss_subspec={subspec!r}: use one of {', '.join(SUBSPECS)}."
        )
    weights = config.train.loss
    functions: dict[str, tuple[nn.Module, float]] = {
        "G_GAN": (GANLoss(), weights.lambda_gan),
        "G_L1": (nn.L1Loss(), weights.lambda_l1),
    }
    if subspec.startswith("extended"):
        functions["G_L2"] = (nn.MSELoss(), weights.lambda_l2)
        functions["G_SOBEL"] = (Sobel(), weights.lambda_sobel)
        functions["G_LAP"] = (Laplacian(), weights.lambda_laplacian)
    if subspec.endswith("+vgg"):
        source = perceptual or weights.vgg_weights
        if source is None:
            raise ConfigurationError(
                "no-vgg-weights",
                "A sub-spec with +vgg needs trained VGG19 weights, which are not downloaded: set "
                "train.loss.vgg_weights to a file of torchvision's vgg19 state dict, or pass "
                "`perceptual=` a module.",
            )
        network = source if isinstance(source, nn.Module) else Perceptual(source)
        functions["G_VGG"] = (network, weights.lambda_vgg)
    functions["D_real"] = (GANLoss(), 1.0)
    functions["D_fake"] = (GANLoss(), 1.0)
    return {
        name: LMLoss(name, function.to(device), weight, tags=[name[0]])
        for name, (function, weight) in functions.items()
    }


# The trainer


def build_generator(config: AdversarialConfig) -> UnetGenerator:
    """The generator that a config describes."""
    settings = config.train.generator
    load = config.dataloader.load
    return UnetGenerator(
        input_size=load.crop_size,
        in_channels=load.input_nc,
        features=settings.features,
        n_downs=settings.n_downs,
        block_type=settings.block_type,
        upconv_type=settings.upsample_type,
        use_checkpointing=settings.use_checkpointing,
    )


def rate_schedule(rate: LearningRate) -> EpochSchedule:
    """Constant, then linear; the epoch after the last one would have the target, so that no epoch
    trains with 0."""
    last = rate.epochs + rate.epochs_decay
    return EpochSchedule("linear", rate.epochs, last + 1, rate.initial, rate.target)


class Pix2pixTrainer(Trainer):
    """Both networks, their optimizers, schedules and scalers, the data and the losses, all from a
    config.

    Args:
        config: A JSON or YAML file, a dict, a `Config`, a `ConfigManager`, or None for the
            defaults.
        loss_subspec: "basic" (GAN and L1) or "extended" (and L2, Sobel, Laplacian), each with or
            without "+vgg".
        log_losses: Whether to write the losses of every epoch to a file in the experiment's
            directory.
        perceptual: The network of "+vgg". Default: that of the file `train.loss.vgg_weights`.
        callbacks: Trackers of `loopwright.trackers`.
    """

    gen: nn.Module
    disc: nn.Module
    gen_lr_scheduler: LRScheduler
    disc_lr_scheduler: LRScheduler

    def __init__(
        self,
        config: ConfigSource = None,
        loss_subspec: str = "basic",
        log_losses: bool = True,
        *,
        perceptual: nn.Module | None = None,
        callbacks: Iterable[Track] = (),
    ) -> None:
        super().__init__(config, quicksetup=True, log_losses=log_losses, callbacks=callbacks)
        self._perceptual = [perceptual]  # in a list: it is no network of this trainer's
        self._init_lr_scheduling()
        self._init_generator()
        self._init_discriminator()
        self._complete_networks()
        self._init_dataloaders()
        self._core.adopt()
        self._init_gradscalers()
        self._core.use_scaler(self.opt_gen, self.g_scaler)
        self._core.use_scaler(self.opt_disc, self.d_scaler)
        self._init_losses(loss_subspec)
        if self.is_continuing:
            self._init_from_checkpoint()

    # Setting up

    def _init_lr_scheduling(self) -> None:
        """Give the discriminator a copy of the generator's learning rate, unless
        `separate_lr_schedules`."""
        train = self.config.train
        if not train.separate_lr_schedules:
            train.discriminator.learning_rate = train.generator.learning_rate.model_copy()

    def _init_generator(self) -> None:
        """Create `gen`, `opt_gen` and `gen_lr_scheduler`; your own may leave out the scheduler."""
        settings = self.config.train.generator
        rate = settings.learning_rate
        self.gen = build_generator(self.config).to(self.device)
        self.opt_gen = self.build_optimizer(
            self.gen, torch.optim.Adam, rate.initial, settings.optimizer.beta1
        )
        self.gen_lr_scheduler = ScheduledRate(self.opt_gen, rate_schedule(rate))

    def _init_discriminator(self) -> None:
        """Create `disc`, `opt_disc` and `disc_lr_scheduler`; your own may leave out the
        scheduler."""
        settings = self.config.train.discriminator
        rate = settings.learning_rate
        self.disc = Discriminator(
            in_channels=self.config.dataloader.load.input_nc,
            base_channels=settings.base_channels,
            n_layers=settings.n_layers,
            max_channels=settings.max_channels,
        ).to(self.device)
        self.opt_disc = self.build_optimizer(
            self.disc, torch.optim.Adam, rate.initial, settings.optimizer.beta1
        )
        self.disc_lr_scheduler = ScheduledRate(self.opt_disc, rate_schedule(rate))

    def _complete_networks(self) -> None:
        """Make the schedules that an `_init_generator` of one's own left out."""
        train = self.config.train
        self.gen.to(self.device)
        self.disc.to(self.device)
        if not hasattr(self, "gen_lr_scheduler"):
            rate = train.generator.learning_rate
            self.gen_lr_scheduler = TorchScheduler(self.opt_gen, rate_schedule(rate))
        if not hasattr(self, "disc_lr_scheduler"):
            rate = train.discriminator.learning_rate
            self.disc_lr_scheduler = TorchScheduler(self.opt_disc, rate_schedule(rate))

    def _init_dataloaders(self) -> None:
        """Create `train_loader` and `val_loader`; any loader of (inputs, targets) will do."""
        self.train_loader = self.build_dataloader("train")
        self.val_loader = self.build_dataloader("val", is_train=False)

    def _init_gradscalers(self) -> None:
        """Create `g_scaler` and `d_scaler`, which `update` uses; they do nothing unless the
        precision is fp16."""
        self.g_scaler = self._core.scaler_of(self.opt_gen)
        self.d_scaler = self._core.scaler_of(self.opt_disc)

    def _init_losses(self, loss_subspec: str) -> None:
        """Register the losses of both networks with the loss manager."""
        self.loss_manager.init_from_spec(
            pix2pix, self.config, loss_subspec, perceptual=self._perceptual[0], device=self.device
        )

    def _init_from_checkpoint(self) -> None:
        """Go on exactly; where there are only exported networks, from those, with the rates of
        their epoch."""
        if self._continue_from_state():
            return
        rates = self.config.train
        self.load_checkpoint("G", self.gen, self.opt_gen, rates.generator.learning_rate.initial)
        self.load_checkpoint(
            "D", self.disc, self.opt_disc, rates.discriminator.learning_rate.initial
        )
        for scheduler in (self.gen_lr_scheduler, self.disc_lr_scheduler):
            if isinstance(scheduler, TorchScheduler):
                scheduler.go_to(self.loaded_epoch)

    # A step

    def forward_D(self, x: Tensor, y: Tensor, y_fake: Tensor) -> dict[str, Tensor]:  # noqa: N802
        """Return `loss_D`, the mean of `loss_D_real` and `loss_D_fake`, and both, in a dict."""
        real = self.disc(x, y)
        fake = self.disc(x, y_fake.detach())
        loss_real = self.loss_manager.compute_loss_xy("D_real", real, torch.ones_like(real))
        loss_fake = self.loss_manager.compute_loss_xy("D_fake", fake, torch.zeros_like(fake))
        return {
            "loss_D": (loss_real + loss_fake) * 0.5,
            "loss_D_real": loss_real,
            "loss_D_fake": loss_fake,
        }

    def backward_D(self, loss_D: Tensor) -> None:  # noqa: N802, N803
        """Update the discriminator; gradients of earlier backward passes are dropped."""
        self.opt_disc.zero_grad()
        self.update(loss_D, self.opt_disc)

    def compute_GAN_loss(self, x: Tensor, y_fake: Tensor) -> Tensor:  # noqa: N802
        """Return the loss of the discriminator's answer to generated images."""
        verdict = self.disc(x, y_fake)
        return self.loss_manager.compute_loss_xy("G_GAN", verdict, torch.ones_like(verdict))

    def compute_structure_loss(self, y: Tensor, y_fake: Tensor) -> tuple[Tensor, ...]:
        """Return the losses between generated images and targets: all others with the tag "G"."""
        losses = self.loss_manager
        names = [name for name in losses.get_loss_weights(query=["G"]) if name != "G_GAN"]
        return tuple(losses.compute_loss_xy(name, y_fake, y) for name in names)

    def forward_G(self, x: Tensor, y: Tensor, y_fake: Tensor) -> Tensor:  # noqa: N802
        """Return the generator's loss: the sum of `compute_GAN_loss` and
        `compute_structure_loss`."""
        total = self.compute_GAN_loss(x, y_fake)
        for loss in self.compute_structure_loss(y, y_fake):
            total = total + loss
        return total

    def backward_G(self, loss_G: Tensor) -> None:  # noqa: N802, N803
        """Update the generator; the discriminator gets no gradients from its loss."""
        self.opt_gen.zero_grad()
        self.update(loss_G, self.opt_gen)

    # The hooks

    def on_epoch_start(self, **kwargs: Any) -> None:
        """Called before the first batch of an epoch: prints it if `print_train_start=True`."""
        if kwargs.get("print_train_start"):
            self._print(f"Beginning epoch: {self.current_epoch}")
            self.loss_manager.print_weights()

    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> Any:
        """Called for each batch: generates images, updates the discriminator, then the
        generator."""
        y_fake = self.gen(x)
        self.backward_D(self.forward_D(x, y, y_fake)["loss_D"])
        self.backward_G(self.forward_G(x, y, y_fake))
        if idx % self.config.visualizer.visdom.update_frequency == 0:
            self.update_display(x, y, y_fake, idx)

    def on_epoch_end(self, **kwargs: Any) -> None:
        """Called after the last batch of an epoch: steps both schedules and writes the losses to
        the log."""
        self.update_schedulers()
        if self.log_losses:
            self.loss_manager.update_loss_log()

    def update_schedulers(self) -> None:
        """Set both learning rates for the next epoch."""
        self.gen_lr_scheduler.step()
        self.disc_lr_scheduler.step()

    # Showing and saving

    def update_display(self, x: Tensor, y: Tensor, y_fake: Tensor, idx: int) -> None:
        """Print the losses, and write a triplet and the curves to the folder `live`."""
        epoch = self.current_epoch or 0
        self.loss_manager.print_losses(epoch, idx)
        self.vis.update_images(x, y_fake, y)
        values = self.loss_manager.get_loss_values
        step = epoch - 1 + (idx + 1) / (self._core.run.epoch_length() or 1)
        self.vis.update_loss_graphs(step, values(["G"], None), values(["D"], None))

    def print_end_of_epoch(self) -> None:
        """Print the number and the duration of the epoch, and both learning rates of the next
        one."""
        super().print_end_of_epoch()
        for name, optimizer in (("G", self.opt_gen), ("D", self.opt_disc)):
            rate = round(optimizer.param_groups[0]["lr"], 8)
            self._print(f"Next learning rate ({name}): {rate}")

    def save_checkpoint(self, mode: str = "both") -> Path:
        """Write the whole state ("both"), or only the generator ("g") or the discriminator ("d")
        with its optimizer; return the path.

        Only from the whole state does a run continue exactly.
        """
        if mode.lower() == "both":
            return super().save_checkpoint(mode)
        networks = {"G": (self.gen, self.opt_gen), "D": (self.disc, self.opt_disc)}
        return self.export_model_weights(*networks[mode.upper()], mode.upper())

    def save_examples(self, silent: bool = False) -> list[Path]:
        """Write triplets of validation images, print where unless `silent`, and return the
        paths."""
        paths = self.save_xyz_examples(self.gen, self.val_loader)
        if not silent:
            self._print(f"Saved example images: {self.examples_dir}")
        return paths

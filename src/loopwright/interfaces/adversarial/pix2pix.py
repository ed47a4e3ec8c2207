"""Pix2pix: a UNet that turns one image into another, against a PatchGAN that tells its images from
real ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import ConfigurationError
from ...losses import GANLoss, Laplacian, Perceptual, Sobel
from .config import Config, ConfigSource
from .experiment import discard_unused
from .losses import LMLoss
from .networks import Discriminator, UnetGenerator
from .scheduling import ScheduledRate, TorchScheduler, rate_schedule
from .trainer import Trainer

if TYPE_CHECKING:
    from ...trackers import Track

SUBSPECS = ("basic", "basic+vgg", "extended", "extended+vgg")


def pix2pix(
    config: Config,
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
    functions |= {"D_real": (GANLoss(), 1.0), "D_fake": (GANLoss(), 1.0)}
    return {
        name: LMLoss(name, function.to(device), weight, tags=[name[0]])
        for name, (function, weight) in functions.items()
    }


def build_generator(config: Config) -> UnetGenerator:
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


NETWORKS = {
    "generator": ("gen", "opt_gen", "gen_lr_scheduler"),
    "discriminator": ("disc", "opt_disc", "disc_lr_scheduler"),
}


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
        try:
            self._init_lr_scheduling()
            self._init_generator()
            self._init_discriminator()
            self._complete_networks()
            self._init_dataloaders()
            self._init_gradscalers()
            self._complete_scalers()
            self._init_losses(loss_subspec)
            if self.is_continuing:
                self._init_from_checkpoint()
        except BaseException:
            if self._core.runtime.is_main:
                # no version is used up by a mistake in the config
                discard_unused(self._directory())
            raise

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
        self.gen: nn.Module = build_generator(self.config).to(self.device)
        rate = settings.learning_rate
        self.opt_gen = self.build_optimizer(
            network=self.gen,
            optimizer=torch.optim.Adam,
            lr=rate.initial,
            beta1=settings.optimizer.beta1,
        )
        self.gen_lr_scheduler = ScheduledRate(self.opt_gen, rate_schedule(rate))

    def _init_discriminator(self) -> None:
        """Create `disc`, `opt_disc` and `disc_lr_scheduler`; your own may leave out the
        scheduler."""
        settings = self.config.train.discriminator
        self.disc: nn.Module = Discriminator(
            in_channels=self.config.dataloader.load.input_nc,
            base_channels=settings.base_channels,
            n_layers=settings.n_layers,
            max_channels=settings.max_channels,
        ).to(self.device)
        rate = settings.learning_rate
        self.opt_disc = self.build_optimizer(
            network=self.disc,
            optimizer=torch.optim.Adam,
            lr=rate.initial,
            beta1=settings.optimizer.beta1,
        )
        self.disc_lr_scheduler = ScheduledRate(self.opt_disc, rate_schedule(rate))

    def _complete_networks(self) -> None:
        """Make the schedules that an `_init_generator` of one's own left out; other parts must be
        there."""
        for name, attributes in NETWORKS.items():
            network, optimizer, scheduler = attributes
            for attribute, kind in ((network, nn.Module), (optimizer, Optimizer)):
                found = getattr(self, attribute, None)
                if not isinstance(found, kind):
                    raise ConfigurationError(
                        "no-network",
                        f"_init_{name} left self.{attribute} as {found!r}; create a network and "
                        f"its optimizer: self.{network} = MyNetwork().to(self.device); "
                        f"self.{optimizer} = self.build_optimizer(self.{network}).",
                    )
            getattr(self, network).to(self.device)
            if not hasattr(self, scheduler):
                rate = getattr(self.config.train, name).learning_rate
                setattr(
                    self, scheduler, TorchScheduler(getattr(self, optimizer), rate_schedule(rate))
                )

    def _init_dataloaders(self) -> None:
        """Create `train_loader` and `val_loader`; any loader of (inputs, targets) will do."""
        self.train_loader = self.build_dataloader("train")
        self.val_loader = self.build_dataloader("val", is_train=False)

    def _init_gradscalers(self) -> None:
        """Create `g_scaler` and `d_scaler`, which `update` uses; they do nothing unless the
        precision is fp16."""
        self._core.adopt()
        self.g_scaler = self._core.scaler_of(self.opt_gen)
        self.d_scaler = self._core.scaler_of(self.opt_disc)

    def _complete_scalers(self) -> None:
        """Let `update` use the scalers there are, also those of an `_init_gradscalers` of one's
        own."""
        self._core.adopt()
        for name, optimizer in (("g_scaler", self.opt_gen), ("d_scaler", self.opt_disc)):
            given = getattr(self, name, None)
            if isinstance(given, torch.amp.GradScaler):
                self._core.use_scaler(optimizer, given)
            else:
                setattr(self, name, self._core.scaler_of(optimizer))

    def _init_losses(self, loss_subspec: str) -> None:
        """Register the losses of both networks with the loss manager."""
        self.loss_manager.init_from_spec(
            pix2pix, self.config, loss_subspec, perceptual=self._perceptual[0], device=self.device
        )

    def _init_from_checkpoint(self) -> None:
        """Go on exactly; where there are only exported networks, from those, with the rates of
        their epoch."""
        train = self.config.train
        if self._stored_state() is not None:
            self.continue_run()
            return
        self.load_checkpoint("G", self.gen, self.opt_gen, train.generator.learning_rate.initial)
        self.load_checkpoint(
            "D", self.disc, self.opt_disc, train.discriminator.learning_rate.initial
        )
        for scheduler in (self.gen_lr_scheduler, self.disc_lr_scheduler):
            if isinstance(scheduler, ScheduledRate):
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
        names = [
            name for name in self.loss_manager.get_loss_weights(query=["G"]) if name != "G_GAN"
        ]
        return tuple(self.loss_manager.compute_loss_xy(name, y_fake, y) for name in names)

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
            self._print(f"Beginning epoch: {self.current_epoch}", capture=False)
            self.loss_manager.print_weights()

    def train_step(
        self, x: Tensor, y: Tensor, idx: int, **kwargs: Any
    ) -> Mapping[str, Tensor] | None:
        """Called for each batch: generates images, updates the discriminator, then the
        generator."""
        y_fake = self.gen(x)
        losses = self.forward_D(x, y, y_fake)
        if not isinstance(losses, Mapping) or "loss_D" not in losses:
            raise ConfigurationError(
                "no-loss-d",
                f"forward_D returned {losses!r:.60}; return {{'loss_D': loss}}, where loss is the "
                "tensor that the discriminator is trained with.",
            )
        self.backward_D(losses["loss_D"])
        self.backward_G(self.forward_G(x, y, y_fake))
        if idx % self.config.visualizer.visdom.update_frequency == 0:
            self.update_display(x, y, y_fake, idx)
        return None

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
        self.print_losses(self.current_epoch or 0, idx)
        self.show_live(x, y_fake, y)

    def print_losses(
        self,
        epoch: int,
        iter: int,  # noqa: A002
        precision: int = 2,
        capture: bool = False,
    ) -> str | None:
        """Print the last values of all losses; with `capture`, return the line instead."""
        return self.loss_manager.print_losses(epoch, iter, precision, capture)

    def print_end_of_epoch(self, capture: bool = False, precision: int = 8) -> str | None:
        """Print the number and the duration of the epoch, and both learning rates of the next
        one."""
        lines = [super().print_end_of_epoch(capture=True) or ""]
        for name, optimizer in (("G", self.opt_gen), ("D", self.opt_disc)):
            lines.append(
                f"Next learning rate ({name}): {round(optimizer.param_groups[0]['lr'], precision)}"
            )
        return self._print("\n".join(lines), capture)

    def save_checkpoint(self, mode: str = "both", capture: bool = False) -> Path | str:
        """Write the whole state ("both"), or only the generator ("g") or the discriminator ("d")
        with its optimizer.

        With `capture`, returns a line that says where it is. Only from the whole state does a run
        continue exactly.
        """
        networks = {"g": (self.gen, self.opt_gen), "d": (self.disc, self.opt_disc)}
        kind = str(mode).lower()
        if kind not in networks:
            return super().save_checkpoint(mode, capture)
        path = self.export_model_weights(*networks[kind], kind.upper())
        return f"Checkpoint saved ({kind.upper()}): {path}" if capture else path

    def save_examples(self, silent: bool = False, capture: bool = False) -> list[Path] | str:
        """Write triplets of validation images and print where, unless `silent`; `capture` returns
        that line."""
        paths = self.save_xyz_examples(network=self.gen, dataloader=self.val_loader)
        text = f"Saved example images: {self.examples_dir}"
        if capture:
            return text
        if not silent:
            self._print(text, capture=False)
        return paths

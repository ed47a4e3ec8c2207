"""Pix2pix: a UNet that turns one image into another, against a PatchGAN that tells its images from real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .experiment import discard_unused
from .losses import LossManager
from .networks import Discriminator, UnetGenerator
from .objective import pix2pix
from .reading import ConfigSource
from .scheduling import ScheduledRate, rate_schedule
from .trainer import Trainer


class Pix2pixTrainer(Trainer):
    """Both networks, their optimizers, schedules and scalers, the data and the losses, all from a config.

    `loss_subspec` is "basic" (GAN and L1) or "extended" (and L2, Sobel, Laplacian), each with or without "+vgg", for
    which `perceptual` is a module or `train.loss.vgg_weights` a file.
    """

    loss_manager: LossManager

    def __init__(
        self,
        config: ConfigSource = None,
        loss_subspec: str = "basic",
        log_losses: bool = True,
        *,
        perceptual: nn.Module | None = None,
    ) -> None:
        super().__init__(config, quicksetup=True, log_losses=log_losses)
        try:
            self._init_lr_scheduling()
            self._init_generator()
            self._init_discriminator()
            self._init_dataloaders()
            self._init_gradscalers()
            self._init_losses(loss_subspec, perceptual)
            if self.is_continuing:
                self._init_from_checkpoint()
        except BaseException:
            if self._engine.runtime.is_main:
                discard_unused(self._directory())  # no version is used up by a mistake in the config
            raise

    # Setting up

    def _init_lr_scheduling(self) -> None:
        """Without separate schedules, the discriminator has the generator's: a copy, never the same object."""
        train = self.config.train
        if not train.separate_lr_schedules:
            train.discriminator.learning_rate = train.generator.learning_rate.model_copy()

    def _init_generator(self) -> None:
        settings, load = self.config.train.generator, self.config.dataloader.load
        self.gen: nn.Module = UnetGenerator(
            input_size=load.crop_size,
            in_channels=load.input_nc,
            features=settings.features,
            n_downs=settings.n_downs,
            block_type=settings.block_type,
            upconv_type=settings.upsample_type,
        ).to(self.device)
        rate = settings.learning_rate
        self.opt_gen = self.build_optimizer(self.gen, lr=rate.initial, beta1=settings.optimizer.beta1)
        self.gen_lr_scheduler = ScheduledRate(self.opt_gen, rate_schedule(rate))

    def _init_discriminator(self) -> None:
        settings = self.config.train.discriminator
        self.disc: nn.Module = Discriminator(
            in_channels=self.config.dataloader.load.input_nc,
            base_channels=settings.base_channels,
            n_layers=settings.n_layers,
            max_channels=settings.max_channels,
        ).to(self.device)
        rate = settings.learning_rate
        self.opt_disc = self.build_optimizer(self.disc, lr=rate.initial, beta1=settings.optimizer.beta1)
        self.disc_lr_scheduler = ScheduledRate(self.opt_disc, rate_schedule(rate))

    def _init_dataloaders(self) -> None:
        self.train_loader = self.build_dataloader("train")
        self.val_loader = self.build_dataloader("val")

    def _init_gradscalers(self) -> None:
        """Each network's own loss scaler, which `update` uses; None where the precision needs none."""
        self._engine.adopt()
        self.g_scaler = self._engine.optimization.lane(self.opt_gen).scaler
        self.d_scaler = self._engine.optimization.lane(self.opt_disc).scaler

    def _init_losses(self, loss_subspec: str, perceptual: nn.Module | None = None) -> None:
        self.loss_manager.init_from_spec(pix2pix, self.config, loss_subspec, perceptual=perceptual, device=self.device)

    def _init_from_checkpoint(self) -> None:
        """Go on exactly; where there are only exported networks, from those."""
        train = self.config.train
        if self._stored_state() is not None:
            self.continue_run()
            return
        self.load_checkpoint("G", self.gen, self.opt_gen, train.generator.learning_rate.initial)
        self.load_checkpoint("D", self.disc, self.opt_disc, train.discriminator.learning_rate.initial)

    # A step

    def forward_D(self, x: Tensor, y: Tensor, y_fake: Tensor) -> dict[str, Tensor]:  # noqa: N802
        """The discriminator's losses on real and generated images, and their mean."""
        real, fake = self.disc(x, y), self.disc(x, y_fake.detach())
        loss_real = self.loss_manager.compute_loss_xy("D_real", real, torch.ones_like(real))
        loss_fake = self.loss_manager.compute_loss_xy("D_fake", fake, torch.zeros_like(fake))
        return {"loss_D": (loss_real + loss_fake) * 0.5, "loss_D_real": loss_real, "loss_D_fake": loss_fake}

    def backward_D(self, loss_D: Tensor) -> None:  # noqa: N802, N803
        """Update the discriminator."""
        self.update(loss_D, self.opt_disc)

    def forward_G(self, x: Tensor, y: Tensor, y_fake: Tensor) -> Tensor:  # noqa: N802
        """The generator's loss: what the discriminator thinks of its images, and how far they are from the target."""
        verdict = self.disc(x, y_fake)
        total = self.loss_manager.compute_loss_xy("G_GAN", verdict, torch.ones_like(verdict))
        for name in self.loss_manager.get_loss_weights(query=["G"]):
            if name != "G_GAN":
                total = total + self.loss_manager.compute_loss_xy(name, y_fake, y)
        return total

    def backward_G(self, loss_G: Tensor) -> None:  # noqa: N802, N803
        """Update the generator; nothing of this loss reaches the discriminator."""
        self.update(loss_G, self.opt_gen)

    # The hooks

    def on_epoch_start(self, **kwargs: Any) -> None:
        """With `print_train_start`, say which epoch begins and with which weights."""
        if kwargs.get("print_train_start"):
            self._tell(f"Beginning epoch: {self.current_epoch}", capture=False)
            self.loss_manager.print_weights()

    def train_step(self, x: Tensor, y: Tensor, idx: int, **kwargs: Any) -> Mapping[str, Tensor] | None:
        y_fake = self.gen(x)
        self.backward_D(self.forward_D(x, y, y_fake)["loss_D"])
        self.backward_G(self.forward_G(x, y, y_fake))
        if idx % self.config.visualizer.visdom.update_frequency == 0:
            self.update_display(x, y, y_fake, idx)
        return None

    def on_epoch_end(self, **kwargs: Any) -> None:
        """Schedules go on, and the losses of the epoch go to the log."""
        self.update_schedulers()
        if self.log_losses:
            self.loss_manager.update_loss_log()

    def update_schedulers(self) -> None:
        """Set both learning rates for the epoch that comes next."""
        self.gen_lr_scheduler.step()
        self.disc_lr_scheduler.step()

    # Showing and saving

    def update_display(self, x: Tensor, y: Tensor, y_fake: Tensor, idx: int) -> None:
        """Print the losses, and show a triplet and the curves in the folder `live`."""
        self.loss_manager.print_losses(self.current_epoch or 0, idx)
        self.show_live(x, y_fake, y)

    def print_end_of_epoch(self, capture: bool = False, precision: int = 8) -> str | None:
        """As the base, and the learning rates of the next epoch."""
        lines = [super().print_end_of_epoch(capture=True) or ""]
        for name, optimizer in (("G", self.opt_gen), ("D", self.opt_disc)):
            lines.append(f"Next learning rate ({name}): {round(optimizer.param_groups[0]['lr'], precision)}")
        return self._tell("\n".join(lines), capture)

    def save_examples(self) -> list[Path]:
        """Triplets of the validation images."""
        return self.save_xyz_examples(self.gen, self.val_loader)

"""Every method that the document names, replaced whole with the ordinary torch idioms: the same run
to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from loopwright.interfaces.adversarial import (
    Discriminator,
    LMLoss,
    PairedDataset,
    Pix2pixTrainer,
    Schedule,
    TorchScheduler,
    UnetGenerator,
    read_loss_log,
)
from loopwright.losses import GANLoss

from .runs import SIZE, tiny, train
from .test_pix2pix import plain, train_by_hand

NUM_EPOCHS = 3  # of which the last has a smaller learning rate


@pytest.fixture(scope="module")
def by_hand(data: Path) -> list[dict[str, torch.Tensor]]:
    """The weights of both networks after a loop that knows nothing of this library."""
    from loopwright.interfaces.adversarial import load_config

    dataset = PairedDataset(load_config(plain(data, Path("nowhere"))), data / "train")
    return [dict(network.state_dict()) for network in train_by_hand(dataset, NUM_EPOCHS)]


def assert_same_weights(trainer: Pix2pixTrainer, expected: list[dict[str, torch.Tensor]]) -> None:
    for network, weights in zip((trainer.gen, trainer.disc), expected, strict=True):
        for name, value in network.state_dict().items():
            assert torch.equal(value, weights[name]), name


# What users write. Each takes the place of the method of that name.


def _init_lr_scheduling(self: Any) -> None:
    settings = self.config.train
    if not settings.separate_lr_schedules:
        settings.discriminator.learning_rate = settings.generator.learning_rate


def _init_generator(self: Any) -> None:
    self.gen = UnetGenerator(SIZE, features=4, n_downs=1)
    self.gen.to(self.device)
    rate = self.config.train.generator.learning_rate
    self.opt_gen = self.build_optimizer(
        optimizer=torch.optim.Adam, network=self.gen, lr=rate.initial, beta1=0.5
    )


def _init_discriminator(self: Any) -> None:
    self.disc = Discriminator(n_layers=2, base_channels=4).to(self.device)
    self.opt_disc = torch.optim.Adam(self.disc.parameters(), lr=2e-4, betas=(0.5, 0.999))
    rate = self.config.train.discriminator.learning_rate
    schedule = Schedule(
        "linear", rate.epochs, rate.epochs + rate.epochs_decay + 1, rate.initial, rate.target
    )
    self.disc_lr_scheduler = TorchScheduler(self.opt_disc, schedule)


def build_optimizer(self: Any, network: Any, optimizer: Any, lr: float, beta1: float) -> Any:
    return optimizer(network.parameters(), lr=lr, betas=(beta1, 0.999))


def build_dataloader(self: Any, loader_type: str, is_train: bool = True) -> Any:
    folder = Path(self.config.dataloader.dataroot, loader_type).resolve()
    dataset = PairedDataset(config=self.config, root_dir=folder, is_train=is_train)
    return torch.utils.data.DataLoader(
        dataset, batch_size=self.config.dataloader.batch_size, shuffle=True, num_workers=0
    )


def _init_dataloaders(self: Any) -> None:
    self.train_loader = DataLoader(
        PairedDataset(self.config, Path(self.config.dataloader.dataroot) / "train"), 2, True
    )
    self.val_loader = None


def _init_gradscalers(self: Any) -> None:
    self.g_scaler = torch.amp.GradScaler(self.device, enabled=False)
    self.d_scaler = torch.amp.GradScaler(self.device, enabled=False)


def _init_losses(self: Any, loss_subspec: str) -> None:
    assert loss_subspec == "basic"
    losses = {
        name: LMLoss(name, GANLoss(), tags=[name[0]]) for name in ("G_GAN", "D_real", "D_fake")
    }
    self.loss_manager.init_from_spec(lambda: losses)
    self.loss_manager.register_loss_fn("G_L1", nn.L1Loss(), loss_weight=100.0, tags=["G"])


def forward_D(self: Any, x: Any, y: Any, y_fake: Any) -> Any:  # noqa: N802
    D_real, D_fake = self.disc(x, y), self.disc(x, y_fake.detach())
    compute = self.loss_manager.compute_loss_xy
    real = compute("D_real", D_real, torch.ones_like(D_real), self.current_epoch)
    fake = compute("D_fake", D_fake, torch.zeros_like(D_fake), self.current_epoch)
    return {"loss_D": (real + fake) * 0.5}


def backward_D(self: Any, loss_D: torch.Tensor) -> None:  # noqa: N802, N803
    self.opt_disc.zero_grad()
    self.d_scaler.scale(loss_D).backward()
    self.d_scaler.step(self.opt_disc)
    self.d_scaler.update()


def forward_G(self: Any, x: Any, y: Any, y_fake: Any) -> torch.Tensor:  # noqa: N802
    verdict = self.disc(x, y_fake)
    loss = self.loss_manager.compute_loss_xy(
        "G_GAN", verdict, torch.ones_like(verdict), self.current_epoch
    )
    loss += self.loss_manager.compute_loss_xy("G_L1", y_fake, y, self.current_epoch)
    return loss


def backward_G(self: Any, loss_G: torch.Tensor) -> None:  # noqa: N802, N803
    self.opt_gen.zero_grad()
    self.g_scaler.scale(loss_G).backward()
    self.g_scaler.step(self.opt_gen)
    self.g_scaler.update()


def compute_GAN_loss(self: Any, x: Any, y_fake: Any) -> torch.Tensor:  # noqa: N802
    verdict = self.disc(x, y_fake)
    return F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))


def compute_structure_loss(self: Any, y: Any, y_fake: Any) -> Any:
    return (F.l1_loss(y_fake, y) * 100.0,)


def on_epoch_start(self: Any, **kwargs: Any) -> None:
    self.seen = getattr(self, "seen", 0) + 1


def train_step(self: Any, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
    y_fake = self.gen(x)
    real, fake = self.disc(x, y), self.disc(x, y_fake.detach())
    loss_real = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
    loss_fake = F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
    self.opt_disc.zero_grad()
    ((loss_real + loss_fake) * 0.5).backward()
    self.opt_disc.step()
    verdict = self.disc(x, y_fake)
    loss = (
        F.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict))
        + F.l1_loss(y_fake, y) * 100.0
    )
    self.opt_gen.zero_grad()
    loss.backward()
    self.opt_gen.step()


def on_epoch_end(self: Any, **kwargs: Any) -> None:
    if self.log_losses:
        self.loss_manager.update_loss_log(silent=False)
    self.update_schedulers()


def update_schedulers(self: Any) -> None:
    self.disc_lr_scheduler.step()
    self.gen_lr_scheduler.step()


def update_display(self: Any, x: Any, y: Any, y_fake: Any, idx: int) -> None:
    losses = [self.loss_manager.get_loss_values(query=[tag]) for tag in "GD"]
    self.vis.update_images(x=x, y=y_fake, z=y, title="x | y_fake | y", image_size=32)
    self.vis.update_loss_graphs(self.current_epoch + idx / len(self.train_loader), *losses)


def save_checkpoint(self: Any, mode: str = "both") -> None:
    for net, network, optimizer in (("G", self.gen, self.opt_gen), ("D", self.disc, self.opt_disc)):
        content = {"state_dict": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(content, self.experiment_dir / f"epoch{self.current_epoch}_net{net}.pth.tar")


def save_examples(self: Any, silent: bool = False) -> None:
    (self.examples_dir / f"epoch{self.current_epoch}.txt").write_text("an example")


METHODS: list[Callable[..., Any]] = [
    *(
        _init_lr_scheduling,
        _init_generator,
        _init_discriminator,
        _init_dataloaders,
        _init_gradscalers,
        _init_losses,
    ),
    *(build_optimizer, build_dataloader, forward_D, backward_D, forward_G, backward_G),
    *(
        compute_GAN_loss,
        compute_structure_loss,
        on_epoch_start,
        train_step,
        on_epoch_end,
        update_schedulers,
    ),
    *(update_display, save_checkpoint, save_examples),
]


def replacing(*methods: Callable[..., Any]) -> type[Pix2pixTrainer]:
    return type("Mine", (Pix2pixTrainer,), {method.__name__: method for method in methods})


def run(kind: type[Pix2pixTrainer], config: dict[str, Any]) -> Pix2pixTrainer:
    """A training script as the document has it."""
    trainer = kind(config)
    for epoch in range(NUM_EPOCHS):
        trainer.train_paired(epoch)
        trainer.save_checkpoint()
        trainer.save_examples()
        trainer.print_end_of_epoch()
    return trainer


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m is not _init_dataloaders], ids=lambda m: m.__name__
)
def test_a_method_replaced_whole_trains_as_a_loop_by_hand(
    data: Path, tmp_path: Path, by_hand: Any, method: Callable[..., Any]
):
    trainer = run(replacing(method), plain(data, tmp_path))
    assert_same_weights(trainer, by_hand)
    assert trainer._core.progress.update == 3 * NUM_EPOCHS
    assert {update.num_updates for update in trainer._core.run.updates.by_name.values()} == {
        3 * NUM_EPOCHS
    }


def test_all_of_them_together_train_as_a_loop_by_hand(data: Path, tmp_path: Path, by_hand: Any):
    class Mine(replacing(*[m for m in METHODS if m is not train_step])):  # type: ignore[misc]
        def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
            y_fake = self.gen(x)
            self.backward_D(self.forward_D(x, y, y_fake)["loss_D"])
            self.backward_G(self.forward_G(x, y, y_fake))
            self.update_display(x, y, y_fake, idx)

    trainer = run(Mine, plain(data, tmp_path, visualizer={"visdom": {"enable": True}}))
    assert_same_weights(trainer, by_hand)
    assert {len(entry["losses"]) for entry in read_loss_log(trainer.experiment_dir).values()} == {
        3 * NUM_EPOCHS
    }
    assert sorted(path.name for path in trainer.experiment_dir.glob("epoch*_net*")) == [
        f"epoch{epoch}_net{net}.pth.tar" for epoch in (1, 2, 3) for net in "DG"
    ]
    assert len(list(trainer.examples_dir.iterdir())) == NUM_EPOCHS
    assert (trainer.experiment_dir / "live" / "images.png").is_file()
    assert trainer.seen == NUM_EPOCHS


def _casting(method: Callable[..., Any]) -> Callable[..., Any]:
    def within(self: Any, *args: Any) -> Any:
        with torch.amp.autocast(self.device):
            return method(self, *args)

    within.__name__ = method.__name__
    return within


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_steps_written_out_see_the_weights_of_the_step_before_under_autocast(
    data: Path, tmp_path: Path, precision: str
):
    """Autocast keeps copies of the weights: those of the discriminator are out of date once it has
    stepped."""
    runs = []
    for name, methods in (
        ("a", ()),
        ("b", (backward_D, backward_G)),
        ("c", (backward_D, backward_G, forward_G)),
    ):
        config = plain(data, tmp_path / name)
        config["common"]["precision"] = precision
        kept = [_casting(method) if method is forward_G else method for method in methods]
        runs.append(train(replacing(*kept)(config), 2))
    expected = [dict(network.state_dict()) for network in (runs[0].gen, runs[0].disc)]
    assert_same_weights(runs[1], expected)
    if precision == "bf16":  # which is what autocast means on a CPU
        assert_same_weights(runs[2], expected)


def test_a_scaler_of_ones_own_is_the_one_that_updates_use(data: Path, tmp_path: Path, by_hand: Any):
    class Mine(Pix2pixTrainer):
        def _init_gradscalers(self) -> None:
            self.g_scaler = self.d_scaler = torch.amp.GradScaler(
                self.device, init_scale=8.0, growth_interval=100
            )

    trainer = train(Mine(plain(data, tmp_path)), NUM_EPOCHS)
    assert trainer.g_scaler.state_dict()["_growth_tracker"] == 2 * 3 * NUM_EPOCHS
    assert_same_weights(trainer, by_hand)  # a power of two changes no bit


def test_a_generator_without_a_schedule_gets_the_one_of_the_config(data: Path, tmp_path: Path):
    class Mine(Pix2pixTrainer):
        def _init_generator(self) -> None:
            self.gen = nn.Conv2d(3, 3, 3, padding=1)
            self.opt_gen = torch.optim.SGD(self.gen.parameters(), lr=0.3)

    trainer, rates = Mine(tiny(data, tmp_path)), []
    for epoch in range(4):
        rates.append(trainer.opt_gen.param_groups[0]["lr"])
        trainer.train_paired(epoch)
    assert rates == pytest.approx([0.3, 0.3, 0.2, 0.1])


def test_a_loss_that_is_added_to_in_place_is_reported_as_it_was(data: Path, tmp_path: Path):
    trainer = Pix2pixTrainer(tiny(data, tmp_path))
    x, y = torch.rand(2, 1, 3, SIZE, SIZE).unbind()
    total = forward_G(trainer, x, y, trainer.gen(x)).item()
    values = trainer.loss_manager.get_loss_values(query=["G"], precision=None)
    assert total == pytest.approx(sum(values.values()))
    assert values["G_GAN"] < 5.0 < values["G_L1"]
    assert trainer.loss_manager.get_loss_tensors()["G_GAN"].item() == values["G_GAN"]

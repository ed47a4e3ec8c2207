"""Whose gradients are whose: `backward`, `step` and `clip_gradients` with several optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from loopwright.callbacks import NonFiniteGuard
from loopwright.data.random import seed_everything
from loopwright.interfaces.modular import DreamTrainer

from .programs import Config, assert_same, build_data, windows


def build_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(2)
    return nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


class Pair(DreamTrainer):
    """A GAN on the inputs of the points; subclasses say how its gradients reach their
    optimizers."""

    def configure_models(self) -> None:
        self.generator, self.discriminator = build_pair()

    def configure_optimizers(self) -> None:
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=self.config.g_lr)
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=self.config.d_lr)

    def configure_dataloaders(self) -> Any:
        return DataLoader(build_data(), batch_size=self.config.train_batch_size, shuffle=True), None

    def d_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        return (
            self.discriminator(fake.detach()).square().mean()
            + (self.discriminator(real) - 1).square().mean()
        )

    def g_loss(self, fake: Tensor) -> Tensor:
        return (self.discriminator(fake) - 1).square().mean()

    def fake(self, real: Tensor) -> Tensor:
        return self.generator(torch.randn(len(real), 2))


class Stepping(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake))
        self.step(self.d_optimizer)
        self.backward(self.g_loss(fake))
        self.step(self.g_optimizer)


class Naming(Pair):
    """Names the optimizer of each loss, and leaves the steps to the end of the window."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake), self.d_optimizer)
        self.backward(self.g_loss(fake), "g_optimizer")


class Freezing(Pair):
    """Leaves it all to the window's end, with the discriminator frozen for the generator's loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake))
        self.discriminator.requires_grad_(False)
        self.backward(self.g_loss(fake))
        self.discriminator.requires_grad_(True)


def pair_by_hand(
    *, is_alternating: bool, accumulate: int, clip: float | None, dtype: torch.dtype | None
) -> tuple[nn.Module, nn.Module]:
    """Both networks after two epochs; alternating means that the generator sees the discriminator
    just updated."""
    seed_everything(0)
    generator, discriminator = build_pair()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=0.02)
    scalers = [torch.amp.GradScaler("cpu", enabled=dtype is torch.float16) for _ in range(2)]
    inputs = build_data().tensors[0]
    seed_everything(0)

    def step(optimizer: Any, scaler: Any, module: nn.Module, grads: list[Tensor]) -> None:
        for param, grad in zip(module.parameters(), grads, strict=True):
            param.grad = grad
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()

    def add(
        sums: list[Tensor] | None, loss: Tensor, scaler: Any, module: nn.Module
    ) -> list[Tensor]:
        new = torch.autograd.grad(scaler.scale(loss), list(module.parameters()), retain_graph=True)
        return (
            list(new) if sums is None else [old + grad for old, grad in zip(sums, new, strict=True)]
        )

    for window in windows(len(inputs), 8, accumulate, 2):
        total = sum(len(batch) for batch in window)
        d_sums = g_sums = None
        for number, batch in enumerate(window, start=1):
            share = 1.0 if len(window) == 1 else total / len(batch)
            context = torch.autocast(
                "cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None
            )
            with context:
                real = inputs[batch]
                fake = generator(torch.randn(len(real), 2))
                d_loss = (
                    discriminator(fake.detach()).square().mean()
                    + (discriminator(real) - 1).square().mean()
                )
            d_sums = add(d_sums, d_loss / share, scalers[0], discriminator)
            if number == len(window) and is_alternating:
                step(d_optimizer, scalers[0], discriminator, d_sums)
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                g_loss = (discriminator(fake) - 1).square().mean()
            g_sums = add(g_sums, g_loss / share, scalers[1], generator)
        assert g_sums is not None
        assert d_sums is not None
        step(g_optimizer, scalers[1], generator, g_sums)
        if not is_alternating:
            step(d_optimizer, scalers[0], discriminator, d_sums)
    return generator, discriminator


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        (Stepping, "fp32"),
        (Stepping, "bf16"),
        (Naming, "fp32"),
        (Naming, "fp16"),
        (Freezing, "bf16"),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gan_is_that_of_a_loop_by_hand_however_it_says_whose_gradients_are_whose(
    kind: type[Pair], accumulate: int, precision: str
) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulate, "gradient_clip_val": 0.05}
    trainer = kind(Config(n_epochs=2, precision=precision, **options))
    trainer.fit()
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    generator, discriminator = pair_by_hand(
        is_alternating=kind is Stepping, accumulate=accumulate, clip=0.05, dtype=dtype
    )
    assert_same(trainer.generator, generator)
    assert_same(trainer.discriminator, discriminator)


def test_one_backward_pass_in_half_precision_serves_optimizers_that_scale_differently() -> None:
    class Steep(Stepping):
        def g_loss(self, fake: Tensor) -> Tensor:
            # overflows for the generator where the discriminator's does not
            return super().g_loss(fake) * 64.0

    trainer = Steep(Config(n_epochs=4, precision="fp16"))
    trainer.fit()
    updates = trainer._core.run.updates.by_name.values()
    scales = [update.scaler.get_scale() for update in updates]
    assert scales[0] < scales[1]
    before = nn.ModuleList(build_pair()).parameters()
    after = nn.ModuleList([trainer.generator, trainer.discriminator]).parameters()
    for old, new in zip(before, after, strict=True):
        assert new.isfinite().all()
        assert not torch.equal(old, new)


def test_a_turn_taken_in_the_middle_of_a_window_is_stepped_at_its_end() -> None:
    class Seldom(Stepping):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx % 2 == 0:
                self.backward(self.g_loss(self.fake(batch[0])))
                self.step(self.g_optimizer)
            self.backward(self.d_loss(batch[0], self.fake(batch[0])))
            self.step(self.d_optimizer)

    trainer = Seldom(Config(gradient_accumulation_steps=2))
    trainer.fit()
    updates = trainer._core.run.updates.by_name
    assert (updates["g_optimizer"].num_updates, updates["d_optimizer"].num_updates) == (3, 3)
    assert all(param.grad is None for param in trainer.generator.parameters())


def test_clip_gradients_comes_in_place_of_the_configs_clipping_and_once() -> None:
    class Clipping(Stepping):
        norms: list[float] = []

        def on_optimizer_step_end(self, optimizer: str) -> None:
            self.norms.append(float(self._core.run.updates.by_name[optimizer].norm))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.g_loss(self.fake(batch[0])), self.g_optimizer)
            self.clip_gradients(self.g_optimizer, max_norm=1e-3)

    clipped, unclipped = Clipping(Config(gradient_clip_val=5.0)), Clipping(Config())
    clipped.fit()
    unclipped.fit()
    assert_same(clipped.generator, unclipped.generator)
    assert len(Clipping.norms) == 10
    assert min(Clipping.norms) > 1e-3  # norms before clipping: it was not done before


def spoilt(loss: Callable[[Pair, Tensor], Tensor], **config: Any) -> Pair:
    class Spoilt(Stepping):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            fake = self.fake(batch[0])
            self.backward(loss(self, fake) * (float("nan") if batch_idx == 1 else 1.0))

    trainer = Spoilt(Config(**config))
    trainer.fit()
    return trainer


def test_a_window_with_a_loss_that_is_not_finite_can_be_skipped_for_all_optimizers() -> None:
    guard = NonFiniteGuard("skip")
    trainer = spoilt(
        lambda trainer, fake: trainer.g_loss(fake), callbacks=[guard], gradient_accumulation_steps=2
    )
    updates = trainer._core.run.updates.by_name
    assert (
        updates["g_optimizer"].num_updates,
        updates["d_optimizer"].num_updates,
        guard.num_skipped,
    ) == (2, 2, 1)
    assert all(param.isfinite().all() for param in trainer.generator.parameters())


class TwiceEach(Pair):
    """Steps both optimizers twice in a batch, in turns; their schedulers count updates."""

    def configure_schedulers(self) -> None:
        self.g_decay = torch.optim.lr_scheduler.ExponentialLR(self.g_optimizer, 0.9)
        self.d_decay = torch.optim.lr_scheduler.ExponentialLR(self.d_optimizer, 0.8)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for _ in range(2):
            fake = self.fake(batch[0])
            self.backward(self.d_loss(batch[0], fake))
            self.step(self.d_optimizer)
            self.backward(self.g_loss(fake))
            self.step(self.g_optimizer)


def test_schedulers_follow_every_step_of_optimizers_that_take_turns_in_a_batch() -> None:
    trainer = TwiceEach(Config(n_epochs=1, scheduler_interval="update"))
    trainer.fit()
    num_updates = 2 * trainer.global_step
    assert (trainer.d_decay.last_epoch, trainer.g_decay.last_epoch) == (num_updates, num_updates)

"""Steps of several optimizers, replaced whole: whose a loss is, and the loop that one writes by
hand."""

from __future__ import annotations

from typing import Any

import pytest

from ...mistakes import raises
from .programs import Config, assert_same
from .test_gradients import Pair, pair_by_hand


class OwnPair(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.d_optimizer.zero_grad()
        self.backward(self.d_loss(batch[0], fake))
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        self.backward(self.g_loss(fake))
        self.g_optimizer.step()


class RawPair(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.d_optimizer.zero_grad()
        self.d_loss(batch[0], fake).backward()
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        self.g_loss(fake).backward()
        self.g_optimizer.step()


class LoopPair(OwnPair):
    def training_loop(self) -> None:
        for _ in range(self.config.n_epochs):
            for batch in self.train_loader:
                OwnPair.training_step.__wrapped__(self, batch, 0)  # as if it stood here


@pytest.mark.parametrize("kind", [OwnPair, RawPair, LoopPair])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_gan_with_steps_of_its_own_is_that_of_a_loop_by_hand(
    kind: type[Pair], clip: float | None
) -> None:
    trainer = kind(Config(n_epochs=2, gradient_clip_val=clip))
    trainer.fit()
    generator, discriminator = pair_by_hand(
        is_alternating=True, accumulate=1, clip=clip, dtype=None
    )
    assert_same(trainer.generator, generator)
    assert_same(trainer.discriminator, discriminator)


class Unnamed(Pair):
    """The losses of a GAN, one after the other, and not a word about whose they are."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake))
        self.backward(self.g_loss(fake))


class Alternating(Pair):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.g_loss(fake) if batch_idx % 2 else self.d_loss(batch[0], fake))


def test_losses_that_could_be_for_one_optimizer_or_two_are_refused() -> None:
    trainer = Unnamed(Config())
    with raises("unclear-optimizer", "self.backward(loss, self.g_optimizer)"):
        trainer.fit()
    assert not any(update.num_updates for update in trainer._core.run.updates.by_name.values())


def test_losses_of_alternating_batches_are_refused_by_the_third() -> None:
    trainer = Alternating(Config())
    with raises("unclear-optimizer"):
        trainer.fit()
    assert trainer.global_step == 2


def test_losses_that_reach_different_optimizers_go_to_those() -> None:
    class Two(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.fake(batch[0]).square().mean())
            self.backward(self.discriminator(batch[0]).square().mean())

    class Named(Pair):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.backward(self.fake(batch[0]).square().mean(), self.g_optimizer)
            self.backward(self.discriminator(batch[0]).square().mean(), self.d_optimizer)

    two, named = Two(Config(n_epochs=2)), Named(Config(n_epochs=2))
    two.fit()
    named.fit()
    assert_same(two.generator, named.generator)
    assert_same(two.discriminator, named.discriminator)

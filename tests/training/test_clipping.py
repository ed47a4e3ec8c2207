"""Clipping where there are no gradients does nothing, which torch does not say: it is an error in
the first step."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback
from loopwright.interfaces.simple import Trainer as SimpleTrainer
from tests.loops import build_net
from tests.mistakes import raises
from tests.training.own_steps import Own, cross_entropy, own, sgd


def test_clipping_before_the_update_is_an_error_in_the_first_step(points: TensorDataset) -> None:
    class Before(Own):
        def train_step(self, batch: Any) -> Any:
            loss = self.loss(batch)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.update(loss)
            return {"loss": loss}

    trainer = own(Before)
    with raises("clipped-nothing"):
        trainer.train(points, 1, batch_size=8)
    assert trainer.begun == 1


def test_clipping_after_the_update_is_an_error_too(points: TensorDataset) -> None:
    class After(Own):
        def train_step(self, batch: Any) -> Any:
            loss = self.loss(batch)
            self.update(loss)
            nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
            return {"loss": loss}

    with raises("clipped-nothing", "clip_grad_value_ was called when no parameter had a gradient"):
        own(After).train(points, 1, batch_size=8)


def test_a_callback_may_clip_before_the_step_of_the_optimizer(points: TensorDataset) -> None:
    class Clip(Callback):
        norms: list[float]

        def on_optimizer_start(self, trainer: Any, optimizer: str) -> None:
            self.norms.append(float(clip_grad_norm_(trainer.model.parameters(), 1.0)))

    clip = Clip()
    clip.norms = []
    own(Own, loss_fn=cross_entropy, callbacks=clip).train(points, 1, batch_size=32)
    assert clip.norms
    assert all(norm > 0 for norm in clip.norms)


# In the words of each interface


def test_the_simple_interface_says_where_to_clip(points: TensorDataset) -> None:
    class Early(SimpleTrainer):
        def train_step(self, batch: Any) -> Any:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            return super().train_step(batch)

    net = build_net()
    with raises("clipped-nothing", "training.max_grad_norm"):
        Early(net, sgd(net.parameters()), cross_entropy).train(DataLoader(points, 8), 1)

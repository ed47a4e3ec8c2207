"""Clipping where there are no gradients does nothing, which torch does not say: it is an error in
the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Callback
from loopwright.interfaces.configured import TrainerResult
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.simple import Trainer as SimpleTrainer
from tests.interfaces.configured.parts import CustomTrainer
from tests.interfaces.configured.parts import build_trainer as build_configured
from tests.interfaces.lifecycle.runs import build_trainer as build_lifecycle
from tests.interfaces.modular.programs import Config, MyTrainer
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


def test_gradients_of_some_parameters_are_enough(points: TensorDataset) -> None:
    class Unused(Own):
        def train_step(self, batch: Any) -> Any:
            loss = self.loss(batch)
            loss.backward()
            # as of a layer that this step does not use
            clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return {"loss": loss.detach()}

    assert len(own(Unused).train(points, 1, batch_size=8)["loss"]) == 1


def test_torch_has_its_own_functions_again_after_the_first_step(points: TensorDataset) -> None:
    from torch.nn.utils import clip_grad

    before = dict(vars(clip_grad))

    class Failing(Own):
        def train_step(self, batch: Any) -> Any:
            raise OSError("stop")

    class Changed(Own):
        steps: list[bool]

        def train_step(self, batch: Any) -> Any:
            self.steps.append(vars(clip_grad) != before)
            return super().train_step(batch)

    trainer = own(Changed, loss_fn=cross_entropy)
    trainer.steps = []
    trainer.train(points, 1, batch_size=32)
    assert trainer.steps[0]
    assert not any(trainer.steps[1:])
    assert len(trainer.steps) > 1
    with pytest.raises(OSError, match="stop"):
        own(Failing).train(points, 1, batch_size=32)
    assert vars(clip_grad) == before


# In the words of each interface


def test_the_simple_interface_says_where_to_clip(points: TensorDataset) -> None:
    class Early(SimpleTrainer):
        def train_step(self, batch: Any) -> Any:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            return super().train_step(batch)

    net = build_net()
    with raises("clipped-nothing", "training.max_grad_norm"):
        Early(net, sgd(net.parameters()), cross_entropy).train(DataLoader(points, 8), 1)


def test_the_lifecycle_interface_says_where_to_clip(points: TensorDataset) -> None:
    class Early(LifecycleTrainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            return super().calculate_train_batch_loss(batch)

    with raises("clipped-nothing", "gradient_clip_value="):
        build_lifecycle(kind=Early).train(points, 1)


def test_the_modular_interface_says_where_to_clip() -> None:
    class Early(MyTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            return super().training_step(batch, batch_idx)

    with raises("clipped-nothing", "gradient_clip_val"):
        Early(Config()).fit()


def test_the_configured_interface_says_where_to_clip() -> None:
    class Early(CustomTrainer):
        def train_step(self, batch: Any, model: nn.Module) -> TrainerResult:
            result = super().train_step(batch, model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return result

    with raises("clipped-nothing", "on_optimizer_start"):
        build_configured(kind=Early, max_epochs=1).train()

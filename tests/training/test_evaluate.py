"""Evaluation and prediction: what they give, and that they leave no trace in training."""

from __future__ import annotations

import random
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import StepResult, Trainer
from loopwright.data.random import rng_state
from tests.loops import assert_same_model, build_linear, build_net, evaluate_by_hand, train_by_hand

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def build_trainer(net: nn.Module | None = None, **options: object) -> Trainer:
    return Trainer(net or build_net(), sgd, cross_entropy, progress="silent", **options)  # type: ignore[arg-type]


# Evaluation


def test_evaluation_is_the_hand_written_one(points):
    trainer = build_trainer()
    assert trainer.evaluate(points, batch_size=37) == {
        "loss": pytest.approx(evaluate_by_hand(trainer.model, points), rel=1e-6)
    }


def test_evaluation_keeps_the_order_and_sees_every_sample_once(points):
    seen = []

    class Looking(Trainer):
        def eval_step(self, batch):
            seen.extend(batch[1].tolist())
            return 0.0

    Looking(build_net(), progress="silent").evaluate(
        TensorDataset(points.tensors[0], torch.arange(37)), batch_size=5
    )
    assert seen == list(range(37))


class Drawing(Trainer):
    """Draws from every generator while it evaluates."""

    def eval_step(self, batch):
        torch.randn(3)
        random.random()
        np.random.rand()
        return super().eval_step(batch)


def test_evaluation_leaves_every_generator_as_it_was(points):
    trainer = Drawing(build_net(), sgd, cross_entropy, progress="silent")
    trainer.setup()
    before = rng_state()
    trainer.evaluate(points)
    after = rng_state()
    assert torch.equal(before["torch"], after["torch"])
    assert torch.equal(before["python"]["words"], after["python"]["words"])
    assert torch.equal(before["numpy"]["keys"], after["numpy"]["keys"])
    assert before["numpy"]["position"] == after["numpy"]["position"]


def test_training_with_evaluation_is_the_training_without(points):
    theirs = build_net()
    trainer = Drawing(build_net(), torch.optim.SGD, cross_entropy, progress="silent")
    trainer.train(points, 2, eval_data=DataLoader(points, batch_size=5), batch_size=8)
    train_by_hand(theirs, torch.optim.SGD(theirs.parameters(), fused=True), points, epochs=2)
    assert_same_model(trainer.model, theirs)


def test_an_evaluation_nested_in_a_step_leaves_the_steps_size_alone(points):
    class Nesting(Trainer):
        def train_step(self, batch):
            self.evaluate(points, batch_size=37)
            return super().train_step(batch)

    ours = Nesting(build_net(), sgd, cross_entropy, progress="silent")
    theirs = build_trainer()
    assert ours.train(points, batch_size=8).epochs == theirs.train(points, batch_size=8).epochs
    assert_same_model(ours.model, theirs.model)


def test_an_evaluation_step_may_return_anything_a_step_may(points):
    class Sums(Trainer):
        def eval_step(self, batch):
            outputs = self.model(batch[0])
            return StepResult(
                cross_entropy(outputs, batch[1], reduction="sum"),
                count=len(batch[1]),
                metrics={"a": 1},
            )

    metrics = Sums(build_net(), progress="silent").evaluate(points, batch_size=8)
    assert metrics == {
        "loss": pytest.approx(evaluate_by_hand(build_net(), points), rel=1e-6),
        "a": 1.0,
    }


# Prediction


def test_predictions_are_the_models_outputs_in_order(points):
    trainer = build_trainer()
    outputs = trainer.predict(points, batch_size=8)
    trainer.model.eval()
    assert outputs.shape == (37, 3)
    torch.testing.assert_close(outputs, trainer.model(points.tensors[0]).detach())
    assert not outputs.requires_grad


class Many(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = build_linear(), form

    def forward(self, x):
        y = self.layer(x)
        forms = {
            "dict": {"a": y, "b": x},
            "tuple": (y, x),
            "scalar": y.sum(),
            "with loss": OrderedDict(loss=y.mean(), logits=y),
            "text": "x",
            "ragged": y[:, : len(x) % 4],
        }
        return forms[self.form]


def test_dicts_and_tuples_of_outputs_are_concatenated_part_by_part(points):
    of_dict = build_trainer(Many("dict")).predict(points, batch_size=8)
    assert {name: part.shape for name, part in of_dict.items()} == {"a": (37, 3), "b": (37, 6)}
    left, right = build_trainer(Many("tuple")).predict(points, batch_size=8)
    assert (left.shape, right.shape) == ((37, 3), (37, 6))


def test_a_loss_beside_the_outputs_is_a_value_per_batch(points):
    """As the models of Hugging Face return it, in a mapping of their own, where the data has
    labels."""
    trainer = build_trainer(Many("with loss"))
    outputs = trainer.predict(points, batch_size=8)
    expected = trainer.model.layer(points.tensors[0])
    assert torch.equal(outputs["logits"], expected)
    assert torch.equal(outputs["loss"], torch.stack([part.mean() for part in expected.split(8)]))


# One model, whatever its output is called

"""The modes that training and evaluation set, and leave behind."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.runtime.modes import evaluating
from tests.loops import assert_same_model, build_linear, build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def test_modes_come_back_as_they_were_after_a_failing_evaluation():
    net = build_net()
    net[1].eval()
    before = modes(net)
    seen = []

    def fail() -> None:
        with evaluating([net], []):
            seen.extend(modes(net))
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert seen == [False] * len(before)
    assert modes(net) == before


def test_frozen_batch_norm_stays_frozen_through_training_and_evaluation(points):
    net = build_net()
    net[1].eval()
    running = net[1].running_mean.clone()
    Trainer(net, sgd, cross_entropy, progress="silent").train(
        points, 2, eval_data=points, batch_size=8
    )
    assert modes(net) == [True, True, False, True, True, True]
    assert torch.equal(net[1].running_mean, running)


def test_a_model_in_eval_mode_is_put_into_train_mode(points):
    ours, theirs = build_net().eval(), build_net()
    Trainer(ours, sgd, cross_entropy, progress="silent").train(points, batch_size=8)
    Trainer(theirs, sgd, cross_entropy, progress="silent").train(points, batch_size=8)
    assert_same_model(ours, theirs)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_teacher_in_eval_mode_stays_in_eval_mode(points, is_frozen):
    seen = []

    class Distilling(Trainer):
        def configure_models(self):
            self.student, self.teacher = (
                build_linear(),
                build_net().eval().requires_grad_(not is_frozen),
            )

        def configure_optimizers(self):
            self.optimizer = torch.optim.SGD(self.student.parameters(), 0.1)

        def train_step(self, batch):
            seen.append(modes(self.teacher))
            with torch.no_grad():
                wanted = self.teacher(batch[0]).softmax(1)
            loss = cross_entropy(self.student(batch[0]), wanted)
            self.update(loss)
            return loss

        def eval_step(self, batch):
            return cross_entropy(self.student(batch[0]), batch[1])

    trainer = Distilling(progress="silent")
    trainer.train(points, 2, eval_data=points, batch_size=8)
    assert seen == [[False] * 6] * 10
    assert_same_model(trainer.teacher, build_net())


def test_modes_are_restored_after_an_evaluation_nested_in_training(points):
    class Peek(Callback):
        def on_update_end(self, trainer):
            before = modes(trainer.model)
            trainer.evaluate(points)
            assert modes(trainer.model) == before

        def on_eval_step_end(self, trainer, batch, result):
            assert not any(modes(trainer.model))

    ours, theirs = build_net(), build_net()
    ours[3].eval()
    theirs[3].eval()
    Trainer(ours, sgd, cross_entropy, callbacks=[Peek()], progress="silent").train(
        points, batch_size=8
    )
    Trainer(theirs, sgd, cross_entropy, progress="silent").train(points, batch_size=8)
    assert_same_model(ours, theirs)


class Switching(torch.optim.SGD):
    log: list[str] = []

    def train(self):
        self.log.append("train")

    def eval(self):
        self.log.append("eval")


def test_optimizers_that_have_modes_are_switched_with_the_models(points):
    net = build_linear()
    Switching.log.clear()
    Trainer(net, Switching(net.parameters(), 0.1), cross_entropy, progress="silent").train(
        points, 1, eval_data=points
    )
    assert Switching.log == ["train", "eval", "train"]


def test_an_evaluation_inside_another_leaves_the_modes_of_optimizers_alone():
    net = build_linear()
    optimizer = Switching(net.parameters(), 0.1)
    Switching.log.clear()
    with evaluating([net], [optimizer]):
        with evaluating([net], [optimizer]):
            pass
        assert optimizer.log == ["eval"]
    assert optimizer.log == ["eval", "train"]

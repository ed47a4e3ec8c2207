"""What a trainer finds on itself, what it refuses to train, and the modes it leaves behind."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.runtime.modes import evaluating
from loopwright.training.components import found_on

from .loops import assert_same_model, build_linear, build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def test_the_same_object_under_two_names_is_found_once():
    class Owner:
        pass

    owner = Owner()
    owner.a = owner.b = build_linear()
    owner.c = "not a module"
    assert list(found_on(owner, nn.Module, {})) == ["a"]
    assert list(found_on(owner, nn.Module, {"known": owner.a})) == ["known"]


def test_a_model_without_trainable_parameters_is_refused():
    net = build_linear().requires_grad_(False)
    with pytest.raises(ConfigurationError, match=r"none of the models \(model\).*requires_grad=True.*Unfreeze"):
        Trainer(net, torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), cross_entropy).train([])


@pytest.mark.parametrize("net", [nn.ReLU(), build_linear().requires_grad_(False)], ids=["no parameters", "all frozen"])
def test_a_factory_for_a_model_without_trainable_parameters_is_refused_with_the_same_words(net):
    with pytest.raises(ConfigurationError, match="Nothing to train"):
        Trainer(net, sgd, cross_entropy).train([])


def test_no_model_at_all_is_refused():
    with pytest.raises(ConfigurationError, match="Trainer has no model: pass `model=` or override `configure_models`"):
        Trainer(None, sgd, cross_entropy).train([])


def test_an_optimizer_of_another_model_is_refused_with_a_remedy():
    net, other = build_linear(), build_net()
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with pytest.raises(ConfigurationError, match=r"'optimizer' holds 6 of 6 parameters that belong to none.*factory"):
        Trainer(net, optimizer, cross_entropy).train([])


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
    Trainer(net, sgd, cross_entropy, progress="silent").train(points, 2, eval_data=points, batch_size=8)
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
            self.student, self.teacher = build_linear(), build_net().eval().requires_grad_(not is_frozen)

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
    Trainer(ours, sgd, cross_entropy, callbacks=[Peek()], progress="silent").train(points, batch_size=8)
    Trainer(theirs, sgd, cross_entropy, progress="silent").train(points, batch_size=8)
    assert_same_model(ours, theirs)


def test_optimizers_that_have_modes_are_switched_with_the_models(points):
    class Switching(torch.optim.SGD):
        log: list[str] = []

        def train(self):
            self.log.append("train")

        def eval(self):
            self.log.append("eval")

    net = build_linear()
    Switching.log.clear()
    Trainer(net, Switching(net.parameters(), 0.1), cross_entropy, progress="silent").train(points, 1, eval_data=points)
    assert Switching.log == ["train", "eval", "train"]


def test_an_evaluation_inside_another_leaves_the_modes_of_optimizers_alone():
    class Switching(torch.optim.SGD):
        log: list[str] = []

        def train(self):
            self.log.append("train")

        def eval(self):
            self.log.append("eval")

    net = build_linear()
    optimizer = Switching(net.parameters(), 0.1)
    with evaluating([net], [optimizer]):
        with evaluating([net], [optimizer]):
            pass
        assert optimizer.log == ["eval"]
    assert optimizer.log == ["eval", "train"]


def test_a_loss_with_weights_of_its_own_is_placed_but_not_exported(points, tmp_path):
    from safetensors.torch import load_file

    net = build_linear()
    trainer = Trainer(net, sgd, nn.CrossEntropyLoss(weight=torch.ones(3)), progress="silent")
    trainer.train(points)
    trainer.export(tmp_path / "weights.safetensors")
    assert set(load_file(tmp_path / "weights.safetensors")) == {"weight", "bias"}

"""One loss for several optimizers: one backward pass, then each is clipped, stepped, scheduled and
zeroed."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

from loopwright import Schedule, Trainer
from loopwright.callbacks import NonFiniteGuard
from loopwright.training.update import OptimizerUpdate, Window
from loopwright.training.updates import Updates
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    build_linear,
    build_net,
    train_by_hand,
)

cross_entropy = nn.functional.cross_entropy


def muon_and_adamw(net: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Muon for the matrices of a network, AdamW for everything else."""
    matrices = [p for p in net.parameters() if p.ndim == 2]
    others = [p for p in net.parameters() if p.ndim != 2]
    return {
        "muon": torch.optim.Muon(matrices, lr=0.02),
        "adamw": torch.optim.AdamW(others, lr=0.01),
    }


def two_sgd(net: nn.Module) -> dict[str, torch.optim.Optimizer]:
    """Biases first, so that the order of optimizers is not the order of the model's parameters."""
    vectors = [p for p in net.parameters() if p.ndim == 1]
    matrices = [p for p in net.parameters() if p.ndim == 2]
    return {"vectors": one_sgd(vectors), "matrices": one_sgd(matrices)}


one_sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

OPTIONS = {
    "plain": {},
    "accumulated with a short last window": {"accumulate": 2},
    "clipped by the norm": {"clip_norm": 0.1},
    "clipped by value": {"clip_value": 0.01},
    "accumulated and clipped": {"accumulate": 3, "clip_norm": 0.2},
    "bf16": {"precision": "bf16", "clip_norm": 0.1},
    "fp16": {"precision": "fp16", "clip_norm": 0.1, "accumulate": 2},
}
BY_HAND = {"bf16": {"autocast": torch.bfloat16}, "fp16": {"autocast": torch.float16}}


class Named(Trainer):
    """A step of one's own that names its optimizers."""

    which = staticmethod(lambda self: ["muon", "adamw"])

    def train_step(self, batch):
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.update(loss, self.which(self))
        return loss


def train(net, optimizers, data, kind=Trainer, loss_fn=cross_entropy, **options):
    trainer = kind(net, optimizers, loss_fn, progress="silent", **options)
    trainer.train(data, 2, batch_size=8)
    return trainer


@pytest.mark.parametrize("kind", [Trainer, Named])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_muon_and_adamw_on_one_model_are_the_hand_written_loop(points, options, kind):
    ours, theirs = build_net(), build_net()
    own, other = muon_and_adamw(ours), muon_and_adamw(theirs)
    trainer = train(ours, own, points, kind, **options)
    by_hand = BY_HAND.get(options.get("precision"), {}) | {
        k: v for k, v in options.items() if k != "precision"
    }
    scaler = torch.amp.GradScaler("cpu") if options.get("precision") == "fp16" else None
    train_by_hand(theirs, list(other.values()), points, epochs=2, scaler=scaler, **by_hand)
    assert_same_model(ours, theirs)
    for name, optimizer in own.items():
        assert_same_optimizer(optimizer, other[name])
    if scaler is not None:
        assert trainer.run.updates.by_name["muon"].scaler.state_dict() == scaler.state_dict()


class Sums(Trainer):
    """The loss of a sum over items that are not equally many in all batches."""

    def compute_loss(self, outputs, targets):
        is_counted = targets != 2
        return cross_entropy(
            outputs[is_counted], targets[is_counted], reduction="sum"
        ), is_counted.sum()


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2, "clip_norm": 0.1}], ids=["plain", "accumulated"]
)
def test_two_optimizers_with_the_same_settings_are_one_of_all_parameters_for_counted_sums(
    points, options
):
    ours, theirs = build_net(), build_net()
    train(ours, two_sgd(ours), points, Sums, None, **options)
    train(theirs, one_sgd(theirs.parameters()), points, Sums, None, **options)
    assert_same_model(ours, theirs)


def test_each_optimizer_follows_its_own_schedule_and_counts_its_own_updates(points):
    ours, theirs = build_net(), build_net()
    own, other = muon_and_adamw(ours), muon_and_adamw(theirs)

    def build_schedules(muon, adamw):
        return OneCycleLR(muon, max_lr=0.05, total_steps=6), ExponentialLR(adamw, gamma=0.9)

    cycle, decay = build_schedules(**own)
    schedules = {"muon": cycle, "adamw": Schedule(decay, every="update")}
    trainer = train(ours, own, points, scheduler=schedules, accumulate=2)

    class Both:
        schedulers = build_schedules(**other)

        def step(self):
            for scheduler in self.schedulers:
                scheduler.step()

    train_by_hand(theirs, list(other.values()), points, epochs=2, accumulate=2, every_update=Both())
    assert_same_model(ours, theirs)
    assert [update.num_updates for update in trainer.run.updates.by_name.values()] == [6, 6]
    assert trainer.progress.update == 6


def test_all_optimizers_have_their_event_before_the_first_of_them_is_stepped(points):
    net, seen = build_linear(), []

    class Watching(Trainer):
        def on_optimizer_start(self, optimizer):
            seen.append((optimizer, net.weight.grad is not None, net.bias.detach().clone()))

    start = net.bias.detach().clone()
    optimizers = two_sgd(net)
    Watching(net, optimizers, cross_entropy, progress="silent").train(
        points, num_updates=1, batch_size=8
    )
    assert [event[:2] for event in seen] == [("vectors", True), ("matrices", True)]
    assert all(torch.equal(bias, start) for _, _, bias in seen)
    assert net.weight.grad is net.bias.grad is None


def test_gradients_go_to_the_parameters_of_the_optimizers_named_and_to_no_others(points):
    first, second, third = (nn.Parameter(torch.ones(3)) for _ in range(3))
    model = nn.ParameterList([first, second, third])
    seen = []

    class Three(Trainer):
        def configure_optimizers(self):
            self.a, self.b, self.c = (torch.optim.SGD([p], 0.5) for p in (first, second, third))

        def on_optimizer_start(self, optimizer):
            seen.append((optimizer, [p.grad is not None for p in model]))

        def train_step(self, batch):
            loss = (first + second + third).sum()
            self.update(loss, ["b", "a"], retain_graph=True)
            self.update(2 * loss, "c")
            return loss

    Three(model, progress="silent").train(points, num_updates=1, batch_size=8)
    assert seen == [
        ("b", [True, True, False]),
        ("a", [True, True, False]),
        ("c", [False, False, True]),
    ]
    assert [param.tolist() for param in model] == [[0.5] * 3, [0.5] * 3, [0.0] * 3]


def test_a_resumed_run_goes_on_as_if_it_had_not_ended(points, tmp_path):
    def build(net, **options):
        own = muon_and_adamw(net)
        schedules = {"muon": OneCycleLR(own["muon"], max_lr=0.05, total_steps=10)}
        options |= {"precision": "fp16", "clip_norm": 0.1, "progress": "silent"}
        return Trainer(net, own, cross_entropy, scheduler=schedules, **options)

    nets = [build_net() for _ in range(3)]
    whole = build(nets[0])
    whole.train(points, num_updates=9, batch_size=8)
    build(nets[1], run_dir=tmp_path / "run").train(points, num_updates=4, batch_size=8)
    resumed = build(nets[2], run_dir=tmp_path / "run")
    resumed.train(points, num_updates=9, batch_size=8)
    assert_same_model(nets[2], nets[0])
    for name, update in resumed.run.updates.by_name.items():
        assert_same_optimizer(update.optimizer, whole.optimizers[name])
        assert update.state_dict() == whole.run.updates.by_name[name].state_dict()


# Values that are not finite


class Exploding(torch.autograd.Function):
    """The identity with infinite gradients."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.inf


class HalfBad(Trainer):
    """In the second update the gradients of the bias alone are infinite."""

    def forward(self, inputs):
        bad = self.progress.update == 1
        return inputs @ self.model.weight.T + (
            Exploding.apply(self.model.bias) if bad else self.model.bias
        )


@pytest.mark.parametrize(
    "options", [{"precision": "fp16"}, {"clip_norm": 0.5}], ids=["scaler", "norm"]
)
def test_if_the_gradients_of_one_optimizer_are_not_finite_none_of_them_is_stepped(points, options):
    nets, guard = (build_linear(), build_linear()), NonFiniteGuard("skip")
    options |= {"progress": "silent", "callbacks": [guard]}
    HalfBad(nets[0], two_sgd(nets[0]), cross_entropy, **options).train(
        points, num_updates=1, batch_size=8
    )
    HalfBad(nets[1], two_sgd(nets[1]), cross_entropy, **options).train(
        points, num_updates=2, batch_size=8
    )
    assert_same_model(*nets)
    assert not torch.equal(nets[0].weight, build_linear().weight)
    assert guard.num_skipped == ("precision" not in options)


def test_fused_optimizers_leave_out_a_bad_update_together_without_reading_the_device():
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    guard, seen = NonFiniteGuard("skip"), []
    guard.refuse = seen.append
    single = {
        str(number): OptimizerUpdate(
            str(number), torch.optim.AdamW([p], 0.1, fused=True), guard=guard, reads_are_free=False
        )
        for number, p in enumerate(params)
    }
    updates = Updates(single, Window(size=1))
    updates.refresh([nn.ParameterList(params)])
    updates.update((params[0].sum() * math.nan + params[1].sum()), ["0", "1"])
    assert [param.tolist() for param in params] == [[1.0, 1.0]] * 2
    assert not seen
    updates.check()
    assert seen == [
        "a loss, gradient or gradient norm of the optimizers '0', '1' since the last log point is "
        "not finite"
    ]
    updates.update(params[0].sum() + params[1].sum(), ["0", "1"])
    assert [param.tolist() for param in params] == [pytest.approx([0.899, 0.899])] * 2


# Callbacks


def test_the_default_step_trains_two_models_that_one_loss_goes_through(points):
    class Chain(Trainer):
        def forward(self, inputs):
            return self.head(torch.tanh(self.body(inputs)))

    def build():
        torch.manual_seed(4)
        return {"body": nn.Linear(6, 8), "head": nn.Linear(8, 3)}

    ours, theirs = build(), build()
    optimizers = {f"{name}_sgd": one_sgd(model.parameters()) for name, model in ours.items()}
    train(ours, optimizers, points, Chain, clip_norm=0.1, accumulate=2)
    whole = nn.Sequential(theirs["body"], nn.Tanh(), theirs["head"])
    others = [one_sgd(model.parameters()) for model in theirs.values()]
    train_by_hand(whole, others, points, epochs=2, clip_norm=0.1, accumulate=2)
    assert_same_model(nn.ModuleDict(ours), nn.ModuleDict(theirs))


def test_a_set_of_optimizers_has_the_same_order_in_every_process() -> None:
    net = build_net()
    updates = Updates(
        {name: OptimizerUpdate(name, one) for name, one in two_sgd(net).items()}, Window()
    )
    joint = [updates.find(set(names)) for names in (["vectors", "matrices"], [*updates.by_name])]
    by_object = updates.find({update.optimizer for update in updates.by_name.values()})
    assert {update.title for update in (*joint, by_object)} == {
        "the optimizers 'vectors', 'matrices'"
    }

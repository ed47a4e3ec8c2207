"""Losses and norms that are not finite never reach the weights, and finding them waits for no
device."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, NonFiniteLossError, Runtime, Trainer
from loopwright.callbacks.nonfinite import NonFiniteGuard
from tests.loops import assert_same_model, assert_same_optimizer, build_linear

cross_entropy = nn.functional.cross_entropy


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def poisoned(points: TensorDataset, at: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of four, the one numbered `at` with a NaN in it."""
    pairs = list(zip(points.tensors[0].clone().split(4), points.tensors[1].split(4), strict=True))
    pairs[at][0][1, 2] = math.nan
    return pairs


def test_a_nan_loss_raises_before_the_weights_change(points):
    net, clean = build_linear(), build_linear()
    with pytest.raises(
        NonFiniteLossError, match=r"loss of optimizer 'optimizer' is nan in update 4.*clip_norm"
    ):
        Trainer(net, sgd(net), cross_entropy, progress="silent").train(poisoned(points, 3))
    Trainer(clean, sgd(clean), cross_entropy, progress="silent").train(poisoned(points, 3)[:3])
    assert_same_model(net, clean)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipping_leaves_out_the_update_with_the_nan_and_no_other(points, accumulate):
    net, clean = build_linear(), build_linear()
    optimizer, other = sgd(net), sgd(clean)
    guard = NonFiniteGuard("skip")
    data = poisoned(points, 4)
    kept = data[:4] + data[4 + accumulate :]
    trainer = Trainer(
        net, optimizer, cross_entropy, callbacks=[guard], accumulate=accumulate, progress="silent"
    )
    history = trainer.train(data)
    Trainer(clean, other, cross_entropy, accumulate=accumulate, progress="silent").train(kept)
    assert_same_model(net, clean)
    assert_same_optimizer(optimizer, other)
    assert guard.num_skipped == 1
    assert math.isfinite(history.last("loss"))


def test_stopping_ends_training_without_the_bad_update(points):
    net, clean = build_linear(), build_linear()
    trainer = Trainer(
        net, sgd(net), cross_entropy, callbacks=[NonFiniteGuard("stop")], progress="silent"
    )
    trainer.train(poisoned(points, 3))
    Trainer(clean, sgd(clean), cross_entropy, progress="silent").train(poisoned(points, 3)[:3])
    assert_same_model(net, clean)
    assert "loss of optimizer 'optimizer' is nan" in trainer.stop_reason
    assert trainer.progress.update == 4


class Exploding(torch.autograd.Function):
    """The identity with infinite gradients."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.inf


def test_an_infinite_gradient_is_refused_before_clipping_hides_it(points):
    class Bad(Trainer):
        def compute_loss(self, outputs, targets):
            return Exploding.apply(cross_entropy(outputs, targets))

    for clipping in ({"clip_norm": 1.0}, {"clip_value": 1.0}):
        net = build_linear()
        with pytest.raises(
            NonFiniteLossError, match=r"gradient of 'weight' is not finite .* in update 1 "
        ):
            Bad(net, sgd(net), progress="silent", **clipping).train(points)
        assert_same_model(net, build_linear())


def test_a_norm_that_overflows_is_refused_though_each_gradient_is_finite(points):
    class Large(Trainer):
        def compute_loss(self, outputs, targets):
            return cross_entropy(outputs, targets) * 1e30

    net = build_linear()
    with pytest.raises(NonFiniteLossError, match="gradient norm of optimizer 'optimizer' is inf"):
        Large(net, sgd(net), clip_norm=1.0, progress="silent").train(points)
    assert_same_model(net, build_linear())


def test_training_goes_on_cleanly_after_an_exception_in_the_middle_of_a_window(points):
    class Once(Callback):
        def on_train_step_end(self, trainer, batch, result):
            if trainer.progress.step == 4:
                raise RuntimeError("once")

    class Sums(Trainer):
        def compute_loss(self, outputs, targets):
            return cross_entropy(outputs, targets, reduction="sum"), len(targets)

    data = poisoned(points, 0)[1:]
    net, clean = build_linear(), build_linear()
    trainer = Sums(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        callbacks=[Once()],
        accumulate=3,
        progress="silent",
    )
    with pytest.raises(RuntimeError, match="once"):
        trainer.train(data)
    trainer.train(list(data[6:]))
    other = Sums(clean, torch.optim.SGD(clean.parameters(), 0.1), accumulate=3, progress="silent")
    other.train(data[:3])
    other.train(data[6:])
    assert_same_model(net, clean)


# Without a wait for the device


class FarRuntime(Runtime):
    """The CPU, as if reading a number from it meant waiting for a queue."""

    @property
    def reads_are_free(self) -> bool:
        return False


def adam(net: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(net.parameters(), 0.01, fused=True)


@pytest.mark.usefixtures("rare_log_points")
def test_a_nan_on_the_device_never_reaches_the_weights_and_is_raised_at_the_next_log_point(points):
    net, clean = build_linear(), build_linear()
    trainer = Trainer(net, adam(net), cross_entropy, runtime=FarRuntime("cpu"), progress="silent")
    with pytest.raises(NonFiniteLossError, match="since the last log point"):
        trainer.train(poisoned(points, 3))
    assert trainer.progress.update == 10  # all of them, since the log point is the epoch's end
    Trainer(clean, adam(clean), cross_entropy, progress="silent").train(poisoned(points, 3)[:3])
    assert_same_model(net, clean)


@pytest.mark.usefixtures("rare_log_points")
def test_skipping_on_the_device_leaves_out_the_bad_update_only(points):
    net, clean = build_linear(), build_linear()
    optimizer, other = adam(net), adam(clean)
    data = poisoned(points, 4)
    options = {"callbacks": [NonFiniteGuard("skip")], "runtime": FarRuntime("cpu")}
    Trainer(net, optimizer, cross_entropy, progress="silent", **options).train(data)
    Trainer(clean, other, cross_entropy, progress="silent").train(data[:4] + data[5:])
    assert_same_model(net, clean)

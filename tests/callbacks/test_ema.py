"""Averages of the weights, against averages kept by hand, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA, Rewind, TorchMetrics

from ..loops import assert_same_model, build_linear, build_net, train_by_hand
from ..mistakes import raises
from .runs import assert_same_after_crash, assert_same_tree, build_trainer, train


class AverageByHand:
    """Stands where a scheduler does in the hand-written loop: stepped once an update."""

    def __init__(self, model: nn.Module, decay_at: Callable[[int], float]) -> None:
        self.model, self.average = model, deepcopy(model)
        self.decay_at = decay_at
        self.updates = 0

    @torch.no_grad()
    def step(self) -> None:
        self.updates += 1
        for own, param in zip(self.average.parameters(), self.model.parameters(), strict=True):
            own.lerp_(param, 1 - self.decay_at(self.updates))
        for own, buffer in zip(self.average.buffers(), self.model.buffers(), strict=True):
            own.copy_(buffer)


def average_by_hand(points: Any, decay_at: Callable[[int], float], **options: Any) -> nn.Module:
    model = build_net()
    by_hand = AverageByHand(model, decay_at)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train_by_hand(model, optimizer, points, epochs=2, every_update=by_hand, **options)
    return by_hand.average


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_moves_once_an_update_and_buffers_are_copied(points, accumulate):
    ema = EMA(0.9)
    trainer = build_trainer(
        [ema], optimizer=lambda p: torch.optim.SGD(p, 0.1), accumulate=accumulate
    )
    train(trainer, points, num_epochs=2)
    expected = average_by_hand(points, lambda _: 0.9, accumulate=accumulate)
    assert_same_tree(ema.state["model"], dict(expected.state_dict()))


def test_warmup_lets_the_first_updates_weigh_more(points):
    ema = EMA(0.9, warmup=True)
    train(build_trainer([ema], optimizer=lambda p: torch.optim.SGD(p, 0.1)), points, num_epochs=2)
    expected = average_by_hand(points, lambda n: min(0.9, (1 + n) / (10 + n)))
    assert_same_tree(ema.state["model"], dict(expected.state_dict()))


def test_averaging_changes_nothing_about_training(points):
    with_ema, without = train(build_trainer([EMA(0.9)]), points), train(build_trainer(), points)
    assert_same_model(with_ema.model, without.model)
    assert with_ema.history["eval_loss"] == without.history["eval_loss"]


def test_every_evaluation_is_repeated_with_the_averages_under_their_name(points):
    ema = EMA(0.9)
    trainer = train(build_trainer([ema]), points)
    assert set(trainer.history.names) == {"loss", "eval_loss", "eval_ema_loss"}
    other = build_net()
    other.load_state_dict(ema.state["model"])
    expected = build_trainer(model=other).evaluate(points, batch_size=8)["loss"]
    assert trainer.history.last("eval_ema_loss") == expected
    assert trainer.history.last("eval_loss") != expected


def test_two_averages_of_one_name_are_refused(points):
    with raises("two-averages", "ema"):
        train(build_trainer([EMA(0.9), EMA(0.5)]), points)


def test_the_weights_come_back_after_use_even_when_the_use_fails(points):
    ema = EMA(0.9)
    trainer = train(build_trainer([ema]), points)
    before = deepcopy(trainer.model)
    with ema.weights(trainer):
        assert_same_tree(dict(trainer.model.state_dict()), ema.state["model"])
    assert_same_model(trainer.model, before)
    with pytest.raises(RuntimeError), ema.weights(trainer):
        trainer.predict([torch.zeros(2, 5)])
    assert_same_model(trainer.model, before)


def test_a_loaded_trainer_has_the_averages_without_training(points, tmp_path):
    ema = EMA(0.9)
    trained = train(build_trainer([ema]), points)
    trained.save(tmp_path / "saved")
    again = EMA(0.9)
    loaded = build_trainer([again], model=build_net(seed=5))
    loaded.load(tmp_path / "saved")
    assert_same_tree(again.state, ema.state)
    assert loaded.evaluate(points) == trained.evaluate(points)


def test_half_precision_weights_are_averaged_in_single_precision(points):
    ema = EMA(0.999)
    data = [(points.tensors[0].bfloat16(), points.tensors[1])] * 3
    trainer = build_trainer(
        [ema], model=build_linear().bfloat16(), optimizer=lambda p: torch.optim.SGD(p, 0.1)
    )
    start = trainer.model.weight.detach().clone()
    trainer.train(data, 1)
    average = ema.state["model"]["weight"]
    assert average.dtype == torch.float32
    assert torch.count_nonzero(average - start.float()) > 0
    with ema.weights(trainer):
        assert trainer.model.weight.dtype == torch.bfloat16


class TwoModels(Trainer):
    def configure_models(self) -> None:
        self.first, self.second = build_linear(1), build_linear(2)

    def forward(self, inputs: Any) -> Any:
        return self.first(inputs) + self.second(inputs)


def two_models(ema: EMA) -> Trainer:
    return TwoModels(
        None, torch.optim.Adam, nn.functional.cross_entropy, callbacks=[ema], progress="silent"
    )


def test_all_models_are_averaged_unless_one_is_named(points):
    everything, one = EMA(0.9), EMA(0.9, model="second")
    train(two_models(everything), points, num_epochs=1)
    train(two_models(one), points, num_epochs=1)
    assert set(everything.state) == {"first", "second"}
    assert_same_tree(one.state, {"second": everything.state["second"]})


def test_averages_go_back_with_a_rewind(points):
    batches = [[tensor[i : i + 6].clone() for tensor in points.tensors] for i in range(0, 36, 6)]
    bad = [
        batch if number != 3 else [batch[0] * torch.nan, batch[1]]
        for number, batch in enumerate(batches)
    ]
    rewound, plain = EMA(0.9), EMA(0.9)
    build_trainer([rewound, Rewind(every_updates=2)]).train(bad, 2)
    build_trainer([plain]).train(batches[:3] + batches[4:], 2)
    assert rewound.num_updates == 10
    assert_same_tree(rewound.state_dict(), plain.state_dict())


@pytest.mark.parametrize("decay", [1.0, -0.1, [], [0.9, 0.9], [0.9, 1.0]])
def test_an_impossible_decay_is_refused(decay):
    with raises("ema-decay"):
        EMA(decay)


@pytest.mark.parametrize("after_update", [1, 5, 8])
def test_a_crashed_run_ends_with_the_same_averages(tmp_path, points, after_update):
    def build() -> list[Callback]:
        return [EMA([0.9, 0.7], warmup=True), EMA(0.5, name="fast")]

    assert_same_after_crash(tmp_path, points, build, after_update, num_epochs=2)


# Several decays


def test_several_decays_are_as_many_averages(points):
    both, slow, fast = EMA([0.9, 0.5]), EMA(0.9, name="slow"), EMA(0.5, name="fast")
    trainer = train(build_trainer([both, slow, fast]), points)
    assert_same_tree(both.states["ema_0.9"], slow.state)
    assert_same_tree(both.states["ema_0.5"], fast.state)
    assert trainer.history["eval_ema_0.9_loss"] == trainer.history["eval_slow_loss"]
    assert trainer.history["eval_ema_0.5_loss"] == trainer.history["eval_fast_loss"]


def test_one_of_several_averages_is_put_in_place_by_its_decay(points):
    both = EMA([0.9, 0.5])
    trainer = train(build_trainer([both]), points)
    with both.weights(trainer, decay=0.5):
        assert_same_tree(dict(trainer.model.state_dict()), both.states["ema_0.5"]["model"])
    for decay in (None, 0.7):
        with raises("unknown-decay"), both.weights(trainer, decay=decay):
            pass


def test_metrics_of_other_callbacks_are_measured_for_the_averages_too(points):
    for order in (1, -1):
        callbacks = [EMA(0.9), TorchMetrics({"accuracy": MulticlassAccuracy(3, average="micro")})][
            ::order
        ]
        trainer = train(build_trainer(callbacks), points)
        with_average = callbacks[::order][0]
        assert isinstance(with_average, EMA)
        accuracy = (trainer.predict(points).argmax(1) == points.tensors[1]).float().mean().item()
        with with_average.weights(trainer):
            averaged = (
                (trainer.predict(points).argmax(1) == points.tensors[1]).float().mean().item()
            )
        assert trainer.history.last("eval_accuracy") == accuracy
        assert trainer.history.last("eval_ema_accuracy") == averaged

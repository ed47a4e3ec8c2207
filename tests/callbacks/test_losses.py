"""Losses on data sets by name, which training does not notice, and running means of the training's
own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import OfflineLoss, OnlineLoss
from loopwright.callbacks.losses import FLUSH_STEPS

from ..loops import assert_same_model, build_net, evaluate_by_hand
from ..mistakes import raises
from .runs import assert_same_after_crash, assert_same_tree, build_trainer, state_of


@pytest.fixture
def others() -> TensorDataset:
    inputs = torch.randn(23, 6, generator=torch.Generator().manual_seed(8))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def run(points: Any, callbacks: Any, num_epochs: int = 2, **options: Any) -> Trainer:
    trainer = build_trainer(callbacks, **options)
    trainer.train(points, num_epochs, batch_size=8)
    return trainer


def test_the_loss_is_that_of_the_named_data_over_every_sample(points, others):
    trainer = run(points, [OfflineLoss("test", datasets={"test": others}, batch_size=7)])
    assert trainer.history.last("test_loss") == pytest.approx(
        evaluate_by_hand(trainer.model, others)
    )
    assert len(trainer.history["test_loss"]) == 2


@pytest.mark.parametrize(
    "every", [{"every_n_updates": 1}, {"every_n_samples": 10}, {"every_n_epochs": 1}]
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_is_bit_identical_to_training_without_it(points, others, every, accumulate):
    plain = run(points, [], accumulate=accumulate)
    watched = run(
        points, [OfflineLoss("test", datasets={"test": others}, **every)], accumulate=accumulate
    )
    assert_same_model(plain.model, watched.model)
    assert list(plain.history.steps["loss"]) == list(watched.history.steps["loss"])
    own, other = state_of(plain), state_of(watched)
    for part in ("models", "optimizers", "progress", "rng", "data"):
        assert_same_tree(own[part], other[part], part)


def test_a_name_that_is_not_there_is_refused_before_the_first_step(points, others):
    trainer = build_trainer([OfflineLoss("tset", datasets={"test": others})])
    with raises("unknown-data-set", "OfflineLoss(dataset_key='tset')", "did you mean test?"):
        trainer.train(points, 1)
    assert trainer.progress.step == 0


def test_training_data_that_can_be_read_only_once_is_not_evaluated(points):
    trainer = build_trainer([OfflineLoss("train")])
    with pytest.raises(ValueError, match="resum"):
        trainer.train(iter([tuple(t[:8] for t in points.tensors)]), 1)


@pytest.mark.parametrize("after_update", [4, 10])
def test_a_crashed_run_has_the_same_losses(tmp_path, points, others, after_update):
    def build() -> list[Any]:
        return [
            OfflineLoss("test", datasets={"test": others}, every_n_updates=2),
            OnlineLoss(every_n_samples=50),
        ]

    assert_same_after_crash(tmp_path, points, build, after_update)


# Running losses


def test_the_running_loss_is_the_mean_since_the_last_time(points):
    history = run(points, [OnlineLoss(every_n_updates=2)]).history
    losses, sizes = list(history.steps["loss"]), [8, 8, 8, 8, 5] * 2
    pairs = [(at, at + 1) for at in range(0, 10, 2)]
    sums = [
        sum(losses[at] * sizes[at] for at in pair) / sum(sizes[at] for at in pair) for pair in pairs
    ]
    assert list(history.steps["online_loss"]) == pytest.approx(sums)
    assert list(history.steps["online_loss"].steps) == [2, 4, 6, 8, 10]


def test_other_metrics_of_the_steps_have_running_means_too(points):
    class Named(Trainer):
        def compute_loss(self, outputs: Any, targets: Any) -> Any:
            loss = super().compute_loss(outputs, targets)
            return {"first": loss, "second": loss * 2}

    trainer = Named(
        build_net(),
        torch.optim.SGD,
        torch.nn.functional.cross_entropy,
        callbacks=[OnlineLoss()],
        progress="silent",
    )
    history = trainer.train(points, 1, batch_size=8)
    assert history.last("online_second") == pytest.approx(2 * history.last("online_first"))


def test_losses_do_not_pile_up_without_end(points):
    online = OnlineLoss()
    trainer = build_trainer([online])
    trainer.train(
        TensorDataset(torch.zeros(2 * FLUSH_STEPS, 6), torch.zeros(2 * FLUSH_STEPS).long()),
        batch_size=2,
    )
    assert trainer.history["online_loss"] == trainer.history["loss"]


def test_a_position_in_evaluation_data_that_goes_on_is_part_of_the_state(tmp_path, points):
    class Forever(torch.utils.data.IterableDataset):
        """Gives three samples an evaluation, others every time."""

        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Any:
            for _ in range(3):
                yield points[self.at % 37]
                self.at += 1

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["at"]

    assert_same_after_crash(
        tmp_path,
        points,
        lambda: [OfflineLoss("test", datasets={"test": Forever()}, every_n_updates=2)],
        7,
    )

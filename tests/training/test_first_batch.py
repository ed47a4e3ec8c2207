"""Metrics that somebody watches are looked for before the first step."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from loopwright import Callback, ConfigurationError, Schedule, Trainer
from loopwright.callbacks import BestCheckpoint
from loopwright.callbacks.stopping import EarlyStopping
from loopwright.data.random import rng_state
from loopwright.training.first_batch import peek
from tests.data.sources import SIZE, Drawing, Opening
from tests.loops import assert_same_model, build_net
from tests.mistakes import raises

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


class Watch(Callback):
    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def required_metrics(self):
        return self.names


class Measuring(Trainer):
    def eval_step(self, batch):
        outputs = self.model(batch[0])
        return {
            "loss": cross_entropy(outputs, batch[1]),
            "accuracy": (outputs.argmax(1) == batch[1]).float().mean(),
        }


def named_losses(outputs, targets):
    return {"fit": cross_entropy(outputs, targets), "size": outputs.square().mean()}


def train(
    points, callback, trainer_class=Measuring, loss_fn=cross_entropy, eval_data=None, **options
):
    net = build_net()
    trainer = trainer_class(net, sgd, loss_fn, callbacks=[callback], progress="silent", **options)
    trainer.train(points, 2, eval_data=eval_data, batch_size=8)
    return trainer


def test_a_misspelt_metric_in_early_stopping_is_found_before_the_first_step(points):
    steps = []

    class Counting(Measuring):
        def train_step(self, batch):
            steps.append(1)
            return super().train_step(batch)

    with raises("metric-not-measured") as caught:
        train(points, EarlyStopping("eval_acuracy"), Counting, eval_data=points)
    message = str(caught.value)
    assert "EarlyStopping watches 'eval_acuracy', which this run will not measure" in message
    assert "it will measure: eval_accuracy, eval_loss, loss" in message
    assert "Did you mean 'eval_accuracy'?" in message
    assert steps == []


def test_watching_an_evaluation_without_data_says_to_pass_some(points):
    with raises("metric-not-measured"):
        train(points, Watch("eval_loss"))


def test_a_schedule_watches_too(points):
    schedule = Schedule(ReduceLROnPlateau, metric="eval_acc")
    with raises("metric-not-measured"):
        train(points, Watch(), eval_data=points, scheduler=schedule)


def test_looking_changes_nothing(points):
    torch.manual_seed(5)
    first = train(points, Watch("eval_accuracy"), eval_data=points)
    generators = rng_state()["torch"]
    second = train(points, Watch(), eval_data=points)
    assert_same_model(first.model, second.model)
    assert first.history.epochs == second.history.epochs
    assert torch.equal(rng_state()["torch"], generators)


def test_a_misspelt_named_loss_is_found_without_an_evaluation(points):
    with raises("metric-not-measured"):
        train(points, Watch("fitt"), Trainer, named_losses)


def test_what_the_trainers_own_hook_logs_may_be_watched(points):
    class Logging(Measuring):
        def on_eval_end(self, data):
            self.log({"f1": 0.5})

        def on_train_epoch_end(self):
            self.log({"norm": 1.0})

    trainer = train(points, Watch("eval_f1", "norm"), Logging, eval_data=points)
    assert trainer.history["eval_f1"] == [0.5, 0.5]


def test_what_a_callback_promises_to_log_may_be_watched(points):
    class Adding(Watch):
        def metric_names(self, known):
            return {f"{name}_twice" for name in known if name == "eval_loss"}

        def on_eval_end(self, trainer, data):
            trainer.log({"loss_twice": 2.0})

    assert train(points, Adding("eval_loss_twice"), eval_data=points).history[
        "eval_loss_twice"
    ] == [2.0, 2.0]


def test_looking_at_a_batch_leaves_the_generators_and_the_data_as_they_were():
    seen = []

    class Looking(Trainer):
        def on_update_end(self):
            before, state = torch.get_rng_state(), self.run.data.train_stream.state_dict()
            (batch,) = peek(self.run)
            seen.append(
                torch.equal(before, torch.get_rng_state())
                and state == self.run.data.train_stream.state_dict()
            )
            assert batch.size == SIZE

    model = nn.Linear(1, 1)
    trainer = Looking(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), progress="silent"
    )
    trainer.train(Opening(Drawing), num_updates=3)
    assert seen == [True] * 3


@pytest.mark.parametrize(
    ("metric", "what"),
    [
        (
            "loss",
            "`BestCheckpoint('loss', every_n_updates=2)`, which has a value only after epochs",
        ),
        (
            "eval_accuracy",
            "`BestCheckpoint('eval_accuracy', every_n_updates=2)`, which has a value only after "
            "epochs",
        ),
    ],
)
def test_a_metric_of_epochs_that_is_watched_by_updates_is_refused(points, tmp_path, metric, what):
    with pytest.raises(
        ConfigurationError, match=f"{metric!r} every 2 updates, but .* only after epochs"
    ):
        train(
            points,
            BestCheckpoint(metric, "max", every_n_updates=2),
            eval_data=points,
            run_dir=tmp_path,
        )

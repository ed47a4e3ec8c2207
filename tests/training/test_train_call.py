"""A `train` call from beginning to end: where it stops, and how two calls make one run."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

from loopwright import Callback, Schedule, Trainer
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    build_linear,
    build_net,
    train_by_hand,
)

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def build_trainer(**options: object) -> Trainer:
    return Trainer(build_net(), sgd, cross_entropy, progress="silent", **options)  # type: ignore[arg-type]


def where(trainer: Trainer) -> tuple[int, int, int, int]:
    progress = trainer.progress
    return progress.epoch, progress.step, progress.update, progress.sample


# Limits


LIMITS = {
    "epochs": ({"num_epochs": 3}, (3, 15, 15, 111)),
    "no epochs": ({"num_epochs": 0}, (0, 0, 0, 0)),
    "updates inside an epoch": ({"num_updates": 7}, (1, 7, 7, 53)),
    "updates at the end of an epoch": ({"num_updates": 10}, (2, 10, 10, 74)),
    "samples between batches": ({"num_samples": 16}, (0, 2, 2, 16)),
    "samples inside a batch": ({"num_samples": 19}, (0, 3, 3, 19)),
    "samples in the second epoch": ({"num_samples": 40}, (1, 6, 6, 40)),
    "samples of a whole epoch": ({"num_samples": 37}, (1, 5, 5, 37)),
    "the smaller of two": ({"num_epochs": 2, "num_updates": 6}, (1, 6, 6, 45)),
    "the other smaller of two": ({"num_epochs": 1, "num_updates": 6}, (1, 5, 5, 37)),
    "no time": ({"max_time": 0}, (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("limit", "expected"), LIMITS.values(), ids=LIMITS.keys())
def test_a_limit_stops_exactly_there(points, limit, expected):
    trainer = build_trainer()
    trainer.train(points, batch_size=8, **limit)
    assert where(trainer) == expected


def test_a_limit_in_samples_cuts_a_window_short(points):
    ours, theirs = (
        Trainer(build_linear(), sgd, cross_entropy, accumulate=n, progress="silent") for n in (3, 1)
    )
    ours.train(points, batch_size=8, num_samples=12)
    assert where(ours) == (0, 2, 1, 12)
    theirs.train(points, batch_size=12, num_samples=12)
    torch.testing.assert_close(ours.model.weight, theirs.model.weight)


def test_time_is_up_after_the_update_that_took_too_long(points, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("loopwright.training.steps.monotonic", lambda: next(clock) * 10.0)
    monkeypatch.setattr("loopwright.training.evaluate.monotonic", lambda: next(clock) * 10.0)
    trainer = build_trainer()
    trainer.train(points, batch_size=8, max_time=25)
    assert trainer.progress.seconds == 30
    assert trainer.progress.update == 3


def test_stop_ends_training_after_the_update_it_was_called_in(points):
    class Stop(Callback):
        def on_train_step_end(self, trainer, batch, result):
            if trainer.progress.step == 3:
                trainer.stop("enough")

    trainer = build_trainer(callbacks=[Stop()], accumulate=2)
    trainer.train(points, 5, batch_size=8)
    assert where(trainer)[1:3] == (4, 2)
    assert trainer.stop_reason == "enough"


@given(
    batch_size=st.integers(1, 40),
    accumulate=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
@settings(max_examples=30, deadline=None)
def test_every_sample_is_seen_once_an_epoch_however_the_run_is_cut(batch_size, accumulate, cuts):
    seen = []

    class Looking(Trainer):
        def on_train_step_end(self, batch, result):
            seen.extend(batch[0][:, 0].long().tolist())

    data = TensorDataset(torch.arange(37.0).unsqueeze(1))
    trainer = Looking(
        nn.Linear(1, 1),
        sgd,
        lambda outputs: outputs.mean() * 0,
        accumulate=accumulate,
        progress="silent",
    )
    done = 0
    for cut in cuts:
        trainer.train(data, num_samples=cut, batch_size=batch_size)
        done += cut
        assert len(seen) == trainer.progress.sample == done
        assert trainer.progress.epoch == done // 37
    for start in range(0, done - 36, 37):
        assert sorted(seen[start : start + 37]) == list(range(37))
    assert len(trainer.history) == -(-done // 37)


# Two calls and one


CUTS = [(3, 12), (5, 10), (6, 9), (12, 3), (1, 14)]


@pytest.mark.parametrize(("first", "second"), CUTS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_calls_are_one_long_call(points, first, second, accumulate):
    def build() -> Trainer:
        schedule = Schedule(partial(ExponentialLR, gamma=0.9), every="update")
        return build_trainer(accumulate=accumulate, scheduler=schedule)

    cut, whole = build(), build()
    cut.train(points, num_updates=first, eval_data=points, batch_size=8)
    cut.train(points, num_updates=second, eval_data=points, batch_size=8)
    whole.train(points, num_updates=first + second, eval_data=points, batch_size=8)
    assert_same_model(cut.model, whole.model)
    assert_same_optimizer(cut.optimizers["optimizer"], whole.optimizers["optimizer"])
    assert cut.history.epochs == whole.history.epochs
    assert (
        cut.history.steps["loss"]
        .state_dict()["values"]
        .equal(whole.history.steps["loss"].state_dict()["values"])
    )
    assert where(cut) == where(whole)
    assert torch.equal(cut.run.generators.state()["torch"], whole.run.generators.state()["torch"])


def test_epoch_calls_are_one_long_call_and_the_hand_written_loop(points):
    cut, whole = build_trainer(), build_trainer()
    for _ in range(3):
        cut.train(points, num_epochs=1, batch_size=8)
    whole.train(points, num_epochs=3, batch_size=8)
    theirs = build_net()
    train_by_hand(theirs, sgd(theirs.parameters(), fused=True), points, epochs=3)
    assert_same_model(cut.model, whole.model)
    assert_same_model(cut.model, theirs)
    assert cut.history.epochs == whole.history.epochs


def test_other_data_in_the_next_call_ends_the_epoch_that_was_cut(points):
    other = TensorDataset(*(tensor[:16] for tensor in points.tensors))
    trainer = build_trainer()
    trainer.train(points, num_updates=2, batch_size=8)
    trainer.train(other, num_epochs=1, batch_size=8)
    assert where(trainer) == (2, 4, 4, 32)
    assert len(trainer.history) == 2


def test_a_call_after_an_exception_goes_on_from_there(points):
    class Once(Callback):
        def on_update_end(self, trainer):
            if trainer.progress.update == 3:
                raise RuntimeError("once")

    cut, whole = build_trainer(callbacks=[Once()]), build_trainer()
    with pytest.raises(RuntimeError, match="once"):
        cut.train(points, num_epochs=2, batch_size=8)
    cut.train(points, num_updates=7, batch_size=8)
    whole.train(points, num_epochs=2, batch_size=8)
    assert_same_model(cut.model, whole.model)
    assert cut.history.epochs == whole.history.epochs

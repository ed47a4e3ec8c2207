"""Where the time of a run goes: to the nanosecond by a clock that tests move, and by real work."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import Profile
from loopwright.profiling import Report

from ..distributed.ranks import run_ranks
from ..loops import build_net
from .hand_clock import SlowCallback, SlowData, slow_trainer

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


# Every moment belongs to one part


def test_each_part_has_exactly_the_time_that_was_spent_in_it(clock, monkeypatch):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", 1e9)
    profile = Profile(warmup=0)
    slow = SlowCallback(clock, on_train_step_start=3, on_update_end=5, on_log=7)
    trainer = slow_trainer(
        clock,
        forward=100,
        backward=200,
        step=50,
        takes=(11, 13, 17),
        callbacks=[slow, profile],
        accumulate=2,
    )
    trainer.train(SlowData(clock, 2), 2, batch_size=3)
    steps, updates = 8, 4
    assert profile.report.parts == {
        "data": 2 * 12 * 2,
        "transfer": 11 * steps,
        "forward": (100 + 13) * steps,
        "train_step": 17 * steps,
        "backward": 200 * steps,
        "optimizer": 50 * updates,
        "callbacks": 3 * steps + 5 * updates + 7 * 2,
    }
    assert profile.report.details("callbacks") == {"SlowCallback": 3 * steps + 5 * updates + 7 * 2}
    assert profile.report.num_steps == steps


def test_an_evaluation_is_one_part_with_its_own_details_and_callbacks_in_it_stay_callbacks(clock):
    profile, slow = Profile(warmup=0), SlowCallback(clock, on_eval_end=9)
    trainer = slow_trainer(clock, forward=100, takes=(10, 1, 0), callbacks=[profile, slow])
    trainer.train(SlowData(clock, 0), 2, SlowData(clock, 4, length=6), batch_size=6)
    report = profile.report
    assert report.parts["evaluation"] == 2 * (6 * 4 + 100 + 10 + 1)
    assert report.details("evaluation") == {"forward": 2 * 101, "data": 2 * 24, "transfer": 2 * 10}
    assert report.parts["callbacks"] == report.details("callbacks")["SlowCallback"] == 2 * 9
    assert report.parts["forward"] == 4 * 101


def test_steps_of_the_warm_up_are_left_out_and_start_with_them(clock):
    profile, slow = Profile(warmup=3), SlowCallback(clock, on_train_start=1_000_000)
    slow_trainer(clock, forward=10, callbacks=[profile, slow]).train(
        SlowData(clock, 0), 1, batch_size=2
    )
    assert profile.report.parts == {"forward": 3 * 10}
    assert (profile.report.num_steps, profile.report.warmup_steps) == (3, 3)


def test_with_a_number_of_steps_the_rest_of_the_run_is_left_alone(clock):
    seen = []

    class Look(Callback):
        def on_update_end(self, trainer):
            seen.append("flush" in vars(trainer.run))

    profile = Profile(warmup=1, steps=2)
    trainer = slow_trainer(clock, forward=10, callbacks=[profile, Look()])
    trainer.train(SlowData(clock, 0), 1, batch_size=2)
    assert seen == [True, True, True, False, False, False]
    assert (profile.report.num_steps, profile.report.parts) == (2, {"forward": 20})


def test_a_step_by_hand_in_plain_torch_is_divided_too(clock):
    class Plain(type(slow_trainer(clock))):
        def train_step(self, batch):
            x, y = batch
            loss = cross_entropy(self.model(x), y)
            self.clock.take(17)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return {"loss": loss}

    made, profile = slow_trainer(clock, forward=10, backward=20, step=30), Profile(warmup=0)
    trainer = Plain(made.model, made._given["optimizer"], callbacks=profile, progress="silent")
    trainer.clock = clock
    trainer.train(SlowData(clock, 0), 1, batch_size=6)
    assert profile.report.parts == {
        "forward": 20,
        "train_step": 34,
        "backward": 40,
        "optimizer": 60,
    }


# Several processes


def train_on_rank(rank, points, with_profile):
    profile = Profile(warmup=1)
    trainer = Trainer(
        build_net(dropout=0.0),
        sgd,
        cross_entropy,
        callbacks=[profile] if with_profile else [],
        runtime="ddp",
        progress="silent",
    )
    trainer.train(points, 2, points, batch_size=8)
    values = [value.clone() for value in trainer.model.state_dict().values()]
    return values, profile.report.as_dict() if profile.report else {}


def test_on_several_processes_each_measures_itself_and_names_the_wait_for_others(points):
    plain, timed = (run_ranks(train_on_rank, 2, points, is_on) for is_on in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain[0][0], timed[0][0], strict=True))
    report = Report.from_dict(timed[0][1])
    assert (report.world, report.num_steps) == (2, 9)
    assert report.parts["communication"] > 0
    assert "; rank 0 of 2 processes" in str(report)

"""The profile of a run as it is kept, printed, traced and resumed, and what is refused."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest
import torch
from torch import nn

from loopwright import Callback, Interrupted, Trainer
from loopwright.callbacks import Checkpoints, Profile
from loopwright.profiling import Report
from loopwright.run import Run
from tests.mistakes import raises

from ..loops import build_net
from .test_same_run import Failing, traces, weights_of

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def test_the_profile_of_a_run_is_in_its_directory(tmp_path, points):
    profile = Profile(warmup=1)
    run_dir = tmp_path / "run"
    Trainer(
        build_net(), sgd, cross_entropy, callbacks=profile, run_dir=run_dir, progress="silent"
    ).train(points, 2)
    stored = json.loads((run_dir / "profile.json").read_text())
    assert stored == profile.report.as_dict() == Run(run_dir).profile
    assert Report.from_dict(stored) == profile.report
    assert str(Report.from_dict(stored)) == str(profile.report)
    assert stored["version"] == 1
    assert stored["memory"]["process"] > 0


def test_a_resumed_run_is_the_same_and_has_the_profile_of_its_last_process(tmp_path, points):
    def train(name, updates, *callbacks):
        trainer = Trainer(
            build_net(),
            sgd,
            cross_entropy,
            callbacks=callbacks,
            run_dir=tmp_path / name,
            progress="silent",
        )
        trainer.train(points, num_updates=updates, batch_size=8)
        return trainer

    plain = train("plain", 12)
    train("timed", 5, Profile(warmup=0), Checkpoints(every_updates=1))
    profile = Profile(warmup=0)
    resumed = train("timed", 12, profile, Checkpoints(every_updates=1))
    assert all(
        torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(resumed), strict=True)
    )
    assert profile.report.num_steps == Run(tmp_path / "timed").profile["num_steps"] == 7


def test_a_failed_run_has_a_profile_too_and_prints_none(tmp_path, points, capsys):
    trainer = Trainer(
        *(build_net(), sgd, cross_entropy),
        callbacks=[Profile(warmup=0), Failing("on_eval_step_end")],
        run_dir=tmp_path / "run",
        progress="lines",
    )
    with pytest.raises(RuntimeError, match="as asked"):
        trainer.train(points, 1, points)
    assert Run(tmp_path / "run").profile["num_steps"] == 2
    assert "Where the time went" not in capsys.readouterr().out


def test_two_profiles_of_one_run_are_refused_and_leave_nothing(points):
    trainer = Trainer(
        build_net(), sgd, cross_entropy, callbacks=[Profile(), Profile()], progress="silent"
    )
    with raises("two-profiles"):
        trainer.train(points)
    assert traces(trainer)["timed"] == []
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_a_signal_ends_the_profile_with_its_report(tmp_path, points, capsys):
    class Signal(Callback):
        def on_update_end(self, trainer):
            if trainer.progress.update == 3:
                signal.raise_signal(signal.SIGTERM)

    trainer = Trainer(
        *(build_net(), sgd, cross_entropy),
        callbacks=[Profile(warmup=0), Signal()],
        run_dir=tmp_path / "run",
        progress="lines",
    )
    with pytest.raises(Interrupted):
        trainer.train(points, 5, batch_size=8)
    assert "Where the time went: 3 steps in " in capsys.readouterr().out
    assert Run(tmp_path / "run").profile["num_steps"] == 3

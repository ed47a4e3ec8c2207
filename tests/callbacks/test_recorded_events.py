"""Events, log lines and clock of a recorded run."""

import logging
import os
import signal
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Interrupted, Trainer
from loopwright.callbacks import BestModel, Checkpoints, Rewind
from loopwright.run import Run

from ..loops import build_net


def build(*callbacks, kind=Trainer, **options):
    model = build_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"progress": "silent", "run_dir": "run", **options}
    return kind(model, optimizer, nn.functional.cross_entropy, callbacks=callbacks, **options)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(points):
    return TensorDataset(*(tensor[:32] for tensor in points.tensors))


def events(run="run"):
    return [(event.kind, event.update, event.step) for event in Run(run).metrics.events()]


def kinds(run="run"):
    return [kind for kind, _, _ in events(run)]


def test_a_run_has_its_start_evaluations_best_values_checkpoints_and_end(data):
    build(BestModel("eval_loss")).train(data, num_epochs=2, eval_data=data, batch_size=8)
    assert events()[:3] == [("started", 0, 0), ("evaluation", 4, 4), ("best", 4, 4)]
    assert events()[-2:] == [("checkpoint", 8, 8), ("finished", 8, 8)]
    found = Run("run").metrics.events()
    assert found[1].detail == {"loss": Run("run").metrics.epochs("eval_loss")[0].value}
    assert found[2].detail == {"metric": "eval_loss", "value": found[1].detail["loss"]}
    assert all(event.wall > 1e9 for event in found)


def test_a_resumed_run_says_where_it_went_on_and_has_no_event_twice(data):
    saving = Checkpoints(every_updates=2, asynchronous=False)
    build(saving).train(data, num_updates=6, eval_data=data, batch_size=8)
    build(Checkpoints(every_updates=2, asynchronous=False)).train(
        data, num_updates=10, eval_data=data, batch_size=8
    )
    assert kinds().count("started") == 1
    resumed = next(event for event in Run("run").metrics.events() if event.kind == "resumed")
    assert (resumed.update, resumed.text) == (6, "at epoch 2, update 6")
    assert len({event for event in events() if event[0] == "evaluation"}) == kinds().count(
        "evaluation"
    )


def test_a_failed_run_has_its_traceback_in_the_event_and_in_the_log(data):
    class Fails(Trainer):
        def train_step(self, batch):
            if self.progress.step == 2:
                raise RuntimeError("the third step")
            return super().train_step(batch)

    with pytest.raises(RuntimeError, match="the third step"):
        build(kind=Fails).train(data, batch_size=8)
    run = Run("run")
    failed = run.metrics.events()[-1]
    assert (failed.kind, failed.text) == ("failed", "RuntimeError: the third step")
    assert 'raise RuntimeError("the third step")' in failed.detail["traceback"]
    line = run.metrics.log_lines()[-1]
    assert line.level == "ERROR"
    assert line.text == failed.detail["traceback"]


def test_a_signal_is_an_event(data):
    class Interrupts(Callback):
        def on_update_end(self, trainer):
            if trainer.progress.update == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        build(Interrupts()).train(data, num_epochs=5, batch_size=8)
    last = Run("run").metrics.events()[-1]
    assert (last.kind, last.text, last.update) == ("signal", "SIGTERM", 2)


def test_a_rewind_is_an_event_and_removes_what_was_logged_after_it(data):
    class Poisons(Trainer):
        has_poisoned = False

        def train_step(self, batch):
            self.log_text("step", "x")
            if self.progress.step == 2 and not self.has_poisoned:
                self.has_poisoned = True
                batch = [batch[0] * float("nan"), batch[1]]
            return super().train_step(batch)

    build(Rewind(every_updates=1), kind=Poisons).train(data, batch_size=8)
    assert kinds().count("rewind") == 1
    steps = [item.step for item in Run("run").metrics.media("step")]
    assert steps == list(range(1, Run("run").progress.step + 1))


def test_smaller_micro_batches_are_an_event(data):
    class RunsOut(Trainer):
        def train_step(self, batch):
            if len(batch[0]) > 4:
                raise torch.OutOfMemoryError("none left")
            self.log_text("part", str(len(batch[0])))
            return super().train_step(batch)

    build(kind=RunsOut).train(data, batch_size=8)
    event = next(event for event in Run("run").metrics.events() if event.kind == "micro_batches")
    assert (event.update, event.detail) == (1, {"number": 2})
    assert [(item.step, item.position) for item in Run("run").metrics.media("part")] == [
        (step, position) for step in range(1, 5) for position in range(2)
    ]


def test_lines_of_the_log_warnings_and_printed_lines_are_recorded(data, capsys):
    class Talks(Callback):
        def on_epoch_start(self, trainer):
            logging.getLogger("mine").warning("the %s", "first")
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("odd numbers", UserWarning, stacklevel=1)
            trainer.say("a printed line")

    build(Talks(), progress="lines").train(data, batch_size=8)
    lines = [(line.level, line.text) for line in Run("run").metrics.log_lines()]
    assert ("WARNING", "mine: the first") in lines
    assert ("INFO", "a printed line") in lines
    assert any(level == "WARNING" and "UserWarning: odd numbers" in text for level, text in lines)
    assert any(text.startswith("New run in run: cpu") for _, text in lines)
    assert "a printed line" in capsys.readouterr().out


def test_the_log_and_the_warnings_of_the_program_are_as_before_after_training(data):
    handlers, shown = list(logging.getLogger().handlers), warnings.showwarning
    build().train(data, batch_size=8)
    assert (logging.getLogger().handlers, warnings.showwarning) == (handlers, shown)

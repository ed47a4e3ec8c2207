"""Checkpoints of a model, and training states that a run goes on from exactly."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright import CheckpointError
from loopwright.errors import Interrupted
from loopwright.interfaces.lifecycle import (
    CosineLrScheduler,
    EarlyStoppingCallback,
    LimitBatchesCallback,
    ModelEmaCallback,
    RecordRunCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from loopwright.run import Run
from loopwright.training import steps

from ...loops import assert_same_model, assert_same_optimizer
from .runs import build_trainer, each, train


class CrashError(Exception):
    """Stands for whatever ends a process."""


def crash(trainer: Trainer) -> None:
    raise CrashError


def stop(trainer: Trainer) -> None:
    raise StopTrainingError("enough")


def at_step(step: int, action: Any) -> TrainerCallback:
    return each(
        "on_train_step_start",
        lambda trainer: action(trainer) if trainer._core.progress.step == step else None,
    )


def at_epoch(epoch: int, event: str, action: Any) -> TrainerCallback:
    return each(
        event,
        lambda trainer: action(trainer) if trainer.run_history.current_epoch == epoch else None,
    )


def assert_same_run(one: Trainer, other: Trainer) -> None:
    """Weights, optimizer, scheduler, history and counters, bit for bit."""
    assert_same_model(one.model, other.model)
    assert one.optimizer is not None
    assert other.optimizer is not None
    assert_same_optimizer(one.optimizer, other.optimizer)
    names = one.run_history.get_metric_names()
    assert names == other.run_history.get_metric_names()
    for name in names:
        assert one.run_history.get_metric_values(name) == other.run_history.get_metric_values(name)
    assert one.run_history.current_epoch == other.run_history.current_epoch
    assert one._core.progress.update == other._core.progress.update
    if one.scheduler is not None:
        assert one.scheduler.state_dict() == other.scheduler.state_dict()


def test_a_checkpoint_holds_model_optimizer_scheduler_and_more(
    points: TensorDataset, tmp_path: Path
) -> None:
    factory = partial(StepLR, step_size=3)
    trainer = train(build_trainer(), points, 1, create_scheduler_fn=factory)
    trainer.save_checkpoint(tmp_path / "saved", checkpoint_kwargs={"note": "first", "epoch": 1})
    other = train(build_trainer(seed=5, lr=0.3), points, 2, create_scheduler_fn=factory)
    content = other.load_checkpoint(tmp_path / "saved")
    assert_same_model(other.model, trainer.model)
    assert trainer.optimizer is not None
    assert other.optimizer is not None
    assert_same_optimizer(other.optimizer, trainer.optimizer)
    assert other.scheduler.last_epoch == 5
    assert (content["note"], content["epoch"]) == ("first", 1)
    assert {"model_state_dict", "optimizer_state_dict", "scheduler_state_dict"} <= content.keys()


def test_a_checkpoint_that_does_not_fit_changes_nothing(
    points: TensorDataset, tmp_path: Path
) -> None:
    build_trainer().save_checkpoint(tmp_path / "saved")
    model = nn.Linear(6, 3)
    weight = model.weight.detach().clone()
    with pytest.raises(CheckpointError, match="does not match"):
        Trainer(model, nn.CrossEntropyLoss(), None, callbacks=()).load_checkpoint(
            tmp_path / "saved"
        )
    assert torch.equal(model.weight, weight)


EVENTS = ["on_train_epoch_end", "on_eval_epoch_end", "on_training_run_epoch_end"]
OPTIONS: dict[str, Any] = {
    "create_scheduler_fn": CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_run_goes_on_from_a_state_saved_at_any_event(
    points: TensorDataset, tmp_path: Path, event: str
) -> None:
    whole = train(build_trainer(), points, 4, eval_dataset=points, **OPTIONS)

    def save_and_crash(trainer: Trainer) -> None:
        trainer.save_training_state(tmp_path / "state")
        raise CrashError

    callbacks = [at_epoch(2, event, save_and_crash)]
    with pytest.raises(CrashError):
        train(build_trainer(callbacks=callbacks), points, 4, eval_dataset=points, **OPTIONS)
    torch.manual_seed(99)  # another process begins with other random numbers
    resumed = build_trainer(seed=3)
    resumed.train(points, 4, eval_dataset=points, resume_from=tmp_path / "state", **OPTIONS)
    assert_same_run(resumed, whole)


@pytest.mark.parametrize("step", [4, 5, 7])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_goes_on_inside_an_epoch(
    points: TensorDataset, tmp_path: Path, step: int, accumulate: int
) -> None:
    options = OPTIONS | {"gradient_accumulation_steps": accumulate, "eval_dataset": points}
    whole = train(build_trainer(), points, 3, **options)
    saving = SaveTrainingStateCallback(
        tmp_path / "states", save_every_n_steps=step, max_checkpoints=1
    )
    with pytest.raises(CrashError):
        train(build_trainer(callbacks=[saving, at_step(step + 2, crash)]), points, 3, **options)
    torch.manual_seed(99)
    resumed = build_trainer(seed=3)
    resumed.train(points, 3, resume_from=saving.latest, **options)
    assert_same_run(resumed, whole)


def watchers(tmp_path: Path) -> list[TrainerCallback]:
    return [
        ModelEmaCallback(decay=0.6, save_path=tmp_path / "ema"),
        SaveBestModelCallback(tmp_path / "best", load_saved_checkpoint=False),
        EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=10.0),
    ]


@pytest.mark.parametrize("place", [0, 3])
def test_callbacks_go_on_with_the_run_wherever_the_saving_one_stands(
    points: TensorDataset, tmp_path: Path, place: int
) -> None:
    whole = train(build_trainer(callbacks=watchers(tmp_path)), points, 9, eval_dataset=points)
    assert len(list(whole.run_history.get_metric_values("eval_loss_epoch"))) == 4
    saving = SaveTrainingStateCallback(tmp_path / "states", save_every_n_epochs=2)
    callbacks = watchers(tmp_path)
    callbacks.insert(place, saving)
    with pytest.raises(CrashError):
        train(
            build_trainer(callbacks=[*callbacks, at_step(12, crash)]),
            points,
            9,
            eval_dataset=points,
        )
    resumed = build_trainer(seed=3, callbacks=watchers(tmp_path))
    resumed.train(points, 9, eval_dataset=points, resume_from=tmp_path / "states" / "epoch_2")
    assert_same_run(resumed, whole)


def test_a_finished_run_is_not_trained_again_and_a_longer_one_goes_on(
    points: TensorDataset, tmp_path: Path
) -> None:
    saving = SaveTrainingStateCallback(tmp_path / "states")
    train(build_trainer(callbacks=[saving]), points, 2)
    again = build_trainer(seed=3)
    again.train(points, 2, resume_from=tmp_path / "states" / "final")
    assert_same_run(again, train(build_trainer(), points, 2))
    longer = build_trainer(seed=3)
    longer.train(points, 4, resume_from=tmp_path / "states" / "final")
    assert_same_run(longer, train(build_trainer(), points, 4))


def test_limited_batches_and_extra_evaluations_resume_too(
    points: TensorDataset, tmp_path: Path
) -> None:
    def callbacks() -> list[TrainerCallback]:
        return [LimitBatchesCallback(3), StepBasedEvaluationCallback(2)]

    whole = train(build_trainer(callbacks=callbacks()), points, 3, eval_dataset=points)
    saving = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=4, save_at_end=False)
    train(build_trainer(callbacks=[*callbacks(), saving]), points, 3, eval_dataset=points)
    torch.manual_seed(99)
    resumed = build_trainer(seed=3, callbacks=callbacks())
    resumed.train(points, 3, eval_dataset=points, resume_from=tmp_path / "states" / "step_4")
    assert_same_run(resumed, whole)


def test_a_state_saved_inside_a_step_waits_for_the_update(
    points: TensorDataset, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def save(trainer: Trainer) -> None:
        if trainer._core.progress.step == 2:
            trainer.save_training_state(tmp_path / "state")
            seen.append((tmp_path / "state").exists())

    train(build_trainer(callbacks=[each("on_train_step_end", save)]), points, 1)
    resumed = build_trainer(seed=3)
    resumed.train(points, 1, resume_from=tmp_path / "state")
    assert seen == [False]
    assert_same_run(resumed, train(build_trainer(), points, 1))


def test_a_state_can_be_loaded_for_use(points: TensorDataset, tmp_path: Path) -> None:
    trainer = train(build_trainer(), points, 2)
    trainer.save_training_state(tmp_path / "state", checkpoint_kwargs={"note": 1})
    other = build_trainer(seed=3)
    assert other.load_training_state(tmp_path / "state") == {"note": 1}
    assert_same_model(other.model, trainer.model)
    assert other.run_history.current_epoch == 3
    assert other.load_checkpoint(tmp_path / "state").keys() >= {
        "model_state_dict",
        "optimizer_state_dict",
    }


def test_a_run_that_ended_after_its_last_update_has_the_end_of_its_epoch_left(
    points: TensorDataset, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_num_train_steps": 7, "eval_dataset": points}
    whole = train(build_trainer(), points, 3, **options)
    saving = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=7)
    with pytest.raises(CrashError):
        train(
            build_trainer(callbacks=[saving, at_epoch(2, "on_train_epoch_end", crash)]),
            points,
            3,
            **options,
        )
    resumed = build_trainer(seed=3)
    resumed.train(points, 3, resume_from=tmp_path / "states" / "step_7", **options)
    assert_same_run(resumed, whole)
    assert len(list(resumed.run_history.get_metric_values("eval_loss_epoch"))) == 2


STOPS = {
    "inside an epoch": lambda: at_step(7, stop),
    "after an epoch": lambda: at_epoch(2, "on_training_run_epoch_end", stop),
    "in an evaluation": lambda: at_epoch(2, "on_eval_epoch_end", stop),
}


@pytest.mark.parametrize("when", STOPS)
def test_a_run_that_was_stopped_stays_stopped(
    points: TensorDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    """Also when it is started once more, and by a program that would not stop it."""
    saving = SaveTrainingStateCallback(tmp_path / "states")
    recording = RecordRunCallback(tmp_path / "run")
    trainer = train(
        build_trainer(callbacks=[STOPS[when](), saving, recording]), points, 4, eval_dataset=points
    )
    for _ in range(2):
        capsys.readouterr()
        again = build_trainer(seed=3, callbacks=[saving, recording])
        again.train(points, 4, points, resume_from=saving.latest)
        assert "Nothing to train: the resumed run was stopped (enough)." in capsys.readouterr().out
        assert_same_run(again, trainer)
        assert again._core.run.stopping.reason == "enough"
        run = Run(tmp_path / "run")
        assert (run.state, run.reason) == ("stopped", "enough")


def test_a_signal_between_the_last_update_and_the_end_of_the_data_loses_no_epoch(
    points: TensorDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(build_trainer(), points, 3, eval_dataset=points)
    check, was_sent = steps._check_length, []

    def send_once(*arguments: Any) -> None:
        check(*arguments)
        if not was_sent:
            was_sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(steps, "_check_length", send_once)
    saving = SaveTrainingStateCallback(tmp_path / "states")
    with pytest.raises(Interrupted):
        train(build_trainer(callbacks=[saving]), points, 3, eval_dataset=points)
    resumed = train(build_trainer(), points, 3, eval_dataset=points, resume_from=saving.latest)
    for name in ("train_loss_epoch", "eval_loss_epoch"):
        assert resumed.run_history.get_metric_values(name) == whole.run_history.get_metric_values(
            name
        )

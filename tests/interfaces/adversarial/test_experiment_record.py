"""What run.json says of an experiment, which is one run although every epoch is a call."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import ConfigurationError
from loopwright.interfaces.adversarial import Pix2pixTrainer
from loopwright.run.reading import Run

from ...forked import call_forked
from .runs import continued, tiny


def states(trainer: Pix2pixTrainer) -> str:
    assert trainer.experiment_dir is not None
    return Run(trainer.experiment_dir).state


def test_an_experiment_runs_until_it_is_over(data: Path, tmp_path: Path) -> None:
    trainer = Pix2pixTrainer(tiny(data, tmp_path))
    found = []
    for epoch in range(2):
        trainer.train_paired(epoch)
        found.append(states(trainer))
    trainer.finish()
    assert [*found, states(trainer)] == ["running", "running", "finished"]
    assert Run(tmp_path / "tiny_v1").progress.epoch == 2


def test_another_trainer_of_the_program_may_go_on_with_it(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path)
    first = Pix2pixTrainer(config)
    first.train_paired(0)
    first.save_checkpoint()
    second = Pix2pixTrainer(continued(config))
    assert states(first) == "finished"
    second.train_paired(0)
    assert states(second) == "running"
    with pytest.raises(ConfigurationError, match="being written by this process"):
        first.train_paired(1)
    second.finish()


def test_an_error_inside_an_epoch_is_what_ended_it(data: Path, tmp_path: Path) -> None:
    trainer = Pix2pixTrainer(tiny(data, tmp_path))

    def fail(x: Any, y: Any, idx: int) -> None:
        raise ZeroDivisionError("no luck today")

    with pytest.raises(ZeroDivisionError):
        trainer.train_paired(0, train_step=fail)
    trainer.finish()
    assert (states(trainer), Run(tmp_path / "tiny_v1").reason) == (
        "failed",
        "ZeroDivisionError: no luck today",
    )


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, "finished", None),
        (ValueError("between epochs"), "failed", "ValueError: between epochs"),
        (KeyboardInterrupt(), "interrupted", "SIGINT"),
    ],
)
def test_a_program_that_ends_between_epochs_says_how(
    data: Path, tmp_path: Path, error: BaseException | None, state: str, reason: str | None
) -> None:
    def program() -> None:
        Pix2pixTrainer(tiny(data, tmp_path)).train_paired(0)
        if error is not None:
            sys.last_value = error  # as the interpreter does at the end
        atexit._run_exitfuncs()

    ended = call_forked(program, tmp_path)
    assert ended.code == 0, ended.err
    run = Run(tmp_path / "tiny_v1")
    assert (run.state, run.reason) == (state, reason)

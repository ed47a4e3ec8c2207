"""Kept models and resume points are on disk in an order in which a kill loses neither."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import BestCheckpoint, BestModel, Checkpoints
from loopwright.checkpoint import list_checkpoints, load_weights, update_name

from ..forked import call_forked
from ..loops import build_net
from ..runs import adam, cross_entropy

SCORES = (0.1, 0.9, 0.4, 0.3)  # the second epoch is the best, and nothing after it is
KEEPERS: dict[str, Callable[[], Callback]] = {
    "BestModel": lambda: BestModel("score", "max"),
    "BestModel, the best two": lambda: BestModel("score", "max", keep=2),
    "BestCheckpoint": lambda: BestCheckpoint("score", "max", tolerances=[0]),
}


class Scores(Callback):
    def metric_names(self, known: set[str]) -> set[str]:
        return {"score"}

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log({"score": SCORES[trainer.progress.epoch]})


def run(folder: Path, points: TensorDataset, keeper: Callback, num_epochs: int = 4) -> Trainer:
    callbacks = [Scores(), keeper, Checkpoints(every_epochs=1)]
    trainer = Trainer(
        build_net(), adam, cross_entropy, run_dir=folder, callbacks=callbacks, progress="silent"
    )
    trainer.train(points, num_epochs, batch_size=40)
    return trainer


def kept(folder: Path) -> dict[str, list[Any]]:
    """The kept models: names, metadata and weights."""
    found = [info for info in list_checkpoints(folder, verify=True) if info.kind == "kept"]
    return {
        info.name: [info.meta, *map(torch.Tensor.tolist, load_weights(info.path).values())]
        for info in found
    }


def kill_before(moment: Callable[[str, str], bool]) -> None:
    """Be killed when a file is about to be renamed to such a name, seen from its folder:
    `kept/update-00000001`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename":
            source, target = (Path(os.fsdecode(path)) for path in arguments[:2])
            if moment(source.name, f"{target.parent.name}/{target.name}"):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_kill_before_any_rename_loses_no_kept_model(points, tmp_path, keeper):
    """Renames put checkpoints in place and take old ones away: whatever is on disk lies between two
    of them."""
    whole = tmp_path / "whole"
    run(whole, points, KEEPERS[keeper]())
    expected = kept(whole)
    assert update_name(2) in {name[: len(update_name(2))] for name in expected}
    number, is_through = 0, False
    while not is_through:
        number += 1
        folder = tmp_path / str(number)

        def program(folder: Path = folder, number: int = number) -> None:
            left = [number]

            def count(source: str, target: str) -> bool:
                left[0] -= target.startswith(("kept/", "checkpoints/"))
                return left[0] == 0

            kill_before(count)
            run(folder, points, KEEPERS[keeper]())

        is_through = call_forked(program, tmp_path).code == 0
        run(folder, points, KEEPERS[keeper]())
        assert kept(folder) == expected, f"killed before rename {number}"
        shutil.rmtree(folder)
    assert number > 8


def test_a_resume_point_does_not_overtake_the_kept_model_of_its_epoch(points, tmp_path):
    """The writer of the kept model is held up, which gives the other one all the time that it would
    need."""

    def program() -> None:
        def is_there() -> bool:
            return (tmp_path / "run" / "checkpoints" / update_name(2)).exists()

        def hold_up(source: str, target: str) -> bool:
            end = time.monotonic() + 0.5
            while target == f"kept/{update_name(2)}" and not is_there() and time.monotonic() < end:
                threading.Event().wait(0.01)
            return target == f"kept/{update_name(2)}"

        kill_before(hold_up)
        run(tmp_path / "run", points, BestModel("score", "max"))

    assert call_forked(program, tmp_path).code == -signal.SIGKILL
    run(tmp_path / "run", points, BestModel("score", "max"))
    run(tmp_path / "whole", points, BestModel("score", "max"))
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")


def test_what_was_best_at_the_resume_point_is_there_when_the_run_goes_on_otherwise(
    points, tmp_path
):
    """The second epoch's model has displaced the first one's, and the process is killed before its
    resume point."""

    def program() -> None:
        kill_before(lambda source, target: target == f"checkpoints/{update_name(2)}")
        run(tmp_path / "run", points, BestModel("score", "max"))

    assert call_forked(program, tmp_path).code == -signal.SIGKILL
    assert list(kept(tmp_path / "run")) == [update_name(1), update_name(2)]
    run(tmp_path / "run", points, BestModel("score", "max"), num_epochs=1)
    assert list(kept(tmp_path / "run")) == [update_name(1)]


def test_the_best_model_at_a_resume_point_that_is_still_being_written_is_kept(points, tmp_path):
    """The first resume point is held up until the second epoch's model is there, which displaces
    the first one's."""

    def is_kept(update: int) -> bool:
        return any((tmp_path / "run" / "kept").glob(f"{update_name(update)}*"))

    def program() -> None:
        def moment(source: str, target: str) -> bool:
            if target == f"checkpoints/{update_name(1)}":
                end = time.monotonic() + 10
                while not is_kept(2) and time.monotonic() < end:
                    threading.Event().wait(0.01)
                end = time.monotonic() + 0.5  # what would remove it does so now
                while is_kept(1) and time.monotonic() < end:
                    threading.Event().wait(0.01)
            return target == f"checkpoints/{update_name(2)}"

        kill_before(moment)
        run(tmp_path / "run", points, KEEPERS[keeper]())

    for keeper in KEEPERS:
        assert call_forked(program, tmp_path).code == -signal.SIGKILL
        found = {
            info.name[: len(update_name(1))]
            for info in list_checkpoints(tmp_path / "run")
            if info.kind == "kept"
        }
        assert found >= {update_name(1), update_name(2)}, keeper
        shutil.rmtree(tmp_path / "run")


def test_a_model_that_is_held_in_memory_is_written_when_training_ends_in_any_way(points, tmp_path):
    """The first best model is written at once; those of the seconds after it are held until they
    have to be."""

    class Ending(Callback):
        def __init__(self, how: str) -> None:
            self.how = how

        def on_epoch_start(self, trainer: Trainer) -> None:
            if trainer.progress.epoch == 2 and self.how == "fail":
                raise ZeroDivisionError("crash")
            if trainer.progress.epoch == 2 and self.how == "signal":
                os.kill(os.getpid(), signal.SIGTERM)

    def train(how: str) -> None:
        callbacks = [
            Ending(how),
            Scores(),
            BestModel("score", "max"),
            Checkpoints(every_epochs=None),
        ]
        trainer = Trainer(
            build_net(),
            adam,
            cross_entropy,
            run_dir=tmp_path / how,
            callbacks=callbacks,
            progress="silent",
        )
        trainer.train(points, 3, batch_size=40)

    train("limit")
    with pytest.raises(ZeroDivisionError):
        train("fail")
    with pytest.raises(SystemExit):
        train("signal")
    for how in ("limit", "fail", "signal"):
        assert update_name(2) in kept(tmp_path / how), how

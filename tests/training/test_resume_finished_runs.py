"""Finished runs, runs started over, and runs from a checkpoint that somebody names."""

from __future__ import annotations

import pytest

from loopwright import Callback, ConfigurationError, DataError
from tests.loops import assert_same_model
from tests.mistakes import raises
from tests.runs import KillAt, Killed, assert_same_run, build_trainer, rows


def test_a_finished_run_is_not_trained_again_and_says_so(points, tmp_path, capsys):
    first = build_trainer(tmp_path)
    history = first.train(points, 2, batch_size=8)
    second = build_trainer(tmp_path)
    second.run.progress_style = "lines"
    again = second.train(points, 2, batch_size=8)
    assert again.epochs == history.epochs
    assert second.progress.update == 10
    assert_same_model(second.model, first.model)
    assert (
        "is finished (2 epochs, 10 updates). Raise its limit to continue, or pass "
        "resume=False" in capsys.readouterr().out
    )


def test_raising_the_limit_of_a_finished_run_goes_on(points, tmp_path):
    whole = build_trainer(None)
    whole.train(points, 3, batch_size=8)
    build_trainer(tmp_path).train(points, 2, batch_size=8)
    second = build_trainer(tmp_path)
    second.train(points, 3, batch_size=8)
    assert_same_run(second, whole)


def test_starting_over_takes_a_fresh_directory_and_leaves_the_old_run(points, tmp_path):
    first = build_trainer(tmp_path / "run")
    first.train(points, 2, batch_size=8)
    old = rows(first)
    second = build_trainer(tmp_path / "run")
    second.train(points, 1, batch_size=8, resume=False)
    assert second.run_dir == tmp_path / "run-2"
    assert second.progress.epoch == 1
    assert rows(first) == old
    assert len(rows(second)[0]) == 5


# From a given checkpoint


def test_a_run_goes_on_from_the_checkpoint_that_is_named(points, tmp_path):
    whole = build_trainer(None)
    whole.train(points, 3, batch_size=8)
    first = build_trainer(tmp_path / "run")
    first.train(points, num_updates=7, batch_size=8)
    first.save(tmp_path / "saved")
    first.train(points, num_updates=3, batch_size=8)
    second = build_trainer(None)
    second.train(points, 3, batch_size=8, resume=tmp_path / "saved")
    assert_same_run(second, whole)


def test_a_checkpoint_named_in_a_later_call_is_where_that_call_begins(points, tmp_path):
    trainer = build_trainer(None)
    trainer.train(points, num_updates=2, batch_size=8)
    trainer.save(tmp_path / "saved")
    trainer.train(points, num_updates=5, batch_size=8)
    trainer.train(points, num_updates=3, batch_size=8, resume=tmp_path / "saved")
    whole = build_trainer(None)
    whole.train(points, 1, batch_size=8)
    assert_same_run(trainer, whole)


@pytest.mark.parametrize("stop_at", [3, 5, 8])
def test_a_loaded_trainer_trains_on_exactly(points, tmp_path, stop_at):
    whole = build_trainer(None, precision="fp16", scheduler=None)
    whole.train(points, 2, batch_size=8)
    first = build_trainer(None, precision="fp16", scheduler=None)
    first.train(points, num_updates=stop_at, batch_size=8)
    first.save(tmp_path / "saved")
    second = build_trainer(None, precision="fp16", scheduler=None)
    second.load(tmp_path / "saved")
    second.save(tmp_path / "copied")
    second = build_trainer(None, precision="fp16", scheduler=None)
    second.load(tmp_path / "copied")
    second.train(points, num_updates=10 - stop_at, batch_size=8)
    assert_same_run(second, whole)
    assert (
        second.run.updates.by_name["optimizer"].state_dict()
        == whole.run.updates.by_name["optimizer"].state_dict()
    )


def test_a_checkpoint_that_does_not_exist_is_refused_with_the_choices(points, tmp_path):
    with raises("no-checkpoint-there", "nowhere"):
        build_trainer(None).train(points, resume=tmp_path / "nowhere")


def test_a_run_on_data_whose_position_is_unknown_is_refused_where_it_is_to_be_resumable(
    points, tmp_path
):
    with pytest.raises(DataError, match="cannot be resumed exactly"):
        build_trainer(tmp_path).train(batch for batch in [points.tensors])
    assert not (tmp_path / "run.json").exists()


def test_a_call_that_was_refused_does_not_keep_the_next_from_finding_its_run(points, tmp_path):
    build_trainer(tmp_path).train(points, num_updates=3, batch_size=8)
    second = build_trainer(tmp_path)
    with pytest.raises(DataError):
        second.train(batch for batch in [points.tensors])
    with pytest.raises(ConfigurationError):
        second.train(points, num_updates=-1)
    second.train(points, num_updates=5, batch_size=8)
    whole = build_trainer(None)
    whole.train(points, 1, batch_size=8)
    assert_same_run(second, whole)


def test_a_run_interrupted_in_an_epoch_does_not_begin_that_epoch_again(points, tmp_path):
    class Epochs(Callback):
        def __init__(self):
            self.begun = 0

        def on_epoch_start(self, trainer):
            self.begun += 1

    with pytest.raises(Killed):
        build_trainer(tmp_path, [Epochs(), KillAt(3)]).train(points, 2, batch_size=8)
    epochs = Epochs()
    build_trainer(tmp_path, [epochs, KillAt(-1)]).train(points, 2, batch_size=8)
    assert epochs.begun == 1

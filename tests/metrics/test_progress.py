"""The clock of a run and the limits on it."""

from __future__ import annotations

import pytest

from loopwright import Progress
from loopwright.metrics.progress import Limits


def test_steps_updates_and_epochs_are_counted_apart():
    progress = Progress()
    for size in (8, 8, 5):
        progress.next_step(size)
    progress.next_update()
    assert (
        progress.step,
        progress.update,
        progress.sample,
        progress.epoch_step,
        progress.epoch_sample,
    ) == (
        3,
        1,
        21,
        3,
        21,
    )
    assert progress.in_epoch
    progress.next_epoch()
    assert (progress.epoch, progress.step, progress.epoch_step, progress.epoch_sample) == (
        1,
        3,
        0,
        0,
    )
    assert not progress.in_epoch


def test_limits_count_from_the_beginning_of_a_call():
    progress = Progress(epoch=2, update=10, sample=80, seconds=5.0)
    progress.next_call()
    assert Limits(1, 3, 7, 2.5).from_call(progress) == Limits(3, 13, 87, 7.5)
    assert Limits().from_call(progress) == Limits()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(updates=10), "10 updates done"),
        (Limits(samples=80), "80 samples seen"),
        (Limits(epochs=2), "2 epochs done"),
        (Limits(seconds=5.0), "5 s passed"),
        (Limits(3, 11, 81, 5.1), None),
        (Limits(), None),
    ],
)
def test_a_limit_that_is_reached_is_told_in_words(limits, words):
    assert limits.reached(Progress(epoch=2, update=10, sample=80, seconds=5.0)) == words


def test_samples_left_are_those_up_to_the_limit():
    assert Limits(samples=10).samples_left(Progress(sample=4)) == 6
    assert Limits().samples_left(Progress()) is None


def test_state_comes_back():
    progress, other = Progress(), Progress()
    progress.next_step(4)
    progress.next_call()
    other.load_state_dict(progress.state_dict())
    assert other == progress


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(epochs=1), "1 epoch done"),
        (Limits(updates=1), "1 update done"),
        (Limits(samples=1), "1 sample seen"),
    ],
)
def test_one_of_a_thing_is_written_without_an_s(limits, said):
    assert limits.reached(Progress(epoch=1, update=1, sample=1)) == said

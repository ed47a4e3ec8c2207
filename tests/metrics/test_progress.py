"""The clock of a run and the limits on it."""

from __future__ import annotations

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

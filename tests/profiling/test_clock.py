"""The clock of a profile: on an accelerator, for which a counter stands in."""

from __future__ import annotations

from loopwright.profiling.clock import Clock

from .hand_clock import HandClock


class Device:
    """An accelerator that has work queued: waiting for it takes as long as the work."""

    def __init__(self, hand: HandClock) -> None:
        self.hand, self.queued = hand, 0

    def synchronize(self) -> None:
        self.hand.take(self.queued)
        self.queued = 0


def test_work_that_is_queued_on_an_accelerator_counts_for_the_part_that_queued_it(clock):
    device = Device(clock)
    measured = Clock(device.synchronize)
    measured.start()
    for _ in range(2):
        measured.begin_step()
        for part, work in (("forward", 30), ("backward", 60)):
            depth = measured.enter(part)
            clock.take(1)
            device.queued += work
            measured.leave(depth)
        measured.end_step()
    with measured.evaluation():
        depth = measured.enter("forward")
        device.queued += 5
        measured.leave(depth)
    measured.charge()
    spent = {part: spent for part, spent in measured.spent.items() if spent}
    assert spent == {"forward": 62, "backward": 122, "evaluation/forward": 5}

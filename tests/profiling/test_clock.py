"""The clock of a profile: nested parts, exceptions, and accelerators, for which a counter stands
in."""

from __future__ import annotations

import pytest

from loopwright.profiling.clock import Clock, divided

from .hand_clock import HandClock


class Device:
    """An accelerator that has work queued: waiting for it takes as long as the work."""

    def __init__(self, hand: HandClock) -> None:
        self.hand, self.queued, self.num_syncs = hand, 0, 0

    def synchronize(self) -> None:
        self.num_syncs += 1
        self.hand.take(self.queued)
        self.queued = 0


def run_steps(clock: Clock, hand: HandClock, device: Device, number: int) -> list[int]:
    """Steps that queue work on the device: 30 forward, 60 backward; the host takes 1 for each.
    Syncs of each step."""
    syncs = []
    for _ in range(number):
        before = device.num_syncs
        depth = clock.enter("data")
        hand.take(9)
        clock.leave(depth)
        clock.begin_step()
        for part, work in (("forward", 30), ("backward", 60)):
            depth = clock.enter(part)
            hand.take(1)
            device.queued += work
            clock.leave(depth)
        clock.end_step()
        syncs.append(device.num_syncs - before)
    return syncs


def test_only_every_nth_step_waits_for_the_accelerator_and_all_time_is_divided_by_those(hand):
    device = Device(hand)
    clock = Clock(device.synchronize, every=4)
    clock.start()
    syncs = run_steps(clock, hand, device, 12)
    clock.settle()  # as a log point does
    clock.stop()
    assert [index for index, number in enumerate(syncs) if number > 1] == [4, 8]
    parts = divided(clock.spent)
    assert (
        sum(parts.values()) == sum(clock.spent.values()) == clock.nanoseconds == 12 * (9 + 2 + 90)
    )
    assert parts["backward"] / parts["forward"] == pytest.approx(61 / 31, rel=0.01)
    assert parts["data"] == pytest.approx(12 * 9, rel=0.01)


def test_waiting_for_queued_steps_is_not_part_of_the_log_point_or_the_evaluation(hand):
    device = Device(hand)
    clock = Clock(device.synchronize, every=100)
    clock.start()
    run_steps(clock, hand, device, 3)
    with clock.evaluation():
        hand.take(5)
        depth = clock.enter("forward")
        hand.take(2)
        clock.leave(depth)
    clock.stop()
    assert clock.spent["evaluation"] == 5
    assert clock.spent["evaluation/forward"] == 2
    assert clock.spent["unsampled"] == 3 * (9 + 2 + 90)
    assert device.num_syncs == 1


def test_time_of_unsampled_steps_is_forward_where_no_step_was_sampled():
    assert divided({"other": 1, "unsampled": 7}) == {"other": 1, "forward": 7}

"""When to save, and which models are better."""

import math

import pytest

from loopwright.checkpoint import Candidate, KeepPolicy, ResumePolicy
from tests.mistakes import raises

NAN = math.nan


def test_a_resume_point_is_due_at_every_nth_update_and_not_at_the_start():
    policy = ResumePolicy(every_updates=3)
    assert [u for u in range(8) if policy.is_due(update=u)] == [3, 6]


def test_a_resume_point_is_due_at_every_nth_end_of_an_epoch_only():
    policy = ResumePolicy(every_epochs=2)
    assert [e for e in range(6) if policy.is_due(update=10, epoch_end=e)] == [2, 4]
    assert not policy.is_due(update=2)


def test_the_last_update_of_an_epoch_is_not_due_twice():
    assert not ResumePolicy(every_updates=5).is_due(update=5, epoch_end=1)


def test_a_resume_point_is_due_when_the_minutes_have_passed():
    policy = ResumePolicy(every_minutes=0.5)
    assert policy.is_due(update=1, minutes_since_last=0.5)
    assert not policy.is_due(update=1, minutes_since_last=0.49)


def test_an_empty_policy_is_never_due():
    assert not ResumePolicy().is_due(update=100, epoch_end=3, minutes_since_last=1e9)


@pytest.mark.parametrize(
    "wrong", [{"every_updates": 0}, {"every_minutes": -1}, {"every_minutes": NAN}, {"keep": 0}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with raises("number", next(iter(wrong))):
        ResumePolicy(**wrong)


def test_an_unknown_mode_is_refused():
    with raises("unknown-mode"):
        KeepPolicy("loss", "lowest")


def test_of_equals_the_earlier_ranks_first():
    policy = KeepPolicy("loss")
    later, earlier = Candidate("b", 1.0, 20), Candidate("a", 1.0, 10)
    assert policy.ranked([later, earlier]) == [earlier, later]


def test_a_real_metric_displaces_a_nan_that_came_first():
    policy = KeepPolicy("loss")
    first, real = Candidate("a", NAN, 1), Candidate("b", 1e9, 2)
    assert policy.is_worth_keeping(first, [])
    assert policy.is_worth_keeping(real, [first])
    assert not policy.is_worth_keeping(first, [real])

"""Whatever a step returns becomes one result."""

from __future__ import annotations

import pytest
import torch

from loopwright import StepResult

from ..mistakes import raises

LOSS, COUNT = torch.tensor(2.0), torch.tensor(7)
FORMS = {
    "a tensor": (LOSS, StepResult(LOSS, 4)),
    "a number": (2.5, StepResult(2.5, 4)),
    "nothing": (None, StepResult(None, 4)),
    "named values": ({"loss": LOSS, "accuracy": 0.5}, StepResult(LOSS, 4, {"accuracy": 0.5})),
    "named values without a loss": ({"accuracy": 0.5}, StepResult(None, 4, {"accuracy": 0.5})),
    "a sum and a count": ((LOSS, 7), StepResult(LOSS, 4, {}, 7)),
    "a sum and a tensor count": ((LOSS, COUNT), StepResult(LOSS, 4, {}, COUNT)),
    "a result": (StepResult(LOSS, count=3), StepResult(LOSS, 4, {}, 3)),
    "a result with its own size": (StepResult(LOSS, 9), StepResult(LOSS, 9)),
}


@pytest.mark.parametrize(("returned", "expected"), FORMS.values(), ids=FORMS.keys())
def test_what_a_step_returns_is_normalised_once(returned, expected):
    assert StepResult.of(returned, 4) == expected


@pytest.mark.parametrize("returned", ["loss", [LOSS], (LOSS, LOSS, LOSS), object()])
def test_anything_else_is_refused_with_what_is_accepted(returned):
    with raises("step-returned"):
        StepResult.of(returned, 4)


@pytest.mark.parametrize("second", [torch.zeros(4, 3), {"logits": LOSS}, "loss", None])
def test_a_loss_with_outputs_beside_it_is_not_taken_for_a_sum_and_a_count(second):
    with raises("pair-of-loss-and-outputs", "StepResult(loss, outputs=outputs)"):
        StepResult.of((LOSS, second), 4)


def test_named_losses_without_a_total_are_summed():
    result = StepResult.of_loss({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, 4, "outputs")
    assert result.loss == 3.0
    assert set(result.metrics) == {"a", "b"}
    assert (result.size, result.outputs) == (4, "outputs")


def test_no_named_loss_at_all_is_refused():
    with raises("no-named-loss"):
        StepResult.of_loss({}, 4)


def test_a_loss_function_that_returns_nothing_is_refused():
    with raises("no-loss", "`loss_fn=`"):
        StepResult.of_loss(None, 4)

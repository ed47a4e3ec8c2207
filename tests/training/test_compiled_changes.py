"""What changes between two compiled steps counts as it does without graphs, or ends them with a
line that says why."""

from __future__ import annotations

from collections.abc import Callable as Function
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback
from tests.training.compiled_runs import SGD, assert_same, both, default_backend, traced

__all__ = ["traced"]  # a fixture

Adam = partial(torch.optim.Adam, lr=0.01)


class After(Callback):
    """Changes something after the fourth update, in the middle of the second epoch; notes what is
    called since."""

    def __init__(self, change: Function[[Any, list[int]], object]) -> None:
        self.change = change
        self.called: list[int] = []

    def on_update_end(self, trainer: Any) -> None:
        if trainer.progress.update == 4:
            self.change(trainer, self.called)


@pytest.fixture
def with_autograd() -> Any:
    """Graphs with the backward pass that kernels have, in which hooks of parameters are not run; no
    machine code."""
    with default_backend("aot_eager"):
        yield


def optimizer_of(trainer: Any) -> Any:
    return trainer.optimizers["optimizer"]


def noting(called: list[int]) -> Function[..., None]:
    return lambda *_: called.append(1)


def replace_step(trainer: Any, called: list[int]) -> None:
    step = optimizer_of(trainer).step
    optimizer_of(trainer).step = lambda: (called.append(1), step())


def replace_forward(trainer: Any, called: list[int]) -> None:
    trainer.forward = lambda inputs: (called.append(1), trainer.model(inputs) * 0.5)[1]


HOOKS: dict[str, tuple[Function[[Any, list[int]], object], str]] = {
    "forward": (
        lambda t, c: t.model.first.register_forward_hook(noting(c)),
        "hooks of forward passes were registered",
    ),
    "outputs": (
        lambda t, c: t.model.first.register_forward_hook(
            lambda *args: (c.append(1), args[-1] * 0.5)[1]
        ),
        "hooks of forward passes were registered",
    ),
    "backward": (
        lambda t, c: t.model.last.register_full_backward_hook(noting(c)),
        "in the backward pass",
    ),
    "gradient": (
        lambda t, c: t.model.first.weight.register_hook(lambda grad: (c.append(1), grad * 2)[1]),
        "in the backward pass",
    ),
    "optimizer": (
        lambda t, c: optimizer_of(t).register_step_pre_hook(noting(c)),
        "the optimizer's steps",
    ),
    "step": (replace_step, "the optimizer's steps"),
    "trainer": (replace_forward, "`forward` is replaced on the trainer object"),
}


@pytest.mark.parametrize("name", HOOKS)
def test_functions_that_are_registered_after_the_first_step_are_called(
    name: str, with_autograd: None
) -> None:
    change, reason = HOOKS[name]
    eager, compiled = both(callbacks=lambda: [After(change)])
    assert compiled.callbacks[0].called == eager.callbacks[0].called
    assert compiled.callbacks[0].called
    assert compiled.run.compiled is not None
    assert compiled.run.compiled.choice == "eager"
    assert reason in compiled.run.compiled.reason
    for ours, theirs in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_a_callback_computes_are_part_of_the_update(
    accumulate: int, with_autograd: None
) -> None:
    change = After(lambda trainer, _: trainer.model.last.weight.square().sum().backward())
    eager, compiled = both(epochs=3, callbacks=lambda: [change], accumulate=accumulate)
    for ours, theirs in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert ours.grad is None
    assert compiled.run.compiled is not None
    assert ("gradients before the step" in compiled.run.compiled.reason) == (accumulate == 1)


def test_a_hook_that_is_removed_is_not_called_any_more(traced: None) -> None:
    class Removing(Callback):
        def __init__(self) -> None:
            self.called: list[int] = []

        def on_train_start(self, trainer: Any) -> None:
            self.handle = trainer.model.first.register_forward_hook(noting(self.called))

        def on_update_end(self, trainer: Any) -> None:
            if trainer.progress.update == 4:
                self.handle.remove()

    eager, compiled = both(callbacks=lambda: [Removing()])
    assert compiled.callbacks[0].called == eager.callbacks[0].called == [1] * 4


def with_dampening(trainer: Any, called: list[int]) -> None:
    optimizer_of(trainer).param_groups[0]["dampening"] = 0.5


def test_dampening_that_is_set_in_the_middle_of_a_run_ends_graphs_and_counts(traced: None) -> None:
    eager, compiled = both(callbacks=lambda: [After(with_dampening)])
    assert compiled.run.compiled is not None
    assert compiled.run.compiled.reason.startswith("SGD has ")
    for ours, theirs in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_tensor_that_becomes_an_option_and_changes_in_place_ends_graphs_and_counts(
    traced: None,
) -> None:
    class Halving(Callback):
        def on_update_end(self, trainer: Any) -> None:
            group = optimizer_of(trainer).param_groups[0]
            if trainer.progress.update == 1:
                group["lr"] = torch.tensor(group["lr"] / 2)
            else:
                group["lr"].mul_(0.5)

    eager, compiled = both(callbacks=lambda: [Halving()])
    assert compiled.run.compiled is not None
    assert compiled.run.compiled.reason == "an option of SGD is a tensor"
    for ours, theirs in zip(compiled.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def remove_first(trainer: Any, called: list[int]) -> None:
    removed = optimizer_of(trainer).param_groups[0]["params"].pop(0)
    optimizer_of(trainer).state.pop(removed)


def move_first(trainer: Any, called: list[int]) -> None:
    first = optimizer_of(trainer).param_groups[0]["params"].pop(0)
    optimizer_of(trainer).add_param_group({"params": [first], "lr": 0.001})


@pytest.mark.parametrize("change", [remove_first, move_first])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_may_leave_or_change_their_group(
    traced: None, change: Any, accumulate: int
) -> None:
    assert_same(*both(callbacks=lambda: [After(change)], accumulate=accumulate))


def test_parameters_that_are_added_in_the_middle_of_an_epoch_are_trained_from_there(
    traced: None,
) -> None:
    def last_only(params: Any) -> Any:
        return SGD(list(params)[3:])

    def add_first(trainer: Any, called: list[int]) -> None:
        optimizer_of(trainer).add_param_group({"params": [trainer.model.first.weight], "lr": 0.02})

    eager, compiled = both(callbacks=lambda: [After(add_first)], optimizer=last_only)
    assert_same(eager, compiled)
    assert isinstance(eager.model.first, nn.Linear)
    assert eager.model.first.weight in optimizer_of(eager).state

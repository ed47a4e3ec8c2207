"""Backward passes and steps without torch's wrappers equal those with them; whatever needs a
wrapper gets it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from loopwright._torch_compat.fast_paths import OptimizerStep, backward, ignore_updates


@pytest.fixture
def weight() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0]))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that torch's wrapper of `step` opens: one for each call that goes through it."""
    opened: list[str] = []
    original = torch.autograd.profiler.record_function.__enter__

    def enter(self: Any) -> Any:
        opened.append(self.name)
        return original(self)

    monkeypatch.setattr(torch.autograd.profiler.record_function, "__enter__", enter)
    return opened


def sgd(weight: nn.Parameter) -> torch.optim.SGD:
    weight.grad = torch.ones_like(weight)
    return torch.optim.SGD([weight], lr=0.5)


# Backward passes


def test_gradients_are_those_of_backward(weight: nn.Parameter) -> None:
    backward((weight**3).sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 12.0]


def test_only_inputs_get_gradients(weight: nn.Parameter) -> None:
    other = nn.Parameter(torch.ones(2))
    backward((weight * other).sum(), inputs=[other])
    assert weight.grad is None
    assert other.grad is not None
    assert other.grad.tolist() == [1.0, 2.0]


def test_a_graph_is_kept_only_if_asked_for(weight: nn.Parameter) -> None:
    loss = (weight**2).sum()
    backward(loss, retain_graph=True)
    backward(loss)
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0, 8.0]
    with pytest.raises(RuntimeError, match="a second time"):
        backward(loss)


def test_a_hook_that_changes_the_gradient_of_a_loss_in_place_changes_one_pass_only(
    weight: nn.Parameter,
) -> None:
    for _ in range(2):
        loss = weight.sum()
        loss.register_hook(lambda grad: grad.mul_(3.0))
        backward(loss)
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 6.0]


def test_the_gradient_of_a_scalar_parameter_is_its_own_memory() -> None:
    first, second = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    backward(first + second)
    assert first.grad is not None
    first.grad.add_(1.0)
    assert second.grad is not None
    assert second.grad.item() == 1.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda weight: weight * 2, "scalar outputs"),
        (lambda weight: weight.detach().sum(), "does not require grad"),
        (lambda weight: weight.sum().to(torch.complex64), "complex|real|scalar"),
    ],
    ids=["several numbers", "detached", "complex"],
)
def test_what_torch_refuses_is_refused_in_its_words(
    weight: nn.Parameter, make: Callable[[Tensor], Tensor], text: str
) -> None:
    with pytest.raises(RuntimeError, match=text):
        backward(make(weight))


def test_no_inputs_are_refused(weight: nn.Parameter) -> None:
    with pytest.raises(RuntimeError, match="cannot be empty"):
        backward(weight.sum(), inputs=[])


def test_a_mode_sees_the_backward_pass(weight: nn.Parameter) -> None:
    seen: list[Any] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loss = weight.sum()
    with Mode():
        backward(loss)
    assert Tensor.backward in seen


def test_a_subclass_has_its_own_backward(weight: nn.Parameter) -> None:
    class Counted(Tensor):
        passes = 0

        def backward(self, *args: Any, **kwargs: Any) -> None:
            Counted.passes += 1
            super().backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    class Unseen(Counted):
        __torch_function__ = torch._C._disabled_torch_function_impl

    backward(weight.as_subclass(Counted).sum())
    backward(weight.sum().as_subclass(Unseen))
    assert Counted.passes == 2
    assert weight.grad is not None


@pytest.mark.parametrize("owner", [Tensor, torch.autograd], ids=["Tensor", "torch.autograd"])
def test_a_replaced_backward_is_called(
    weight: nn.Parameter, monkeypatch: pytest.MonkeyPatch, owner: Any
) -> None:
    passes: list[int] = []
    original = owner.backward

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, "backward", counted)
    backward(weight.sum())
    assert passes == [1]


# Steps


def test_a_step_without_hooks_leaves_out_the_wrapper(
    weight: nn.Parameter, calls: list[str]
) -> None:
    OptimizerStep(sgd(weight))()
    assert weight.tolist() == [0.5, 1.5]
    assert calls == []


@pytest.mark.parametrize("is_global", [False, True], ids=["of the optimizer", "of all optimizers"])
@pytest.mark.parametrize("is_post", [False, True], ids=["before", "after"])
def test_a_hook_is_called_whenever_it_is_registered(
    weight: nn.Parameter, is_global: bool, is_post: bool
) -> None:
    optimizer, seen = sgd(weight), []
    step = OptimizerStep(optimizer)
    step()
    if is_global:
        register = (
            register_optimizer_step_post_hook if is_post else register_optimizer_step_pre_hook
        )
    else:
        register = (
            optimizer.register_step_post_hook if is_post else optimizer.register_step_pre_hook
        )
    handle = register(lambda *_: seen.append(1))
    try:
        step()
    finally:
        handle.remove()
    step()
    assert seen == [1]
    assert weight.tolist() == [-0.5, 0.5]


def test_a_hook_that_ignores_updates_is_left_out_beside_none_that_does_not(
    weight: nn.Parameter,
) -> None:
    optimizer, seen = sgd(weight), []
    optimizer.register_step_pre_hook(ignore_updates(lambda *_: seen.append("ours")))
    step = OptimizerStep(optimizer)
    step()
    optimizer.register_step_pre_hook(lambda *_: seen.append("the user's"))
    step()
    assert seen == ["ours", "the user's"]


def test_a_profiler_sees_the_range_of_the_step(weight: nn.Parameter) -> None:
    step = OptimizerStep(sgd(weight))
    activities = [torch.profiler.ProfilerActivity.CPU]
    # without, torch 2.11 warns
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        step()
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


def wrapped(step: Any, seen: list[int]) -> Any:
    @functools.wraps(step)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return step(*args, **kwargs)

    return replaced


@pytest.mark.parametrize("when", ["before a scheduler", "after a scheduler", "without one"])
def test_a_replaced_step_of_an_object_is_called(weight: nn.Parameter, when: str) -> None:
    optimizer, seen = sgd(weight), []
    step = OptimizerStep(optimizer)
    step()
    if when == "after a scheduler":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        step()
    optimizer.step = wrapped(optimizer.step, seen)  # type: ignore[method-assign]
    step()
    assert seen == [1]


@pytest.fixture
def own_class() -> type[torch.optim.SGD]:
    class Own(torch.optim.SGD):
        pass

    Own.step = torch.optim.SGD.step  # type: ignore[method-assign]
    return Own


def test_a_replaced_step_of_a_class_is_called(
    weight: nn.Parameter, own_class: type[torch.optim.SGD]
) -> None:
    weight.grad = torch.ones_like(weight)
    optimizer, seen = own_class([weight], lr=0.5), []
    step = OptimizerStep(optimizer)
    step()
    own_class.step = wrapped(own_class.step, seen)  # type: ignore[method-assign]
    step()
    assert seen == [1]
    assert weight.tolist() == [0.0, 1.0]


def test_an_overridden_step_is_called(weight: nn.Parameter, calls: list[str]) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            weight.data.add_(10.0)
            return super().step(closure)

    weight.grad = torch.ones_like(weight)
    OptimizerStep(Own([weight], lr=0.5))()
    assert weight.tolist() == [10.5, 11.5]


def test_a_scheduler_knows_that_a_step_was_taken(weight: nn.Parameter, calls: list[str]) -> None:
    optimizer = sgd(weight)
    step = OptimizerStep(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step()
    scheduler.step()  # warns, and warnings are errors, where no step was taken
    assert calls == []
    assert weight.tolist() == [0.5, 1.5]


def test_an_optimizer_of_another_library_is_stepped(weight: nn.Parameter) -> None:
    class Foreign:
        steps = 0

        def step(self) -> None:
            self.steps += 1

    foreign = Foreign()
    OptimizerStep(foreign)()
    assert foreign.steps == 1


@pytest.mark.parametrize("is_engine", [True, False], ids=["of the engine", "of the wrapper"])
def test_without_a_private_name_torchs_own_function_is_called(
    weight: nn.Parameter, monkeypatch: pytest.MonkeyPatch, calls: list[str], is_engine: bool
) -> None:
    from loopwright._torch_compat import fast_paths

    assert fast_paths._CAN_RUN_ENGINE  # the tested releases have them all
    assert fast_paths._WRAPPER is not None
    monkeypatch.setattr(fast_paths, "_CAN_RUN_ENGINE" if is_engine else "_WRAPPER", None)
    monkeypatch.setattr(fast_paths, "_run_engine", None if is_engine else fast_paths._run_engine)
    backward(weight.sum())
    OptimizerStep(torch.optim.SGD([weight], lr=0.5))()
    assert weight.tolist() == [0.5, 1.5]
    assert calls == ([] if is_engine else ["Optimizer.step#SGD.step"])

"""Backward passes and optimizer steps without torch's Python wrappers, wherever the wrappers would
change nothing.

The wrappers look for subclasses of `Tensor`, call hooks and mark ranges for the profiler, which
takes a tenth of the step of a small model. Whatever needs a wrapper gets it: a subclass, a mode, a
hook, a profiler, a replaced method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import graph
from torch.optim import Optimizer
from torch.optim import optimizer as torchs

_Hook = TypeVar("_Hook", bound=Callable[..., Any])

_TENSOR_BACKWARD = Tensor.backward
_AUTOGRAD_BACKWARD = torch.autograd.backward
# A release without one of these names has torch's own functions called. The first since 2.1, the
# others older.
_run_engine: Any = getattr(graph, "_engine_run_backward", None)
_in_functorch: Any = getattr(torch._C, "_are_functorch_transforms_active", None)
_has_torch_function_of_one: Any = getattr(torch._C, "_has_torch_function_unary", None)
_has_torch_function: Any = getattr(torch._C, "_has_torch_function", None)
_CAN_RUN_ENGINE = None not in (
    _run_engine,
    _in_functorch,
    _has_torch_function_of_one,
    _has_torch_function,
)

_is_profiling: Any = getattr(torch.autograd, "_profiler_enabled", None)
_GLOBAL_HOOKS = [
    getattr(torchs, name, None)
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
]
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_wrap: Any = getattr(Optimizer, "profile_hook_step", None)
_CAN_UNWRAP = None not in (_is_profiling, _wrap, *_GLOBAL_HOOKS)
_WRAPPER = _wrap(lambda optimizer: None).__code__ if _CAN_UNWRAP else None


def backward(
    loss: Tensor, retain_graph: bool | None = None, inputs: Sequence[Tensor] | None = None
) -> None:
    """Compute what `torch.autograd.backward` computes for one loss. Since 2.1."""
    if (
        not _CAN_RUN_ENGINE
        or _has_torch_function_of_one(loss)
        or loss.dim()
        or not loss.requires_grad
        or not loss.is_floating_point()
        or _in_functorch()
        or loss.__class__.backward is not _TENSOR_BACKWARD
        or torch.autograd.backward is not _AUTOGRAD_BACKWARD
    ):
        loss.backward(retain_graph=retain_graph, inputs=inputs)  # type: ignore[no-untyped-call]
        return
    chosen = () if inputs is None else tuple(inputs)
    if inputs is not None and (not chosen or _has_torch_function(chosen)):
        torch.autograd.backward(loss, retain_graph=retain_graph, inputs=inputs)
        return
    # one gradient for each pass: a hook may change it in place
    first = loss.new_ones(())
    _run_engine(
        (loss,),
        (first,),
        bool(retain_graph),
        False,
        chosen,
        allow_unreachable=True,
        accumulate_grad=True,
    )


def ignore_updates(hook: _Hook) -> _Hook:
    """Mark a hook that does nothing in the optimizer steps of an update, which then leave it out.
    Since 1.13."""
    hook.ignores_updates = True  # type: ignore[attr-defined]
    return hook


class OptimizerStep:
    """A call of `optimizer.step()`. Since 1.13.

    What it depends on is looked at in every call, since a program may replace `step`, register a
    hook or start a profiler at any time.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._attributes = optimizer, getattr(optimizer, "__dict__", {})
        self._examine()

    def __call__(self) -> None:
        optimizer = self._optimizer
        function = self.plain_function()
        if function is None or _is_profiling():
            optimizer.step()
            return
        if self._of_object is not None:
            optimizer._opt_called = True  # what the scheduler's own `step` does
        function(optimizer)

    def plain_function(self) -> Callable[[Any], Any] | None:
        """The function in torch's wrapper; None where there are hooks, or `step` was replaced by
        another than torch."""
        if (
            type(self._optimizer).step is not self._of_class
            or self._attributes.get("step") is not self._of_object
        ):
            self._examine()
        for hooks in self._hooks:
            for hook in hooks.values():
                if not hasattr(hook, "ignores_updates"):
                    return None
        return self._function

    def _examine(self) -> None:
        optimizer = self._optimizer
        kind = type(self._optimizer)
        self._of_class, self._of_object = kind.step, self._attributes.get("step")
        self._function: Callable[[Any], Any] | None = None
        self._hooks: Sequence[Any] = ()
        if (
            not _CAN_UNWRAP
            or not isinstance(optimizer, Optimizer)
            or getattr(kind.step, "__code__", None) is not _WRAPPER
        ):
            return
        if self._of_object is None or _is_of_scheduler(self._of_object, kind.step):
            self._function = kind.step.__wrapped__
            self._hooks = (*_GLOBAL_HOOKS, *(getattr(optimizer, name) for name in _HOOKS))


def _is_of_scheduler(step: Any, of_class: object) -> bool:
    """Whether a scheduler put this function in the place of its optimizer's `step`, to notice
    calls. Since 1.1."""
    return hasattr(step, "_wrapped_by_lr_sched") and getattr(step, "__wrapped__", None) is of_class

"""The training step as graphs: forward, loss, backward, clipping and optimizer traced and compiled
by torch.

`whole` is one graph for a step that ends in an update. Where something has to happen between the
gradients and the optimizer (accumulation, listeners to `on_optimizer_start`, running out of memory
on a GPU), `gradients` and `apply` are the two halves of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..._torch_compat import tree_map
from ..._torch_compat.compiling import failed_to_compile, tracing_backward
from ...metrics.result import StepResult
from ...trees import leaves
from ..update import at_least_one

MOST_GRAPHS = 32  # of one function, that torch may keep
NUM_SETTINGS = 3  # the first numbers of a graph: the divisor of the loss, clip_norm and clip_value

Options = Mapping[str, Any]  # a parameter group
State = Mapping[str, Tensor]
New = tuple[Tensor, dict[str, Tensor]]  # the new value of a parameter, and its new state


class Rule(NamedTuple):
    """How one optimizer changes a parameter.

    Args:
        options: reads all options that matter, to see whether one was changed.
        numbers: reads the numbers of a group that may change without a new graph; the first is the
            learning rate.
        flags: reads the choices of a group, of which each needs a graph of its own.
        slots: the names of a parameter's state, for these flags.
        change: computes new values from (parameter, gradient, state, numbers, flags).
    """

    options: Callable[[Options], tuple[Any, ...]]
    numbers: Callable[[Options], list[float]]
    flags: Callable[[Options], dict[str, bool]]
    slots: Callable[[Options], tuple[str, ...]]
    change: Callable[[Tensor, Tensor, State, Sequence[Tensor], Options], New]


# an optimizer's rule and flags for a parameter, and where its numbers are
Applied = tuple[Rule, Options, int, int]


class Plan(NamedTuple):
    """What a graph is made for, and does not take as an input."""

    program: Any  # whose `forward` and `compute_loss` are traced
    rules: tuple[Applied, ...]  # of each parameter
    device: str  # its type
    is_split: bool  # whether gradients and update are two graphs
    has_guard: bool  # whether a value that is not finite leaves the weights as they are
    is_final: bool  # whether an update that was left out keeps all later ones from being taken
    clips_norm: bool
    clips_value: bool
    has_divisor: bool  # whether the loss is divided, as in an accumulation window
    keeps_outputs: bool  # whether a callback may want the model's outputs

    @property
    def switches(self) -> tuple[Any, ...]:
        """All that is either so or not."""
        return self[3:]


class Measured(NamedTuple):
    """What a graph returns of a step besides its changes."""

    loss: Tensor
    metrics: dict[str, Any]
    losses: tuple[str, ...]
    count: Any
    outputs: Any
    used: tuple[bool, ...]  # which parameters have a gradient
    size: int  # samples, where `compute_loss` has said so; else 0
    norm: Tensor | None
    # whether loss, gradients and settings are finite, so that the weights were changed
    is_fine: Tensor | None


class StepGraphs:
    """The compiled functions of one plan.

    Args:
        plan: what they are made for.
        on_compile: called with the function and a digest of each graph; equal for equal graphs in
            another process.
    """

    def __init__(self, plan: Plan, on_compile: Callable[[str], None]) -> None:
        self.plan = plan
        self._on_compile = on_compile
        traced = _functions(plan)
        self.whole, self.gradients, self.apply = (self._compiled(function) for function in traced)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        own = _with_own_code(function)
        note_guards = partial(self._note_guards, function.__name__)
        compiled = torch.compile(own, fullgraph=True, options={"guard_filter_fn": note_guards})

        def call(*args: Any) -> Any:
            try:
                return compiled(*args)
            except Exception as error:
                if not failed_to_compile(error):
                    raise
            # a new graph is needed, and is compiled with our settings only
            with tracing_backward(MOST_GRAPHS):
                return compiled(*args)

        return call

    def _note_guards(self, name: str, entries: Sequence[Any]) -> list[bool]:
        """Keep all guards; the values and sizes that they expect say which graph this is."""
        expected = sorted(
            f"{entry.name} {shown}" for entry in entries if (shown := _shown(entry)) is not None
        )
        expected += [str(self.plan.switches), *(str(flags) for _, flags, *_ in self.plan.rules)]
        self._on_compile(
            f"{name} {hashlib.sha256(chr(10).join(expected).encode()).hexdigest()[:16]}"
        )
        return [True] * len(entries)


def _shown(entry: Any) -> str | None:
    """A guarded value as text that is the same in every process; None for objects."""
    value = entry.value
    if entry.name.startswith("G['__") or not entry.has_value:
        return None
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype} {value.requires_grad}"
    return repr(value) if isinstance(value, (bool, int, float, str)) or value is None else None


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own: torch keeps graphs by code, and looks through all
    of them."""
    given = cast(FunctionType, function)
    return FunctionType(
        given.__code__.replace(), given.__globals__, given.__name__, closure=given.__closure__
    )


def _functions(plan: Plan) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The functions that are traced; torch sees the arguments as graph inputs, and everything else
    as constants."""
    forward = plan.program.forward
    compute_loss = plan.program.compute_loss

    def differentiate(inputs: Any, targets: Any, params: Any, numbers: Any, is_whole: bool) -> Any:
        outputs = forward(inputs)
        result = StepResult.of_loss(compute_loss(outputs, targets), 0, outputs)
        with torch.autocast(plan.device, enabled=False):
            share: Any = result.loss
            if result.count is not None:
                share = share / at_least_one(result.count) if is_whole else share
            elif plan.has_divisor:
                share = share / numbers[0].to(share.dtype)
            trained = [p for p in params if p.requires_grad]
            found = list(torch.autograd.grad(share, trained, allow_unused=True))
        grads = [found.pop(0) if p.requires_grad else None for p in params]
        metrics = {name: _detached(value) for name, value in result.metrics.items()}
        kept = tree_map(_detached, result.outputs) if plan.keeps_outputs else None
        used = tuple([g is not None for g in grads])
        loss = _detached(result.loss)
        count = _detached(result.count)
        return grads, (loss, metrics, tuple(result.losses), count, kept, used, result.size)

    def whole(inputs: Any, targets: Any, params: Any, states: Any, numbers: Any, seen: Any) -> Any:
        grads, measured = differentiate(inputs, targets, params, numbers, True)
        with torch.no_grad(), torch.autocast(plan.device, enabled=False):
            is_fine = torch.isfinite(measured[0]).reshape(()) if plan.has_guard else None
            return *measured, *_change(plan, is_fine, params, grads, states, numbers, seen)

    def gradients(inputs: Any, targets: Any, params: Any, sums: Any, numbers: Any) -> Any:
        grads, measured = differentiate(inputs, targets, params, numbers, False)
        with torch.no_grad():
            for total, grad in zip(sums, grads, strict=True):
                if grad is not None:
                    total.add_(grad)
        return *measured, None, None

    def apply(
        flag: Any, count: Any, params: Any, grads: Any, states: Any, numbers: Any, seen: Any
    ) -> Any:
        with torch.no_grad(), torch.autocast(plan.device, enabled=False):
            if count is not None:
                grads = [g if g is None else g / at_least_one(count) for g in grads]
            # without a flag, losses were checked in each step
            is_fine = None if flag is None else flag == 0
            return _change(plan, is_fine, params, grads, states, numbers, seen)

    return whole, gradients, apply


def _change(
    plan: Plan, is_fine: Any, params: Any, grads: Any, states: Any, numbers: Any, seen: Any
) -> Any:
    """Clip and step; where a value is not finite, everything keeps its old value.

    Returns the norm before clipping, and whether all values were finite.
    """
    norm = None
    if plan.has_guard:
        checks = [torch.isfinite(g).all() for g in grads if g is not None] + [
            torch.isfinite(numbers).all()
        ]
        is_finite = torch.stack(checks).all()
        is_fine = is_finite if is_fine is None else is_fine & is_finite
    if plan.clips_value:
        grads = [
            g if g is None else g.clamp(-numbers[2].to(g.dtype), numbers[2].to(g.dtype))
            for g in grads
        ]
    if plan.clips_norm:
        norm = get_total_norm([g for g in grads if g is not None])
        factor = (numbers[1].to(norm.dtype) / (norm + 1e-6)).clamp(max=1.0)
        grads = [g if g is None else g * factor.to(g.dtype) for g in grads]
    if plan.has_guard and norm is not None:
        is_fine = torch.isfinite(norm) if is_fine is None else is_fine & torch.isfinite(norm)
    if seen is not None:
        is_fine = is_fine & (seen == 0) if plan.is_final else is_fine
        seen.copy_(torch.maximum(seen, (~is_fine).to(seen.dtype)))
    for param, grad, state, rule in zip(params, grads, states, plan.rules, strict=True):
        if grad is not None:
            _change_one(param, grad, state, numbers, rule, is_fine)
    return norm, is_fine


def _change_one(
    param: Any, grad: Any, state: Any, numbers: Any, applied: Applied, is_fine: Any
) -> None:
    rule, flags, start, length = applied
    dtype = param.dtype if param.dtype == torch.float64 else torch.float32
    own = [numbers[start + index].to(dtype) for index in range(length)]
    old = {name: value if name == "step" else value.to(dtype) for name, value in state.items()}
    new, new_state = rule.change(param.to(dtype), grad.to(dtype), old, own, flags)
    for target, value in [
        (param, new),
        *((state[name], value) for name, value in new_state.items()),
    ]:
        value = value.to(target.dtype)
        target.copy_(value if is_fine is None else torch.where(is_fine, value, target))


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


# The arithmetic of torch's optimizers, as functions from old to new values. The formulas are those of
# torch's for-loop implementations. Numbers that schedules and callbacks change (learning rate,
# betas, weight decay) are tensors, so that a new value needs no new graph. The state is torch's own,
# under its names: an eager step continues what a compiled one leaves behind, and the other way round.


def obstacle_in(optimizer: Optimizer, is_host: bool) -> str | None:
    """Why the steps of an optimizer cannot be part of a graph, or None."""
    kind = type(optimizer).__name__
    if type(optimizer) not in RULES:
        known = ", ".join(known.__name__ for known in RULES)
        return f"{kind} is not one of the optimizers that can be compiled ({known})"
    rule = RULES[type(optimizer)]
    for group in optimizer.param_groups:
        values = leaves([value for name, value in group.items() if name != "params"])
        if group.get("differentiable") or group.get("dampening"):
            return f"{kind} has differentiable=True or dampening"
        if any(isinstance(value, Tensor) for value in values):
            return f"an option of {kind} is a tensor"
        if any(p.is_complex() for p in group["params"]):
            return "some parameters are complex"
        counts_on_device = group.get("fused") or group.get("capturable")
        if not is_host and "step" in rule.slots(group) and not counts_on_device:
            return (
                f"{kind} counts steps on the host: build it with fused=True or "
                "capturable=True, or pass a factory"
            )
    return None


def new_state(name: str, param: nn.Parameter, group: Options) -> Tensor:
    """The value that torch gives an entry of the state before the first step."""
    if name == "step":
        is_on_device = group.get("fused") or group.get("capturable")
        dtype = (
            torch.float64
            if torch.get_default_dtype() == torch.float64 and not group.get("fused")
            else torch.float32
        )
        return torch.zeros((), dtype=dtype, device=param.device if is_on_device else "cpu")
    return torch.zeros_like(param, memory_format=torch.preserve_format, requires_grad=False)


def _floats(*values: Any) -> list[float]:
    return [float(value) for value in values]


def _signed(grad: Tensor, flags: Options) -> Tensor:
    return -grad if flags["maximize"] else grad


def _sgd(
    param: Tensor, grad: Tensor, state: State, numbers: Sequence[Tensor], flags: Options
) -> New:
    lr, momentum, weight_decay = numbers
    grad = _signed(grad, flags)
    if flags["decays"]:
        grad = grad + param * weight_decay
    if not flags["has_momentum"]:
        return param - lr * grad, {}
    buffer = state["momentum_buffer"] * momentum + grad
    return param - lr * (grad + buffer * momentum if flags["nesterov"] else buffer), {
        "momentum_buffer": buffer
    }


def _adam(
    param: Tensor, grad: Tensor, state: State, numbers: Sequence[Tensor], flags: Options
) -> New:
    lr, beta1, beta2, eps, weight_decay = numbers
    grad = _signed(grad, flags)
    if flags["decays"]:
        if flags["decoupled"]:
            param = param * (1 - lr * weight_decay)
        else:
            grad = grad + param * weight_decay
    step = state["step"] + 1
    first = state["exp_avg"] + (grad - state["exp_avg"]) * (1 - beta1)
    second = state["exp_avg_sq"] * beta2 + grad * grad * (1 - beta2)
    new = {"step": step, "exp_avg": first, "exp_avg_sq": second}
    if flags["amsgrad"]:
        second = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], second)
    exact = step.double()
    scale = (lr.double() / (1 - beta1.double() ** exact)).to(lr.dtype)
    root = (1 - beta2.double() ** exact).sqrt().to(lr.dtype)
    return param - scale * first / (second.sqrt() / root + eps), new


_SGD = Rule(
    options=itemgetter("lr", "momentum", "weight_decay", "maximize", "nesterov", "dampening"),
    numbers=lambda g: _floats(g["lr"], g["momentum"], g["weight_decay"]),
    flags=lambda g: {
        "maximize": g["maximize"],
        "decays": g["weight_decay"] != 0,
        "has_momentum": g["momentum"] != 0,
        "nesterov": g["nesterov"],
        "dampens": g["dampening"] != 0,
    },
    slots=lambda g: ("momentum_buffer",) if g["momentum"] != 0 else (),
    change=_sgd,
)
_ADAM = Rule(
    options=itemgetter(
        "lr", "betas", "eps", "weight_decay", "maximize", "decoupled_weight_decay", "amsgrad"
    ),
    numbers=lambda g: _floats(g["lr"], *g["betas"], g["eps"], g["weight_decay"]),
    flags=lambda g: {
        "maximize": g["maximize"],
        "decays": g["weight_decay"] != 0,
        "decoupled": g["decoupled_weight_decay"],
        "amsgrad": g["amsgrad"],
    },
    slots=lambda g: (
        "step",
        "exp_avg",
        "exp_avg_sq",
        *(("max_exp_avg_sq",) if g["amsgrad"] else ()),
    ),
    change=_adam,
)
RULES: dict[type[Optimizer], Rule] = {SGD: _SGD, Adam: _ADAM, AdamW: _ADAM}

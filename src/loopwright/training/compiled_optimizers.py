"""The arithmetic of torch's optimizers as functions from old to new values, for a step that is
compiled as a whole.

The formulas are those of torch's for-loop implementations. Numbers that schedules and callbacks
change (learning rate, betas, weight decay) are tensors, so that a new value needs no new graph. The
state is torch's own, under its names: what a compiled step leaves behind, an eager one continues,
and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

Options = Mapping[str, Any]  # a parameter group
State = Mapping[str, Tensor]
New = tuple[Tensor, dict[str, Tensor]]  # the new value of a parameter, and its new state


@dataclass(frozen=True, slots=True)
class Rule:
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


def rule_for(optimizer: Optimizer) -> Rule | None:
    """The rule of an optimizer; None for one that is not torch's, or not among those here."""
    return RULES.get(type(optimizer))


def obstacle_in(optimizer: Optimizer, is_host: bool) -> str | None:
    """Why the steps of an optimizer cannot be part of a graph, or None."""
    kind = type(optimizer).__name__
    rule = rule_for(optimizer)
    if rule is None:
        return (
            f"{kind} is not one of the optimizers that can be compiled "
            f"({', '.join(k.__name__ for k in RULES)})"
        )
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return f"{kind}(differentiable=True) keeps graphs of its steps"
        if group.get("dampening"):
            return f"{kind} has dampening={group['dampening']:g}"
        if any(p.is_complex() for p in group["params"]):
            return "some parameters are complex"
        if not is_host and has_tensors(rule.options(group)):
            return f"an option of {kind} is a tensor on the device"
        if (
            not is_host
            and "step" in rule.slots(group)
            and not (group.get("fused") or group.get("capturable"))
        ):
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
    first = group["initial_accumulator_value"] if name == "sum" else 0.0
    return torch.full_like(param, first, memory_format=torch.preserve_format, requires_grad=False)


def has_tensors(options: tuple[Any, ...]) -> bool:
    """Whether an option is a tensor, whose value may change while it stays the same object."""
    return any(
        isinstance(item, Tensor)
        for value in options
        for item in (value if type(value) is tuple else (value,))
    )


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


def _rmsprop(
    param: Tensor, grad: Tensor, state: State, numbers: Sequence[Tensor], flags: Options
) -> New:
    lr, alpha, eps, momentum, weight_decay = numbers
    grad = _signed(grad, flags)
    if flags["decays"]:
        grad = grad + param * weight_decay
    square = state["square_avg"] * alpha + grad * grad * (1 - alpha)
    new = {"step": state["step"] + 1, "square_avg": square}
    spread = square
    if flags["centered"]:
        mean = new["grad_avg"] = state["grad_avg"] + (grad - state["grad_avg"]) * (1 - alpha)
        spread = square - mean * mean
    change = grad / (spread.sqrt() + eps)
    if flags["has_momentum"]:
        change = new["momentum_buffer"] = state["momentum_buffer"] * momentum + change
    return param - lr * change, new


def _adagrad(
    param: Tensor, grad: Tensor, state: State, numbers: Sequence[Tensor], flags: Options
) -> New:
    lr, lr_decay, eps, weight_decay = numbers
    grad = _signed(grad, flags)
    if flags["decays"]:
        grad = grad + param * weight_decay
    step = state["step"] + 1
    total = state["sum"] + grad * grad
    rate = lr / (1 + (step - 1) * lr_decay)
    return param - rate.to(lr.dtype) * grad / (total.sqrt() + eps), {"step": step, "sum": total}


_SGD = Rule(
    options=itemgetter("lr", "momentum", "weight_decay", "maximize", "nesterov", "dampening"),
    numbers=lambda g: _floats(g["lr"], g["momentum"], g["weight_decay"]),
    flags=lambda g: {
        "maximize": g["maximize"],
        "decays": g["weight_decay"] != 0,
        "has_momentum": g["momentum"] != 0,
        "nesterov": g["nesterov"],
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
_RMSPROP = Rule(
    options=itemgetter("lr", "alpha", "eps", "momentum", "weight_decay", "maximize", "centered"),
    numbers=lambda g: _floats(g["lr"], g["alpha"], g["eps"], g["momentum"], g["weight_decay"]),
    flags=lambda g: {
        "maximize": g["maximize"],
        "decays": g["weight_decay"] != 0,
        "has_momentum": g["momentum"] > 0,
        "centered": g["centered"],
    },
    slots=lambda g: (
        *("step", "square_avg"),
        *(("momentum_buffer",) if g["momentum"] > 0 else ()),
        *(("grad_avg",) if g["centered"] else ()),
    ),
    change=_rmsprop,
)
_ADAGRAD = Rule(
    options=itemgetter("lr", "lr_decay", "eps", "weight_decay", "maximize"),
    numbers=lambda g: _floats(g["lr"], g["lr_decay"], g["eps"], g["weight_decay"]),
    flags=lambda g: {"maximize": g["maximize"], "decays": g["weight_decay"] != 0},
    slots=lambda g: ("step", "sum"),
    change=_adagrad,
)
RULES: dict[type[Optimizer], Rule] = {
    SGD: _SGD,
    Adam: _ADAM,
    AdamW: _ADAM,
    RMSprop: _RMSPROP,
    Adagrad: _ADAGRAD,
}

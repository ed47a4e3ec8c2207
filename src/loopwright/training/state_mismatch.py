"""Compare a saved state with a trainer, before any part of it is loaded.

Models and optimizers are compared in depth, since torch would load some states of others without
a word. The hashes of a checkpoint guard the rest, and `restore` puts everything back where a part
of it cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..errors import CheckpointError

if TYPE_CHECKING:
    from .components import Components

LISTED = 20
# what torch's optimizers keep for a parameter in the shape of that parameter
LIKE_PARAMETER = frozenset(
    (
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
        *("grad_avg", "acc_delta", "sum", "prev", "step_size", "ax"),
    )
)


@dataclass(frozen=True, slots=True)
class Kept:
    """The names of optimizers and schedules that a restore does not change."""

    optimizers: frozenset[str] = frozenset()
    schedules: frozenset[str] = frozenset()


NOTHING_KEPT = Kept()


def listed(problems: Sequence[str]) -> str:
    """Return the problems as lines; of many, only the first ones."""
    more = f"\n  - and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
    return "".join(f"\n  - {problem}" for problem in problems[:LISTED]) + more


def refuse(source: str, problems: Sequence[str], advice: str = "") -> None:
    """Raise if there are problems with a state."""
    if problems:
        raise CheckpointError(
            "state-mismatch",
            f"{source} does not match this trainer; nothing was loaded:{listed(problems)}{advice}",
        )


def compare_components(
    own: Components,
    models: Mapping[str, Any],
    optimizers: Mapping[str, Any],
    schedules: Mapping[str, Any],
    *,
    partly: bool = False,
    kept: Kept = NOTHING_KEPT,
) -> list[str]:
    """Return the differences of models, optimizers and schedules from their saved states.

    Components in `kept` are left out; with `partly` not all of the others need be saved.
    """
    schedulers = {name: schedule.scheduler for name, schedule in own.schedules.items()}
    return [
        *_compare_named("models", own.models, models, compare_model, (), partly),
        *_compare_named(
            "optimizers", own.optimizers, optimizers, compare_groups, kept.optimizers, partly
        ),
        *_compare_named(
            "schedules", schedulers, schedules, compare_schedule, kept.schedules, partly
        ),
    ]


def _compare_named(
    part: str,
    own: Mapping[str, Any],
    saved: Mapping[str, Any],
    compare: Callable[[Any, Any], list[str]],
    left_out: Collection[str],
    partly: bool,
) -> Iterator[str]:
    for name in dict.fromkeys((*own, *saved)):
        if name in left_out:
            continue
        if name in own and name in saved:
            yield from (f"{part}: {name}: {found}" for found in compare(own[name], saved[name]))
        elif not partly and name in own:
            yield f"{part}: {name!r} is not in the checkpoint"
        elif not partly:
            yield f"{part}: the checkpoint has {name!r}, but the trainer does not"


def compare_model(model: nn.Module, saved: Mapping[str, Any]) -> list[str]:
    """Return the names, shapes and types in which a saved state dict differs from a model."""
    own = model.state_dict()
    problems = [f"{key} is missing from the checkpoint" for key in own if key not in saved]
    problems += [f"{key} is only in the checkpoint" for key in saved if key not in own]
    for key, value in own.items():
        # not a tensor: the extra state of a module, which only the module can judge
        if key in saved and isinstance(value, Tensor):
            problems += [f"{key} {problem}" for problem in _misfits(value, saved[key])]
    return problems


def _misfits(own: Tensor, saved: Any) -> Iterator[str]:
    if is_lazy(own):  # gets its size from the checkpoint
        return
    shape = getattr(saved, "shape", None)
    if shape != own.shape:
        found = type(saved).__name__ if shape is None else tuple(shape)
        yield f"has shape {tuple(own.shape)}, the checkpoint's {found}"
    elif _family(own.dtype) != _family(saved.dtype):
        yield f"is {own.dtype}, the checkpoint's {saved.dtype}"


def _family(dtype: torch.dtype) -> str:
    """Return the class of types that a type may be cast to when it is loaded."""
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def compare_groups(optimizer: Optimizer, saved: Mapping[str, Any]) -> list[str]:
    """Return the groups, options and entries in which a saved state differs from an optimizer."""
    groups = saved["param_groups"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    other = [len(group["params"]) for group in groups]
    if sizes != other:
        return [f"parameter groups of sizes {sizes}, the checkpoint's {other}"]
    problems = []
    for own, completed in zip(optimizer.param_groups, _completed(optimizer, groups), strict=True):
        missing = [name for name in own if name not in completed and name != "param_names"]
        if missing:
            problems.append(
                f"{', '.join(missing)} of a group: not in the checkpoint, which may be from "
                "another optimizer class"
            )
    if not type(optimizer).__module__.startswith("torch.optim"):
        return problems
    numbers = (number for group in groups for number in group["params"])
    params = (param for group in optimizer.param_groups for param in group["params"])
    for number, param in zip(numbers, params, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            if name in LIKE_PARAMETER and value is not None:
                problems += [
                    f"{name} of parameter {number}: the parameter {problem}"
                    for problem in _misfits(param, value)
                ]
    return problems


def _completed(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return the saved groups with the options that the optimizer adds to groups of earlier torch
    versions."""
    probe = object.__new__(type(optimizer))
    probe.__dict__.update(optimizer.__dict__)
    plain = [{**group, "params": []} for group in groups]
    try:
        probe.__setstate__({"state": {}, "param_groups": plain})
    except Exception:  # what it cannot complete is compared as it is
        return groups
    return probe.param_groups


def compare_schedule(scheduler: Any, saved: Mapping[str, Any]) -> list[str]:
    """Return the options of a scheduler that its saved state lacks, as that of another class does."""
    if not type(scheduler).__module__.startswith(("torch.", "loopwright.")):
        return []
    return [
        f"{key} is not in the checkpoint"
        for key in scheduler.state_dict()
        if key not in saved and not str(key).startswith("_")
    ]


def wrong_fields(part: str, saved: Collection[str], known: Collection[str]) -> list[str]:
    """Return the fields that the state of a part lacks, and those that its version does not have."""
    return [
        *(f"{part}: {name!r} is not in the checkpoint" for name in known if name not in saved),
        *(
            f"{part}: {name!r:.40} is in the checkpoint, but this version does not know it"
            for name in saved
            if name not in known
        ),
    ]

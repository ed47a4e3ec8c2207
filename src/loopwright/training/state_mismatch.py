"""Compare a saved state with a trainer, before any part of it is loaded.

Models and optimizers are compared in depth, since torch would load some states of others without
a word. The hashes of a checkpoint guard the rest, and `restore` puts everything back where a part
of it cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch_compat import state_dict_metadata
from ..checkpoint.tensors import StoredTensor
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
    models: Any,
    optimizers: Any,
    schedules: Any,
    *,
    partly: bool = False,
    kept: Kept = NOTHING_KEPT,
) -> list[str]:
    """Return the differences of models, optimizers and schedules from their saved states.

    Components in `kept` are left out; with `partly` not all of the others need be saved.
    """
    return [
        *_compare_named("models", own.models, models, compare_model, partly=partly),
        *_compare_named(
            "optimizers",
            {name: o for name, o in own.optimizers.items() if name not in kept.optimizers},
            optimizers,
            compare_groups,
            partly=partly,
            left_out=kept.optimizers,
        ),
        *_compare_named(
            "schedules",
            {n: s.scheduler for n, s in own.schedules.items() if n not in kept.schedules},
            schedules,
            compare_schedule,
            partly=partly,
            left_out=kept.schedules,
        ),
    ]


def _compare_named(
    part: str,
    own: Mapping[str, Any],
    saved: Any,
    compare: Callable[[Any, Any], list[str]],
    *,
    partly: bool,
    left_out: Collection[str] = (),
) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        yield f"{part}: the checkpoint has {_kind(saved)} instead of a state for each of them"
        return
    if not partly:
        yield from (f"{part}: {n!r} is not in the checkpoint" for n in own if n not in saved)
        yield from (
            f"{part}: the checkpoint has {name!r}, but the trainer does not"
            for name in saved
            if name not in own and name not in left_out
        )
    for name, component in own.items():
        if name in saved:
            yield from (f"{part}: {name}: {found}" for found in compare(component, saved[name]))


def compare_model(model: nn.Module, saved: Any) -> list[str]:
    """Return the names, shapes and types in which a saved state dict differs from a model."""
    if not isinstance(saved, Mapping):
        return [f"the checkpoint has {_kind(saved)} instead of a state dict"]
    own = model.state_dict()
    problems = [f"{key} is missing from the checkpoint" for key in own if key not in saved]
    problems += [f"{key} is only in the checkpoint" for key in saved if key not in own]
    for key, value in own.items():
        if key in saved and (problem := _misfit(value, saved[key])) is not None:
            problems.append(f"{key} {problem}")
    metadata = state_dict_metadata(saved) or {}
    if not isinstance(metadata, Mapping) or not all(
        isinstance(entry, Mapping) for entry in metadata.values()
    ):
        problems.append("the versions recorded with its weights are not a table")
    return problems


def _misfit(own: Any, saved: Any) -> str | None:
    if not isinstance(own, Tensor):  # the extra state of a module, which only the module can judge
        return None
    if not isinstance(saved, Tensor | StoredTensor):
        return f"is a tensor, the checkpoint's is {_kind(saved)}"
    if is_lazy(own):  # gets its size from the checkpoint
        return None
    if own.shape != saved.shape:
        return f"has shape {tuple(own.shape)}, the checkpoint's {tuple(saved.shape)}"
    if _family(own.dtype) != _family(saved.dtype):
        return f"is {own.dtype}, the checkpoint's {saved.dtype}"
    return None


def _family(dtype: torch.dtype) -> str:
    """Return the class of types that a type may be cast to when it is loaded."""
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def compare_groups(optimizer: Optimizer, saved: Any) -> list[str]:
    """Return the groups, options and entries in which a saved state differs from an optimizer."""
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    state = saved.get("state") if isinstance(saved, Mapping) else None
    if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) for group in groups):
        return [f"the checkpoint's param_groups are {_kind(groups)} instead of a list of groups"]
    if not isinstance(state, Mapping):
        return [f"the checkpoint's state is {_kind(state)} instead of an entry for each parameter"]
    own = [len(group["params"]) for group in optimizer.param_groups]
    other = [len(g["params"]) if isinstance(g.get("params"), Sequence) else None for g in groups]
    if own != other:
        return [f"parameter groups of sizes {own}, the checkpoint's {other}"]
    numbers = [number for group in groups for number in group["params"]]
    if not all(type(number) is int for number in numbers) or len(set(numbers)) < len(numbers):
        return ["the checkpoint does not number the parameters of its groups"]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [
        *_compare_options(optimizer, groups),
        *_compare_entries(optimizer, state, dict(zip(numbers, params, strict=True))),
    ]


def _compare_options(optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for own, saved in zip(optimizer.param_groups, _completed(optimizer, groups), strict=True):
        missing = [name for name in own if name not in saved and name != "param_names"]
        if missing:
            yield (
                f"{', '.join(missing)} of a group: not in the checkpoint, which may be from "
                "another optimizer class"
            )
        for name in own:
            if name in saved and name != "params":
                if own[name] is None and isinstance(saved[name], Mapping | list | Tensor):
                    yield f"of a group, {name} is {_kind(saved[name])} in the checkpoint"
                differing = differing_kinds(own[name], saved[name], name, none_fits=False)
                yield from (f"of a group, {problem}" for problem in differing)


def _completed(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the saved groups with the options that the optimizer adds to groups of earlier torch
    versions."""
    probe = object.__new__(type(optimizer))
    probe.__dict__.update(optimizer.__dict__)
    plain = [{**group, "params": []} for group in groups]
    try:
        probe.__setstate__({"state": {}, "param_groups": plain})
    except Exception:  # what it cannot complete is compared as it is
        return list(groups)
    return list(probe.param_groups)


def _compare_entries(
    optimizer: Optimizer, state: Mapping[Any, Any], params: Mapping[int, Tensor]
) -> Iterator[str]:
    """Yield the problems in the states of parameters; only torch's own optimizers are checked."""
    is_torch = type(optimizer).__module__.startswith("torch.optim")
    for number, entry in state.items():
        if number not in params or not isinstance(entry, Mapping):
            yield (
                f"the state of parameter {number!r:.20} is {_kind(entry)}, or of none of its "
                "parameters"
            )
            continue
        for name, value in entry.items() if is_torch else ():
            problem = None
            if name in LIKE_PARAMETER and value is not None:
                problem = _misfit(params[number], value)
            if problem is not None:
                yield f"{name} of parameter {number}: the parameter {problem}"


def compare_schedule(scheduler: Any, saved: Any) -> list[str]:
    """Return the options of a scheduler that its saved state lacks, as that of another class does."""
    if not isinstance(saved, Mapping):
        return [f"the checkpoint has {_kind(saved)} instead of its state"]
    if not type(scheduler).__module__.startswith(("torch.", "loopwright.")):
        return []
    own = scheduler.state_dict()
    return [
        f"{key} is not in the checkpoint"
        for key in own
        if key not in saved and not str(key).startswith("_")
    ]


def tried(part: str, attempt: Callable[[], object]) -> list[str]:
    """Return the error of an attempt that changes nothing, with the name of the part."""
    try:
        attempt()
    except Exception as error:  # the state is not ours to trust, and fails in any way it likes
        return [f"{part}: {type(error).__name__}: {error}"]
    return []


def wrong_fields(part: str, saved: Any, known: Collection[str]) -> Iterator[str]:
    """Yield the fields that the state of a part lacks, and fields that its version does not
    have."""
    if not isinstance(saved, Mapping):
        yield f"{part} is {_kind(saved)} instead of a table of {', '.join(known)}"
        return
    yield from (f"{part}: {name!r} is not in the checkpoint" for name in known if name not in saved)
    yield from (
        f"{part}: {name!r:.40} is in the checkpoint, but this version does not know it"
        for name in saved
        if name not in known
    )


def differing_kinds(
    own: Any, saved: Any, path: str = "", *, none_fits: bool = True
) -> Iterator[str]:
    """Yield the places where two states have values of different kinds, such as text for a number.

    None in this trainer fits any value. None in the checkpoint fits any value if `none_fits`.
    """
    # a choice left open
    is_none = saved is None and not none_fits and not (own is None or isinstance(own, bool))
    if is_none or not _is_of_one_kind(own, saved):
        yield f"{path or 'it'} is {_kind(own)}, the checkpoint's {_kind(saved)}"
    elif isinstance(own, Mapping) and isinstance(saved, Mapping):
        for key in own:
            if key in saved:
                place = f"{path}.{key}" if path else str(key)
                yield from differing_kinds(own[key], saved[key], place, none_fits=none_fits)
    elif isinstance(own, list | tuple) and isinstance(saved, list | tuple):
        if len(own) != len(saved) and not none_fits:
            yield f"{path or 'it'} has {len(own)} values, the checkpoint's {len(saved)}"
        for at, (first, second) in enumerate(zip(own, saved, strict=False)):
            yield from differing_kinds(first, second, f"{path}[{at}]", none_fits=none_fits)


def _is_of_one_kind(own: Any, saved: Any) -> bool:
    if own is None or saved is None or (_is_number(own) and _is_number(saved)):
        return True
    for kind in ((str,), (Mapping,), (list, tuple), (Tensor, StoredTensor)):
        if isinstance(own, kind):
            return isinstance(saved, kind)
    return not _is_number(own)


def _is_number(value: Any) -> bool:
    is_single = isinstance(value, Tensor | StoredTensor) and value.shape == ()
    return is_single or isinstance(value, int | float | np.number)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor | StoredTensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"{value!r:.40} ({type(value).__name__})"

"""Compare a saved state with a trainer, before any part of it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch_compat import state_dict_metadata
from ..checkpoint.tensors import StoredTensor
from ..data.random import all_preserved
from ..metrics.history import History
from ..metrics.meter import Meter
from ..metrics.progress import Progress

if TYPE_CHECKING:
    from ..callback import Callback
    from .components import Components

LISTED = 20
# What torch's optimizers keep for a parameter: entries with its shape, and entries that are one
# number.
LIKE_PARAMETER = {
    *(
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
    ),
    *("acc_delta", "sum", "prev", "step_size", "ax"),
}
ONE_NUMBER = {"step", "mu_product", "eta", "mu"}
REQUIRED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Adam", "AdamW", "RAdam"), ("step", "exp_avg", "exp_avg_sq")),
    "NAdam": ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "Adagrad": ("step", "sum"),
    "Adadelta": ("step", "square_avg", "acc_delta"),
    "RMSprop": ("step", "square_avg"),
    "Rprop": ("step", "prev", "step_size"),
    "ASGD": ("step", "eta", "mu", "ax"),
    "Adafactor": ("step",),
}
HISTORY = ("epochs", "steps")
SERIES = ("stride", "num_seen", "steps", "values")
METER = ("sums", "counts", "logged")
GENERATORS = ("torch", "numpy", "python")
DEVICE_GENERATORS = ("cuda", "mps")
OPEN = ("TorchMetrics",)  # shipped callbacks whose fields are names of the user
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


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


def compare_components(
    own: Components,
    models: Any,
    optimizers: Any,
    schedules: Any,
    *,
    partly: bool = False,
    kept: Kept = NOTHING_KEPT,
) -> list[str]:
    """Return the differences of models, optimizers and schedules from their saved states, except
    those in `kept`.

    With `partly` not all of them need be saved.
    """
    problems: list[str] = []
    compared: tuple[tuple[str, Any, Any, Collection[str], Callable[[Any, Any], list[str]]], ...] = (
        ("models", own.models, models, (), compare_model),
        ("optimizers", own.optimizers, optimizers, kept.optimizers, compare_groups),
        (
            "schedules",
            own.schedules,
            schedules,
            kept.schedules,
            lambda schedule, s: compare_schedule(schedule.scheduler, s),
        ),
    )
    for part, components, states, left, compare in compared:
        if not isinstance(states, Mapping):
            problems.append(
                f"{part}: the checkpoint has {_kind(states)} instead of a state for each of them"
            )
            continue
        held, saved = (
            {n: value for n, value in named.items() if n not in left}
            for named in (components, states)
        )
        if not partly:
            problems += [
                f"{part}: {name!r} is not in the checkpoint" for name in held if name not in saved
            ]
            problems += [
                f"{part}: the checkpoint has {n!r}, but the trainer does not"
                for n in saved
                if n not in held
            ]
        for name in held:
            if name in saved:
                problems += [
                    f"{part}: {name}: {problem}" for problem in compare(held[name], saved[name])
                ]
    return problems


def compare_model(model: nn.Module, saved: Any) -> list[str]:
    """Return the differences of a saved state dict from a model: missing or unexpected names, other
    shapes or types."""
    if not isinstance(saved, Mapping):
        return [f"the checkpoint has {_kind(saved)} instead of a state dict"]
    own = model.state_dict()
    problems = [f"{key} is missing from the checkpoint" for key in own if key not in saved]
    problems += [f"{key} is only in the checkpoint" for key in saved if key not in own]
    problems += [
        f"{key} {p}"
        for key in own
        if key in saved and (p := _misfit(own[key], saved[key])) is not None
    ]
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
    """Return the differences of a saved state from an optimizer: groups, their options, and its
    state."""
    groups, state = (
        (saved.get("param_groups"), saved.get("state"))
        if isinstance(saved, Mapping)
        else (None, None)
    )
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
    problems = [
        problem
        for own, saved in zip(optimizer.param_groups, _completed(optimizer, groups), strict=True)
        for problem in _compare_options(own, saved)
    ]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    by_number = dict(zip(numbers, params, strict=True))
    return problems + [
        problem
        for n, entry in state.items()
        for problem in _compare_entry(optimizer, n, entry, by_number)
    ]


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


def _compare_options(own: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in own if name not in saved and name != "param_names"]
    if missing:
        yield (
            f"{', '.join(missing)} of a group: not in the checkpoint, which may be from "
            "another optimizer class"
        )
    for name in own:
        if own[name] is None and isinstance(saved.get(name), Mapping | list | Tensor):
            yield f"of a group, {name} is {_kind(saved[name])} in the checkpoint"
        if name in saved and name != "params":
            yield from (
                f"of a group, {p}"
                for p in differing_kinds(own[name], saved[name], name, none_fits=False)
            )


def _compare_entry(
    optimizer: Optimizer, number: Any, entry: Any, params: Mapping[int, Tensor]
) -> Iterator[str]:
    """Yield the problems in the state of one parameter; only torch's own optimizers are checked."""
    kind = type(optimizer)
    if number not in params or not isinstance(entry, Mapping):
        yield (
            f"the state of parameter {number!r:.20} is {_kind(entry)}, or of none of its parameters"
        )
        return
    if not kind.__module__.startswith("torch.optim"):
        return
    if entry and (
        missing := [name for name in REQUIRED.get(kind.__name__, ()) if entry.get(name) is None]
    ):
        yield f"the state of parameter {number} has no {', '.join(missing)}"
    for name, value in entry.items():
        if (
            name in LIKE_PARAMETER
            and value is not None
            and (problem := _misfit(params[number], value)) is not None
        ):
            yield f"{name} of parameter {number}: the parameter {problem}"
        if name in ONE_NUMBER and not _is_number(value):
            yield f"{name} of parameter {number} is {_kind(value)} instead of a number"


def compare_schedule(scheduler: Any, saved: Any) -> list[str]:
    """Return the differences in form of a saved scheduler state from that of this scheduler."""
    if not isinstance(saved, Mapping):
        return [f"the checkpoint has {_kind(saved)} instead of its state"]
    own = scheduler.state_dict()
    if not type(scheduler).__module__.startswith(("torch.", "loopwright.")):
        return []
    needed = [
        key for key in own if not str(key).startswith("_") or key in ("_step_count", "_last_lr")
    ]
    missing = [f"{key} is not in the checkpoint" for key in needed if key not in saved]
    return missing + list(differing_kinds(own, saved, none_fits=False))


def compare_callbacks(callbacks: Mapping[str, Callback], saved: Any) -> list[str]:
    """Return the differences in form of the saved states of callbacks; states of users' own classes
    are not checked."""
    if not isinstance(saved, Mapping):
        return [f"callbacks: the checkpoint has {_kind(saved)} instead of their states"]
    return [
        f"callbacks: {name}: {problem}"
        for name, callback in callbacks.items()
        if saved.get(name) is not None
        for problem in _compare_callback(callback, saved[name])
    ]


def _compare_callback(callback: Callback, saved: Any) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        yield f"the checkpoint has {_kind(saved)} instead of its state"
    elif type(callback).__module__.startswith("loopwright.") and not callback._users_objects:
        own = callback.state_dict()
        if (
            type(callback).__module__.startswith("loopwright.callbacks.")
            and type(callback).__name__ not in OPEN
        ):
            yield from wrong_fields("its state", saved, own)
        yield from differing_kinds(own, saved)


def compare_rest(tree: Mapping[str, Any], optimizers: Iterable[str]) -> list[str]:
    """Return the problems of the counters and positions in a state."""
    problems = list(_wrong_progress(tree["progress"]))
    has_updates = not problems and tree["progress"]["update"] > 0
    problems += _wrong_optimization(tree["lanes"], optimizers, has_updates)
    if not isinstance(tree["stop_reason"], str | None):
        problems.append(f"stop_reason is {_kind(tree['stop_reason'])} instead of text")
    if not isinstance(tree.get("trainer"), Mapping | None):
        problems.append(f"trainer is {_kind(tree['trainer'])} instead of its state")
    if type(tree.get("num_pieces", 1)) is not int:
        problems.append(f"num_pieces is {_kind(tree['num_pieces'])} instead of a number")
    for part in ("data", "eval_data"):
        problems += _wrong_position(part, tree.get(part))
    return problems


def tried(part: str, attempt: Callable[[], None]) -> list[str]:
    """Return the error of an attempt that changes nothing, with the name of the part."""
    try:
        attempt()
    except Exception as error:  # the state is not ours to trust, and fails in any way it likes
        return [f"{part}: {type(error).__name__}: {error}"]
    return []


def wrong_history(saved: Any) -> list[str]:
    """Return the problems of a saved history."""
    problems = list(wrong_fields("history", saved, HISTORY))
    for name, series in (
        saved["steps"].items() if not problems and isinstance(saved["steps"], Mapping) else ()
    ):
        problems += wrong_fields(f"history: steps of {name!r:.40}", series, SERIES)
    return problems or tried("history", lambda: _try_history(saved))


def _try_history(saved: Any) -> None:
    history = History()
    history.load_state_dict(saved)
    for row in history.epochs:
        if not all(isinstance(value, int | float) for value in row.values()):
            raise TypeError(f"a row is {row!r:.60}")
    for name, series in history.steps.items():
        if not (
            type(series.stride) is type(series.num_seen) is int
            and len(series.steps) == len(series.values)
        ):
            raise TypeError(f"the values of {name!r:.40} do not belong together")


def wrong_meter(states: Sequence[Any]) -> list[str]:
    """Return the problems of the saved meters of all processes."""
    problems = [problem for state in states for problem in wrong_fields("meter", state, METER)]
    return problems or tried("meter", lambda: _try_meter(states))


def _try_meter(states: Sequence[Any]) -> None:
    meter = Meter()
    for state in states:
        meter.add_state_dict(state)
        if alone := sorted(set(state["sums"]) ^ set(state["counts"])):
            raise TypeError(f"it does not have a sum and a count of {', '.join(alone)}")
        if not isinstance(state["logged"], Mapping):
            raise TypeError(f"what was logged is {_kind(state['logged'])}")


def wrong_rng(saved: Any, set_state: Callable[[], None]) -> list[str]:
    """Return the problems of the saved random generators of all processes; `set_state` loads those
    of this process."""
    if not isinstance(saved, list) or not saved:
        return [f"rng is {_kind(saved)} instead of the generators of each process"]
    problems = [
        problem
        for state in saved
        for problem in wrong_fields("rng", state, GENERATORS, DEVICE_GENERATORS)
    ]
    return problems or tried("rng", lambda: _try_random_state(set_state))


def _try_random_state(set_state: Callable[[], None]) -> None:
    with all_preserved():
        set_state()


def wrong_fields(
    part: str, saved: Any, known: Collection[str], optional: Collection[str] = ()
) -> Iterator[str]:
    """Yield the fields that the state of a part lacks, and fields that its version does not
    have."""
    if not isinstance(saved, Mapping):
        yield f"{part} is {_kind(saved)} instead of a table of {', '.join(known)}"
        return
    yield from (f"{part}: {name!r} is not in the checkpoint" for name in known if name not in saved)
    unknown = [name for name in saved if name not in known and name not in optional]
    yield from (
        f"{part}: {name!r:.40} is in the checkpoint, but this version does not know it"
        for name in unknown
    )


def _wrong_progress(saved: Any) -> Iterator[str]:
    problems = list(wrong_fields("progress", saved, [field.name for field in fields(Progress)]))
    yield from problems
    for field in fields(Progress) if not problems else ():
        value: Any = saved[field.name]
        is_right = (
            isinstance(value, int | float)
            if field.type == "float"
            else type(value).__name__ == field.type
        )
        if not is_right or value < 0:
            yield f"progress: {field.name} is {value!r:.40}"


def _wrong_optimization(saved: Any, optimizers: Iterable[str], has_updates: bool) -> Iterator[str]:
    """Yield the problems of the saved updates: none before the first `train` call, then one entry
    per optimizer."""
    if isinstance(saved, Mapping) and (saved or has_updates):
        yield from (
            f"lanes: the updates of optimizer {name!r} are not in the checkpoint"
            for name in optimizers
            if name not in saved
        )
    for name, state in saved.items() if isinstance(saved, Mapping) else [("lanes", saved)]:
        problems = list(
            wrong_fields(
                f"lanes: {name!r:.40}",
                state,
                ("updates", "scaler"),
                ("order", "stepped", "skipped"),
            )
        )
        yield from problems
        if problems:
            continue
        updates = state["updates"]
        scaler = state["scaler"]
        for key in ("stepped", "skipped"):
            if not isinstance(state.get(key, 0), int):
                yield (
                    f"lanes: optimizer {name!r:.40} counts {state[key]!r:.40} updates that "
                    f"were {key}"
                )
        if type(updates) is not int or updates < 0:
            yield f"lanes: optimizer {name!r:.40} counts {updates!r:.40} updates"
        is_right = isinstance(scaler, Mapping) and all(
            _is_number(scaler.get(key)) for key in SCALER
        )
        if scaler and not is_right:  # one that is not in use saves nothing
            yield f"lanes: the loss scaling of optimizer {name!r:.40} is not complete"
        order = state.get("order")
        if order is not None and not (
            isinstance(order, list) and all(type(place) is int for place in order)
        ):
            yield (
                f"lanes: the order of gradients of optimizer {name!r:.40} is not a list of numbers"
            )


def _wrong_position(part: str, saved: Any) -> Iterator[str]:
    if saved is None:
        return
    if not isinstance(saved, Mapping):
        yield f"{part} is {_kind(saved)} instead of a position in the data"
        return
    for name in ("epoch", "position"):
        # streams around others have none
        if name in saved and not (type(saved[name]) is int and saved[name] >= 0):
            yield f"{part}: {name} is {saved[name]!r:.40}"


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
    kinds: tuple[tuple[type, ...], ...] = (
        (str,),
        (Mapping,),
        (list, tuple),
        (Tensor, StoredTensor),
    )
    for kind in kinds:
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

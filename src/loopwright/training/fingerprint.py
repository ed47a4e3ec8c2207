"""What a run is, as a flat mapping of names to plain values: models, optimizers, schedules, loss,
settings and data.

It describes what the program gave before anything was restored, so that the same program has the
same description in every process and on every day. Weights are not in it, nor what may change:
devices, processes, workers, limits, callbacks and what is shown. An unknown value is `UNKNOWN`,
which is equal to anything.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import platform
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import INNER_SCHEDULERS
from ..errors import ConfigurationError
from ..optim.build import CurveLike, CurveSchedule, Schedule
from ..run.changes import UNKNOWN, differing_by_rank, rank_refusal
from ..trees import as_json
from .program import users_trainer

if TYPE_CHECKING:
    from ..data.open import Stream
    from ..training.run import TrainingRun


LENGTH = 16
MOST = 1 << 18  # values of one tensor that are looked at, evenly spread


def fingerprint(value: Any) -> str:
    """Of nested tensors, arrays, numbers and texts, by their content; of anything else, by its
    type."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()[:LENGTH]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        value = value.contiguous().flatten()[:: _stride(value.numel())].contiguous()
        digest.update(value.view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape} ".encode())
        if value.dtype == object:  # whose text may have addresses in it
            _add(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value.ravel()[:: _stride(value.size)]).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for key in value:
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"sequence {len(value)} ".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, (str, bytes, int, float, bool, complex, np.generic)) or value is None:
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(digest, {field.name: getattr(value, field.name) for field in fields(value)})
    else:
        digest.update(f"type {type(value).__module__}.{type(value).__qualname__} ".encode())


def _stride(size: int) -> int:
    return max(size // MOST, 1)


MAX_PARTS = 1000  # of a model, that are described one by one
IMPLEMENTATION = frozenset(
    ("params", "initial_lr", "fused", "foreach", "capturable", "differentiable")
)
POSITION = frozenset(
    (
        "last_epoch",
        "base_lrs",
        "best",
        "num_bad_epochs",
        "cooldown_counter",
        "mode_worse",
        "verbose",
    )
)
SETTINGS = (bool, int, float, str)
DAY = 86400.0
# names of values that say where, not what
PLACES = frozenset(("training", "device", "rank", "local_rank", "world_size", "pid"))


class NotPlainError(Exception):
    """A value that has no description which is the same in every process."""


def describe_program(run: TrainingRun, stream: Stream, *, looks_at_samples: bool) -> dict[str, Any]:
    """Describe what a trainer trains, with its data; samples are hashed only on request."""
    flat = describe_components(run) | _describe_data("data", stream, looks_at_samples)
    if run.data.eval_stream is not None:
        eval_data = _describe_data("eval_data", run.data.eval_stream, looks_at_samples)
        for key in ("eval_data.length", "eval_data.samples"):
            if key in eval_data:
                flat[key] = eval_data[key]
    return flat


def describe_components(run: TrainingRun) -> dict[str, Any]:
    """Describe what a trainer trains, without the data."""
    program = run.program
    flat: dict[str, Any] = program._describe_more() | run.components.structure
    for name, optimizer in run.components.optimizers.items():
        flat |= _describe_optimizer(key_of("optimizer", name), optimizer)
    for name, schedule in run.components.schedules.items():
        flat |= _describe_schedule(key_of("scheduler", name), schedule)
    flat |= describe_object("loss", program.loss_fn)
    owner = users_trainer(program)
    for name in program._step_methods:  # those that the user wrote
        function = inspect.unwrap(getattr(getattr(owner, name, None), "__func__", len))
        if isinstance(function, FunctionType) and not _is_of("loopwright", function):
            flat |= _describe_function(name, name, function)
    for name in ("accumulate", "clip_norm", "clip_value", "seed"):
        flat[name] = as_json(getattr(program, name))
    flat["precision"] = run.runtime.precision
    flat["torch"] = torch.__version__.partition("+")[0]
    return flat


def check_ranks(run: TrainingRun, description: Mapping[str, Any]) -> None:
    """Raise on every rank if the ranks have different programs."""
    runtime = run.runtime
    if runtime.world == 1:
        return
    own = dict(description)
    for name, order in run.components.parameter_orders().items():
        own[f"{key_of('optimizer', name)}.order"] = order
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    if len(set(runtime.gather_objects(digest))) == 1:
        return
    if differing := differing_by_rank(runtime.gather_objects(own)):
        raise ConfigurationError("ranks-differ", rank_refusal(differing))


def key_of(kind: str, name: str) -> str:
    """Return the prefix of a component's entries."""
    return name if name == kind else f"{kind}.{name}"


# Components


def describe_models(modules: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Describe every layer of models with parameters; called before they are wrapped for several
    processes."""
    flat: dict[str, Any] = {}
    for name, module in modules.items():
        params = list(module.parameters())
        if params:
            prefix = key_of("model", name)
            flat |= _describe_layers(prefix, module)
            flat[f"{prefix}.num_trainable"] = sum(p.requires_grad for p in params)
    return flat


def _describe_layers(prefix: str, module: nn.Module) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, part in module.named_modules():
        key = f"{prefix}.{name}" if name else prefix
        kinds = type(part).__mro__
        is_sharded = len(kinds) > 2 and kinds[1].__name__ == "FSDPModule"  # by an earlier trainer
        # options of layers that are not torch's are unknown
        is_torch = type(part).extra_repr.__module__.startswith("torch.nn.")
        options = part.extra_repr() if is_torch else ""
        flat[key] = f"{kinds[2 if is_sharded else 0].__qualname__}({options})"
        for own, param in part.named_parameters(recurse=False) if not options else ():
            is_known = not nn.parameter.is_lazy(param)
            flat[f"{key}.{own}"] = list(param.shape) if is_known else UNKNOWN
    if len(flat) > MAX_PARTS:
        return {prefix: f"{flat[prefix]} of {len(flat)} parts, {fingerprint(flat)}"}
    return flat


def _describe_optimizer(prefix: str, optimizer: Optimizer) -> dict[str, Any]:
    """The class and the options of an optimizer, group by group where there are several."""
    groups = optimizer.param_groups
    flat: dict[str, Any] = {prefix: name_of(type(optimizer))}
    flat[f"{prefix}.num_params"] = [len(group["params"]) for group in groups]
    for number, group in enumerate(groups):
        options = {name: group[name] for name in group if name not in IMPLEMENTATION}
        if "initial_lr" in group:
            options["lr"] = group["initial_lr"]  # a scheduler has changed the other already
        flat |= _entries(group_key(prefix, number, len(groups)), options)
    return flat


def group_key(prefix: str, number: int, count: int) -> str:
    return prefix if count == 1 else f"{prefix}.groups.{number}"


def _describe_schedule(prefix: str, schedule: Schedule) -> dict[str, Any]:
    scheduler = schedule.scheduler
    if isinstance(scheduler, CurveSchedule):
        return _describe_curve(prefix, scheduler.curve)
    flat = _describe_scheduler(prefix, scheduler)
    return flat | {f"{prefix}.every": schedule.interval, f"{prefix}.metric": schedule.metric}


def _describe_curve(prefix: str, curve: Any) -> dict[str, Any]:
    """The class and the options of a curve; of a curve of curves, such as `Sequential`, those of
    each."""
    flat = describe_object(prefix, curve)
    # runs of the first version have no options of it
    if is_dataclass(curve) and not getattr(curve, "__dict__", None):
        for name, option in _attributes(curve).items():
            for number, inner in enumerate(option if isinstance(option, (list, tuple)) else ()):
                if isinstance(inner, CurveLike):
                    flat |= _describe_curve(f"{prefix}.{name}.{number}", inner)
    return flat


def _describe_scheduler(prefix: str, scheduler: Any) -> dict[str, Any]:
    """The class and the options of a scheduler, without where it is."""
    flat: dict[str, Any] = {prefix: name_of(type(scheduler))}
    options = dict(vars(scheduler))
    for number, inner in enumerate(options.get(INNER_SCHEDULERS, ())):
        flat |= _describe_scheduler(f"{prefix}.{number}", inner)
    for number, function in enumerate(options.pop("lr_lambdas", ())):
        flat |= describe_object(f"{prefix}.lr_lambda.{number}", function)
    public = {name for name in options if not name.startswith("_")} - POSITION
    return flat | _entries(prefix, {name: options[name] for name in options if name in public})


def _describe_data(prefix: str, stream: Stream, looks_at_samples: bool) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in stream.describe().items():
        if callable(value):
            flat |= describe_object(f"{prefix}.{name}", value)
        else:
            flat["batch_size" if name == "batch_size" else f"{prefix}.{name}"] = value
    flat[f"{prefix}.samples"] = hash_samples(stream.peek() if looks_at_samples else None)
    return flat


def hash_samples(samples: list[Any] | None) -> str:
    """Return a hash of the samples; `UNKNOWN` if the first one differs when it is read again."""
    if not samples:
        return UNKNOWN
    try:
        hashes = [fingerprint(sample) for sample in samples]
    except Exception:  # of a kind that has no plain memory, such as a sparse tensor
        return UNKNOWN
    return fingerprint(hashes) if hashes[0] == hashes[-1] else UNKNOWN


# Objects


def describe_object(prefix: str, value: Any) -> dict[str, Any]:
    """Describe a loss, a function or a curve: its name, its plain options, and a hash of its code
    if there is one."""
    if value is None:
        return {prefix: None}
    if isinstance(value, partial):
        flat = describe_object(prefix, value.func)
        flat[prefix] = f"partial of {flat[prefix]}"
        return flat | _entries(prefix, dict(enumerate(value.args)) | value.keywords)
    function = inspect.unwrap(value.__func__ if isinstance(value, MethodType) else value)
    if isinstance(function, FunctionType):
        return {prefix: name_of(function)} | _describe_function(f"{prefix}.code", prefix, function)
    if isinstance(value, type) or not (hasattr(value, "__dict__") or is_dataclass(value)):
        return {prefix: name_of(value if hasattr(value, "__qualname__") else type(value))}
    return _describe_instance(prefix, value)


def _describe_instance(prefix: str, value: Any) -> dict[str, Any]:
    kind = type(value)
    flat: dict[str, Any] = {prefix: name_of(kind)}
    for name, option in _attributes(value).items():
        if not name.startswith("_") and name not in PLACES:
            flat |= _entries(prefix, {name: option})
    is_module = isinstance(value, nn.Module)
    if _is_of("torch", kind):
        for name, buffer in value.named_buffers() if is_module else ():
            flat[f"{prefix}.{name}"] = fingerprint(buffer)
        return flat
    compute = getattr(kind, "forward" if is_module else "__call__", None)
    if isinstance(compute, FunctionType):
        flat |= _describe_function(f"{prefix}.code", prefix, compute)
    return flat


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, with the fields of a dataclass, which has no `__dict__` where it
    has slots."""
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    return {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})


def name_of(value: Any) -> str:
    """The name of a class or function; with its module where that is torch's, since others depend
    on the start.

    Where a class of this library is, is no part of its name either: it may move from one version to
    the next.
    """
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{value.__module__}.{name}" if _is_of("torch", value) else str(name)


def _is_of(package: str, value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == package


def _entries(prefix: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return an entry for each value that has a description."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        with suppress(NotPlainError):
            flat[f"{prefix}.{name}"] = plain(value)
    return flat


def plain(value: Any) -> Any:
    """A value as JSON has it; one that JSON does not have raises `NotPlainError`.

    A number or text that this start has made (a time, a process number, a temporary path) says so:
    `run.changes` takes two values of the same kind for equal.
    """
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and not value.is_meta else fingerprint(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, SETTINGS):
        raise NotPlainError
    if (kind := _kind_of_this_start(value)) is not None:
        return f"{value} ({kind} of this start)"
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return value if is_finite else str(value)


def _describe_function(key: str, prefix: str, function: FunctionType) -> dict[str, Any]:
    """Return a hash of a function's code under `key`, and the plain values that it uses under their
    own names: globals, closure variables and defaults of arguments.

    Code of this library has no hash: the next version may compute the same in another way.
    """
    code = function.__code__
    names = function.__globals__
    used = {
        name: names[name]
        for name in code.co_names
        if isinstance(names.get(name), (*SETTINGS, tuple)) and not name.startswith("__")
    }
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not filled yet
            used[name] = cell.cell_contents
    defaults = function.__defaults__ or ()
    given = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    used |= dict(zip(given, defaults, strict=True)) | (function.__kwdefaults__ or {})
    digest = hashlib.sha256()
    _add_code(digest, code, function.__doc__)
    version = ".".join(platform.python_version_tuple()[:2])
    hashed = f"{digest.hexdigest()[:LENGTH]} (Python {version})"
    settings = {}
    for name, value in used.items():
        # a list may be a counter
        is_constant = value is None or isinstance(value, (*SETTINGS, tuple))
        if is_constant and name.lower() not in PLACES:
            settings[name] = value
    is_ours = _is_of("loopwright", function)
    return {key: UNKNOWN if is_ours else hashed} | _entries(prefix, settings)


def _kind_of_this_start(value: float | str) -> str | None:
    """Return "time", "process number" or "temporary path" for a value of this process.

    A process number is taken for one in texts only, and with four digits or more: a width of 7 is
    no process number, even where this process, as in a container, has that one.
    """
    numbers = [] if isinstance(value, str) else [value]
    if isinstance(value, str):
        if tempfile.gettempdir() in value:
            return "temporary path"
        if any(time.strftime(form) in value for form in ("%Y-%m-%d", "%Y%m%d", "%Y_%m_%d")):
            return "time"
        numbers = [float(digits) for digits in re.findall(r"\d+", value)]
        if os.getpid() > 999 and os.getpid() in numbers:
            return "process number"
    ages = (time.time() - number / unit for number in numbers for unit in (1, 1e3, 1e9))
    return "time" if any(0 <= age < DAY for age in ages) else None


def _add_code(digest: Any, code: CodeType, doc: str | None = None) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        elif isinstance(constant, frozenset):  # its order differs between processes
            digest.update(repr(sorted(map(repr, constant))).encode())
        elif constant is not doc:
            digest.update(repr(constant).encode())

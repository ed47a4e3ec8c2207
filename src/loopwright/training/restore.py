"""Put a run where a saved state was: models and optimizers are compared first, since torch would
load some states of others without a word; then everything is loaded, or nothing is changed."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch_compat import LOADING_METHODS, has_load_hooks, mark_stepped
from ..callback import has_users_state, named_by_class
from ..checkpoint.format import read_checkpoint
from ..checkpoint.migrations import complete_state, migrate_callbacks, unused_states
from ..checkpoint.sharded import load_stored
from ..checkpoint.weights import Parts, load_model, load_optimizer
from ..checkpoint.writer import snapshot
from ..data.order import derive_seed
from ..data.random import all_preserved, rng_state, seed_generators, set_rng_state
from ..errors import CheckpointError
from ..metrics.metric_objects import (
    MetricOwners,
    load_run_states,
    metrics_at,
    run_states,
)
from ..text import lines_of
from .callback_schedulers import CallbackSchedulers, state_of
from .program import users_trainer
from .run import SavedPosition

if TYPE_CHECKING:
    from pathlib import Path

    from ..callback import Callback
    from .components import Components
    from .run import TrainingRun

CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)
# what torch's optimizers keep for a parameter in the shape of that parameter
LIKE_PARAMETER = frozenset(
    (
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
        *("grad_avg", "acc_delta", "sum", "prev", "step_size", "ax"),
    )
)
# options that optimizers add to groups of earlier versions of torch, or do without
OPTIONAL = frozenset(
    (
        *("param_names", "foreach", "fused", "capturable", "differentiable", "maximize"),
        *("amsgrad", "decoupled_weight_decay", "nesterov"),
    )
)

Part = tuple[str, Callable[[], object]]  # its name in errors, and what loads it


class Kept(NamedTuple):
    """The names of optimizers and schedules that a restore does not change."""

    optimizers: Collection[str] = ()
    schedules: Collection[str] = ()


NOTHING_KEPT = Kept()


class Restore:
    """A saved state, completed by what later versions added, on its way into a run."""

    def __init__(self, run: TrainingRun, tree: Any, source: str) -> None:
        self.run = run
        self.source = source
        self.tree = complete_state(tree, source)

    def load(self, kept: Kept = NOTHING_KEPT) -> None:
        """Load the state, except components in `kept`; if any part does not fit, change nothing.

        The position in the data waits in `run.files.pending` for the `train` call that has the data.
        """
        run = self.run
        tree = self.tree
        callbacks = named_by_class(run.callbacks)
        small = load_stored(
            {part: value for part, value in tree.items() if part not in ("models", "optimizers")}
        )
        small["callbacks"] = migrate_callbacks(callbacks, small, self.source)
        problems = compare_components(
            run.components, tree["models"], tree["optimizers"], small["schedules"], kept=kept
        )
        refuse(
            f"Checkpoint {self.source}",
            problems + compare_run(run, small),
            "\nBuild the same models, optimizers and callbacks as the run that wrote it, or start "
            f"a new run ({run.message_names.start_over}).",
        )
        owners = metric_owners(run)
        run.files.callback_schedulers.forget()
        remarks: list[str] = []

        def load_users_state() -> None:
            remarks.extend(run.program._load_users_state(small["trainer"], self.source))

        parts: list[Part] = [
            *_optimizer_parts(run, tree["optimizers"], small["schedules"], kept),
            *self._callback_parts(callbacks, small["callbacks"]),
            ("trainer", load_users_state),
            ("metrics", partial(self._load_metrics, owners, small)),
            ("updates", partial(restore_counters, run, small)),
            # last: their weights are not copied, unless they may refuse some
            *_model_parts(run.components.models, tree["models"], load_model),
        ]
        load_all(run, f"Checkpoint {self.source}", parts, callbacks.values())
        run.call.was_finished = run.progress.call_finished
        run.metrics.meter.computed = metrics_at(small["computed"], owners)
        for line in (*unused_states(callbacks, small, self.source), *remarks):
            run.say(line)
        compiled = small["compiled"]
        if run.compiled is None and compiled is not None and compiled["choice"] == "compiled":
            run.say(
                f"The steps before {self.source} were compiled (compile='step'), and those of this "
                "trainer are not: results may differ in the last bits. Pass compile='step' to go "
                "on as before."
            )

    def _callback_parts(
        self, callbacks: Mapping[str, Callback], saved: Mapping[str, Any]
    ) -> Iterator[Part]:
        load = self.run.files.callback_schedulers.load
        for name, callback in callbacks.items():
            if saved.get(name) is not None:
                yield f"callbacks: {name}", partial(load, callback, saved[name])

    def _load_metrics(self, owners: MetricOwners, small: Mapping[str, Any]) -> None:
        measured = own_process(self.run, small["metrics"])
        load_run_states(
            owners,
            measured,
            is_in_epoch=small["progress"]["epoch_step"] > 0,
            num_processes=self.run.runtime.num_shares,
        )


def restore_counters(run: TrainingRun, saved: Mapping[str, Any]) -> None:
    """Restore the counters of a run and its updates; what needs data waits in `run.files.pending`.

    "lanes" (the updates) and "num_pieces" (micro-batches) are names in files, which stay.
    """
    if run.compiled is not None and saved["compiled"] is not None:
        run.compiled.load_state_dict(saved["compiled"])
    run.files.pending = SavedPosition(
        data=own_position(run, saved["data"]),
        eval_data=own_position(run, saved["eval_data"]),
        rng=own_rng(saved["rng"], run),
        updates=saved["lanes"],
        fingerprint=saved["fingerprint"],
    )
    run.files.pending.restore_updates(run)
    run.progress.load_state_dict(saved["progress"])
    run.history.load_state_dict(saved["history"])
    run.metrics.meter.load_state_dict({"sums": {}, "counts": {}, "logged": {}})
    for measured in own_process(run, saved["meter"]):
        run.metrics.meter.add_state_dict(measured)
    run.stopping.reason = saved["stop_reason"]
    # a batch that did not fit in memory will not fit now
    run.num_micro_batches = max(run.num_micro_batches, saved["num_pieces"])
    if run.progress.update:  # otherwise torch warns where a resumed run first steps a schedule
        for optimizer in run.components.optimizers.values():
            mark_stepped(optimizer)


# Ways to go on from a state


def load_trainer(run: TrainingRun, path: str | Path) -> None:
    """Load for use: evaluation, or a new `train` call that counts its limits from here."""
    Restore(run, read_checkpoint(path, lazy=run.runtime.world > 1).tree, str(path)).load()
    assert run.files.pending is not None
    run.files.pending.restore_rng(run)
    run.files.pending.rng = None
    run.call.number = run.progress.call


def return_to(run: TrainingRun, tree: Any, source: str) -> None:
    """Restore another state of a run whose data is open, with the position in the data."""
    Restore(run, tree, source).load()
    pending = run.files.pending
    run.files.pending = None
    assert pending is not None
    pending.place(run, run.opened_stream)


def continue_position(run: TrainingRun, saved: Mapping[str, Any]) -> None:
    """Put the counters where they were, for a `train` call that continues the saved run, and its
    generators."""
    restore_counters(run, saved)
    assert run.files.pending is not None
    run.call.number = run.progress.call
    # the run that continues is the one that was saved
    run.files.fingerprint = run.files.pending.fingerprint
    run.files.pending.restore_rng(run)


def load_parts(
    run: TrainingRun,
    parts: Parts,
    *,
    optimizers: bool = True,
    schedules: bool = True,
    own_state: bool = False,
) -> None:
    """Load the state into the trainer's components; a component without a state in the file is not
    changed.

    With `own_state`, the state of the user's class is loaded too. Everything is compared first:
    either all of it fits, or nothing is changed.
    """
    states = parts.optimizers if optimizers else {}
    schedulers = parts.schedules if schedules else {}
    source = str(parts.path)
    models = run.components.models
    problems = [f"the trainer has no model {name!r}" for name in parts.models if name not in models]
    problems += compare_components(run.components, parts.models, states, schedulers, partly=True)
    refuse(source, problems)
    remarks: list[str] = []

    def load_users_state() -> None:
        if own_state:
            remarks.extend(run.program._load_users_state(parts.rest.get("trainer"), source))

    loading = [
        *_optimizer_parts(run, states, schedulers),
        ("trainer", load_users_state),
        *_model_parts(models, parts.models, nn.Module.load_state_dict),
    ]
    load_all(run, source, loading)
    for line in remarks:
        run.say(line)


def _optimizer_parts(
    run: TrainingRun,
    optimizers: Mapping[str, Any],
    schedules: Mapping[str, Any],
    kept: Kept = NOTHING_KEPT,
) -> Iterator[Part]:
    for name, optimizer in run.components.optimizers.items():
        if name in optimizers and name not in kept.optimizers:
            yield f"optimizers: {name}", partial(load_optimizer, optimizer, optimizers[name])
    for name, schedule in run.components.schedules.items():
        if name in schedules and name not in kept.schedules:
            load = schedule.scheduler.load_state_dict
            yield f"schedules: {name}", partial(load, schedules[name])


def _model_parts(
    models: Mapping[str, nn.Module], saved: Mapping[str, Any], load: Callable[..., object]
) -> Iterator[Part]:
    for name, state in saved.items():
        if name in models:
            yield "models", partial(load, models[name], state)


# What of a state is this process's


def compare_run(run: TrainingRun, small: Mapping[str, Any]) -> list[str]:
    """Return the problems of the counters and positions of a saved run."""
    problems = [
        f"updates: those of optimizer {name!r} are not in the checkpoint"
        for name in run.components.optimizers
        if small["lanes"] and name not in small["lanes"]
    ]
    differing = run.progress.state_dict().keys() ^ small["progress"].keys()
    problems += [
        f"progress: {name!r} is not in this version and the checkpoint alike"
        for name in sorted(differing)
    ]
    now = run.runtime.num_shares
    for part in ("data", "eval_data"):
        states = _positions(small[part])
        if states is not None and len(states) != now:
            problems.append(
                f"{part}: {len(states)} processes each had a position in their own data, but now "
                f"there are {now} processes: start {len(states)}"
            )
    return problems


def own_position(run: TrainingRun, saved: Any) -> Any:
    """Return the position that this rank continues with."""
    states = _positions(saved)
    return saved if states is None else states[run.runtime.sample_rank]


def _positions(saved: Any) -> list[Any] | None:
    """Return the positions of all processes, where they were saved."""
    states = saved.get("ranks") if isinstance(saved, dict) else None
    return states if isinstance(states, list) else None


def own_process(run: TrainingRun, saved: Any) -> list[Any]:
    """Return the meter states that this rank continues with: its own; on another world size, rank 0
    has all of them."""
    states = saved if isinstance(saved, list) else [saved]
    if len(states) == run.runtime.num_shares:
        return [states[run.runtime.sample_rank]]
    return states if run.runtime.sample_rank == 0 else []


def own_rng(states: Sequence[dict[str, Any]], run: TrainingRun) -> dict[str, Any]:
    """Return the RNG state of this rank; a new rank gets one derived from the state of rank 0 and
    its own rank."""
    rank = run.runtime.sample_rank
    if rank < len(states):
        return states[rank]
    with all_preserved():
        set_rng_state(states[0])
        seed_generators(derive_seed(int(torch.randint(1 << 62, ()).item()), rank))
        return rng_state()


def metric_owners(run: TrainingRun) -> MetricOwners:
    """The objects whose metrics a checkpoint of this run saves."""
    return MetricOwners.of(run.components.modules, run.program, run.callbacks)


# All or nothing


def load_all(
    run: TrainingRun, source: str, parts: Iterable[Part], callbacks: Iterable[Callback] = ()
) -> None:
    """Load the parts of a state; if one of them fails, restore everything and name that part."""
    put_back = _undo(run, callbacks)
    at = ""
    try:
        for at, load in parts:  # noqa: B007  (the error names it)
            load()
    except Exception as error:  # any error of a user's own load_state_dict
        put_back()
        raise CheckpointError(
            "state-not-loaded",
            f"{source} does not match this trainer; nothing was loaded: {at} failed with "
            f"{type(error).__name__}: {error}",
        ) from error


def _undo(run: TrainingRun, callbacks: Iterable[Callback]) -> Callable[[], None]:
    """Return a function that puts back the present state of everything that a state is loaded
    into."""
    components = run.components
    owner = users_trainer(run.program)
    keeper = Keeper()  # of objects whose loading replaces attributes, and of users' objects
    for replaced in (*components.optimizers.values(), run.history, run.metrics.meter):
        keeper.keep(replaced)
    if has_users_state(owner):
        keeper.keep(owner)
    loaders: list[tuple[Callable[[Any], object], Any]] = []
    for callback in callbacks:
        if callback._users_objects:  # their `state_dict` may not work yet
            for users in callback._users_objects:
                keeper.keep(users)
        else:
            load = partial(CallbackSchedulers().load, callback)
            loaders.append((load, snapshot(state_of(callback))))
    stateful: list[Any] = [
        run.progress,
        *(schedule.scheduler for schedule in components.schedules.values()),
        *run.updates.by_name.values(),
        *(model for model in components.models.values() if _may_refuse(model)),
    ]
    if run.compiled is not None:
        stateful.append(run.compiled)
    loaders += [(one.load_state_dict, deepcopy(one.state_dict())) for one in stateful]
    owners = metric_owners(run)
    metrics = snapshot(run_states(owners))
    pending = run.files.pending
    stop_reason = run.stopping.reason
    num_micro_batches = run.num_micro_batches

    def put_back() -> None:
        keeper.restore()
        run.files.callback_schedulers.forget()
        for load, state in loaders:
            load(state)
        load_run_states(owners, [metrics], is_in_epoch=False, num_processes=1)
        run.files.pending = pending
        run.stopping.reason = stop_reason
        run.num_micro_batches = num_micro_batches

    return put_back


def _may_refuse(model: nn.Module) -> bool:
    """Whether loading may fail with the right tensors: if it is not only torch's own
    `load_state_dict`.

    Layers without sizes get theirs when they are loaded; there is nothing yet that could be put
    back.
    """
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        return False
    return any(
        _loads_its_own_way(type(module)) or has_load_hooks(module) for module in model.modules()
    )


def _loads_its_own_way(kind: type[nn.Module]) -> bool:
    is_own = any(getattr(kind, name) is not getattr(nn.Module, name) for name in LOADING_METHODS)
    return is_own and not kind.__module__.startswith("torch.")


class Keeper:
    """Records the state of objects; `restore` puts it back."""

    def __init__(self) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._params: list[tuple[nn.Parameter, bool, Tensor | None]] = []
        self._seen: set[int] = set()

    def keep(self, owner: object, *, is_deep: bool = False) -> None:
        """Record the attributes of an object; tensors in its containers only with `is_deep`, since
        they may be data."""
        attributes = vars(owner)
        self._attributes.append((attributes, dict(attributes)))
        for value in attributes.values():
            self._keep_value(value, is_deep=is_deep)

    def keep_model(self, model: nn.Module) -> None:
        """Record the weights, buffers, modes, plain attributes and gradients of a model."""
        for module in model.modules():
            self.keep(module, is_deep=True)
        for param in model.parameters():
            self._params.append((param, param.requires_grad, param.grad))

    def keep_optimizer(self, optimizer: Optimizer) -> None:
        """Record the options of an optimizer. Its `state` is not copied: replace it before the
        optimizer steps."""
        self._attributes.append((vars(optimizer), dict(vars(optimizer))))
        self._keep_value(optimizer.param_groups)
        for group in optimizer.param_groups:
            self._keep_value(group)
            self._keep_all(value for name, value in group.items() if name != "params")

    def restore_tensors(self) -> None:
        """Restore the values of all recorded tensors."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)

    def restore(self) -> None:
        """Restore all recorded states."""
        for container, content in self._contents:
            container.clear()
            container.extend(content) if isinstance(container, list | deque) else container.update(
                content
            )
        for attributes, before in self._attributes:
            attributes.clear()
            attributes.update(before)
        self.restore_tensors()
        for param, requires_grad, grad in self._params:
            param.requires_grad_(requires_grad)
            param.grad = grad

    def _keep_value(self, value: Any, *, is_deep: bool = False) -> None:
        if id(value) in self._seen:
            return
        if isinstance(value, Tensor):
            self._seen.add(id(value))
            self._tensors.append((value, value.detach().clone()))
        elif type(value) in CONTAINERS:
            self._seen.add(id(value))
            self._contents.append((value, copy(value)))
            if is_deep:
                self._keep_all(value.values() if isinstance(value, dict) else value)

    def _keep_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._keep_value(value, is_deep=True)


# A state and the components that it is for


def refuse(source: str, problems: Sequence[str], advice: str = "") -> None:
    """Raise if there are problems with a state."""
    if problems:
        raise CheckpointError(
            "state-mismatch",
            f"{source} does not match this trainer; nothing was loaded:{lines_of(problems)}{advice}",
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
    compared: list[tuple[str, Mapping[str, Any], Mapping[str, Any], Any, Collection[str]]] = [
        ("models", own.models, models, compare_model, ()),
        ("optimizers", own.optimizers, optimizers, compare_groups, kept.optimizers),
        ("schedules", own.schedules, schedules, _compare_schedule, kept.schedules),
    ]
    problems = []
    for part, present, saved, compare, left_out in compared:
        for name in dict.fromkeys((*present, *saved)):
            if name in left_out:
                continue
            if name in present and name in saved:
                found = compare(present[name], saved[name])
                problems += [f"{part}: {name}: {problem}" for problem in found]
            elif not partly and name in present:
                problems.append(f"{part}: {name!r} is not in the checkpoint")
            elif not partly:
                problems.append(f"{part}: the checkpoint has {name!r}, but the trainer does not")
    return problems


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
    for own, group in zip(optimizer.param_groups, groups, strict=True):
        if missing := [name for name in own if name not in group and name not in OPTIONAL]:
            problems.append(
                f"{', '.join(missing)} of a group: not in the checkpoint, which may be from "
                "another optimizer class"
            )
        if not type(optimizer).__module__.startswith("torch.optim"):
            continue
        for number, param in zip(group["params"], own["params"], strict=True):
            for name, value in saved["state"].get(number, {}).items():
                if name in LIKE_PARAMETER and value is not None:
                    problems += [
                        f"{name} of parameter {number}: the parameter {problem}"
                        for problem in _misfits(param, value)
                    ]
    return problems


def _compare_schedule(schedule: Any, saved: Mapping[str, Any]) -> list[str]:
    """Return the options of a scheduler that its saved state lacks, as that of another class does."""
    scheduler = schedule.scheduler
    if not type(scheduler).__module__.startswith(("torch.", "loopwright.")):
        return []
    return [
        f"{key} is not in the checkpoint"
        for key in scheduler.state_dict()
        if key not in saved and not str(key).startswith("_")
    ]

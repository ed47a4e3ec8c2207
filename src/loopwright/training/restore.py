"""Put a run where a saved state was: all of it is compared first, and loaded whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

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
from ..metrics.progress import Progress
from .callback_schedulers import CallbackSchedulers, state_of
from .keeper import Keeper
from .program import users_trainer
from .run import SavedPosition
from .state_mismatch import NOTHING_KEPT, Kept, compare_components, refuse, wrong_fields

if TYPE_CHECKING:
    from pathlib import Path

    from ..callback import Callback
    from .run import TrainingRun


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
        components = run.components
        problems = compare_components(
            components, tree["models"], tree["optimizers"], small["schedules"], kept=kept
        )
        problems += compare_run(run, small)
        refuse(
            f"Checkpoint {self.source}",
            problems,
            "\nBuild the same models, optimizers and callbacks as the run that wrote it, or start "
            f"a new run ({run.message_names.start_over}).",
        )
        owners = metric_owners(run)
        run.files.callback_schedulers.forget()
        with undone_on_error(run, f"Checkpoint {self.source}", callbacks.values()) as at:
            _load_optimizers(run, at, tree["optimizers"], small["schedules"], kept)
            for name, callback in callbacks.items():
                at.part = f"callbacks: {name}"
                if (state := small["callbacks"].get(name)) is not None:
                    run.files.callback_schedulers.load(callback, state)
            at.part = "trainer"
            remarks = run.program._load_users_state(small["trainer"], self.source)
            at.part = "metrics"
            self._load_metrics(owners, small)
            at.part = "updates"
            restore_counters(run, small)
            at.part = "models"  # last: their weights are not copied, unless they may refuse some
            for name, model in components.models.items():
                load_model(model, tree["models"][name])
        run.call.was_finished = run.progress.call_finished
        run.metrics.meter.computed = metrics_at(small["computed"], owners)
        unused = unused_states(callbacks, small, self.source)
        for line in (*unused, *self._unused_choice(small["compiled"]), *remarks):
            run.say(line)

    def _load_metrics(self, owners: MetricOwners, small: Mapping[str, Any]) -> None:
        measured = own_process(self.run, small["metrics"])
        progress = Progress()
        progress.load_state_dict(small["progress"])
        load_run_states(
            owners,
            measured,
            is_in_epoch=progress.in_epoch,
            num_processes=self.run.runtime.num_shares,
        )

    def _unused_choice(self, saved: Any) -> Iterator[str]:
        """Yield the line that says that steps were compiled and are not any more."""
        if self.run.compiled is None and saved is not None and saved["choice"] == "compiled":
            yield (
                f"The steps before {self.source} were compiled (compile='step'), and those of this "
                "trainer are not: results may differ in the last bits. Pass compile='step' to go "
                "on as before."
            )


def restore_counters(run: TrainingRun, saved: Mapping[str, Any]) -> None:
    """Restore the counters of a run and its updates; what needs data waits in `run.files.pending`."""
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
    run.files.fingerprint = (
        run.files.pending.fingerprint
    )  # the run that continues is the one that was saved
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
    problems = [
        f"the trainer has no model {name!r}"
        for name in parts.models
        if name not in run.components.models
    ]
    problems += compare_components(run.components, parts.models, states, schedulers, partly=True)
    refuse(source, problems)
    with undone_on_error(run, source) as at:
        _load_optimizers(run, at, states, schedulers)
        at.part = "trainer"
        saved = parts.rest.get("trainer")
        remarks = run.program._load_users_state(saved, source) if own_state else []
        at.part = "models"
        for name, state in parts.models.items():
            run.components.models[name].load_state_dict(state)
    for line in remarks:
        run.say(line)


def _load_optimizers(
    run: TrainingRun,
    at: Loading,
    optimizers: Mapping[str, Any],
    schedules: Mapping[str, Any],
    kept: Kept = NOTHING_KEPT,
) -> None:
    for name, optimizer in run.components.optimizers.items():
        at.part = f"optimizers: {name}"
        if name in optimizers and name not in kept.optimizers:
            load_optimizer(optimizer, optimizers[name])
    for name, schedule in run.components.schedules.items():
        at.part = f"schedules: {name}"
        if name in schedules and name not in kept.schedules:
            schedule.scheduler.load_state_dict(schedules[name])


# What of a state is this process's


def compare_run(run: TrainingRun, small: Mapping[str, Any]) -> list[str]:
    """Return the problems of the counters and positions of a saved run.

    "lanes" (the updates) is a name in files, which stays.
    """
    return [
        *wrong_fields("progress", small["progress"], Progress().state_dict()),
        *(
            f"updates: those of optimizer {name!r} are not in the checkpoint"
            for name in run.components.optimizers
            if small["lanes"] and name not in small["lanes"]
        ),
        *_wrong_positions(run, small),
    ]


def _wrong_positions(run: TrainingRun, small: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with positions that each process had of its own."""
    found = [_positions(small.get(part)) or () for part in ("data", "eval_data")]
    world = max(map(len, found))
    now = run.runtime.num_shares
    if any(states and len(states) != now for states in found):
        yield (
            f"data: {world} processes each had a position in their own data, but now there are "
            f"{now} processes: start {world}"
        )


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


# All or nothing


@dataclass(slots=True)
class Loading:
    """The part that is being loaded, for the error message."""

    part: str = ""


@contextmanager
def undone_on_error(
    run: TrainingRun, source: str, callbacks: Iterable[Callback] = ()
) -> Iterator[Loading]:
    """Restore the previous state of all components if loading fails, and name the part that
    failed."""
    at = Loading()
    owner = users_trainer(run.program)
    components = run.components
    undo = [
        _attributes_undone([owner] if has_users_state(owner) else []),
        *map(_replacing_undone, components.optimizers.values()),
        *map(_replacing_undone, (run.history, run.metrics.meter)),
        _state_undone(run.progress, dict),
        *(_state_undone(s.scheduler, deepcopy) for s in components.schedules.values()),
        *map(_callback_undone, callbacks),
        *(_state_undone(update, deepcopy) for update in run.updates.by_name.values()),
        *(_state_undone(m, snapshot) for m in components.models.values() if _may_refuse(m)),
    ]
    if run.compiled is not None:
        undo.append(_state_undone(run.compiled, deepcopy))
    owners = metric_owners(run)
    metrics = snapshot(run_states(owners))
    pending = run.files.pending
    try:
        yield at
    except Exception as error:  # any error of a user's own load_state_dict
        for action in undo:
            action()
        load_run_states(owners, [metrics], is_in_epoch=False, num_processes=1)
        run.files.pending = pending
        raise CheckpointError(
            "state-not-loaded",
            f"{source} does not match this trainer; nothing was loaded: {at.part} failed with "
            f"{type(error).__name__}: {error}",
        ) from error


def metric_owners(run: TrainingRun) -> MetricOwners:
    """The objects whose metrics a checkpoint of this run saves."""
    return MetricOwners.of(run.components.modules, run.program, run.callbacks)


def _replacing_undone(owner: object) -> Callable[[], None]:
    """Return a function that gives an object its present attributes again, which loading replaces
    and does not change, as an optimizer's groups and state."""
    before = dict(vars(owner))

    def undo() -> None:
        vars(owner).clear()
        vars(owner).update(before)

    return undo


def _state_undone(owner: Any, copied: Callable[[Any], Any]) -> Callable[[], None]:
    state = copied(owner.state_dict())
    return lambda: owner.load_state_dict(state)


def _callback_undone(callback: Callback) -> Callable[[], None]:
    if owners := callback._users_objects:
        return _attributes_undone(owners)
    state = snapshot(state_of(callback))
    return lambda: CallbackSchedulers().load(callback, state)


def _attributes_undone(owners: Iterable[object]) -> Callable[[], None]:
    """Return a function that puts back the attributes of users' objects, whose `state_dict` may not
    work yet."""
    keeper = Keeper()
    for owner in owners:
        keeper.keep(owner)
    return keeper.restore


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

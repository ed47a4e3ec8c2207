"""Capture the complete state of a run as a tree, and restore it; a tree that does not fit is
refused first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._torch_compat import mark_stepped
from ..callback import named_by_class
from ..checkpoint.format import read_checkpoint, write_checkpoint
from ..checkpoint.migrations import complete_state, migrate_callbacks, unused_states
from ..checkpoint.sharded import load_stored
from ..checkpoint.tree import Tree, is_dtensor
from ..checkpoint.weights import load_model, load_optimizer, save_weights
from ..data.iterated import KIND as ITERATED
from ..data.order import derive_seed
from ..data.random import all_preserved, rng_state, seed_generators, set_rng_state
from ..errors import CheckpointError
from ..metrics.metric_objects import (
    load_metric_states,
    load_object_states,
    metric_states,
    metrics_at,
    modules_with_metrics,
    object_states,
    paths_of,
)
from ..metrics.progress import Progress
from .held_schedulers import state_of
from .program import users_trainer
from .run import PendingRestore
from .state_mismatch import (
    NOTHING_KEPT,
    Kept,
    compare_callbacks,
    compare_components,
    compare_rest,
    listed,
    wrong_fields,
    wrong_history,
    wrong_meter,
    wrong_rng,
)
from .undo import metric_owners, undone_on_error

if TYPE_CHECKING:
    from ..callback import Callback
    from ..training.run import TrainingRun


RUN = ("progress", "history", "meter", "data", "stop_reason", "rng", "lanes")


def capture(run: TrainingRun, *, has_history: bool = True) -> dict[str, Tree]:
    """Return the complete state for an exact resume; without the history, which grows, if
    `has_history` is False."""
    run.flush()
    updates = {name: update.state_dict() for name, update in run.updates.by_name.items()}
    data, eval_data = capture_data(run)
    owners = metric_owners(run)
    program = run.fingerprint
    if run.pending is not None:  # loaded and not trained since
        updates = updates if run.pending.updates is None else run.pending.updates
        data = run.pending.data
        eval_data = run.pending.eval_data
        program = run.pending.fingerprint
    data = each_position(run, data)
    eval_data = each_position(run, eval_data)
    callbacks = _named_callbacks(run)
    return {
        "models": run.capture_models(),
        "optimizers": {
            name: optimizer.state_dict() for name, optimizer in run.components.optimizers.items()
        },
        "schedules": {
            name: s.scheduler.state_dict() for name, s in run.components.schedules.items()
        },
        "lanes": updates,
        "callbacks": {name: state_of(callback) for name, callback in callbacks.items()},
        "callback_versions": {name: callback.state_version for name, callback in callbacks.items()},
        "progress": run.progress.state_dict(),
        "history": run.history.state_dict() if has_history else None,
        "meter": each_process(run, run.meter.state_dict()),
        "computed": paths_of(run.meter.computed, owners),
        "metrics": each_process(
            run, metric_states(modules_with_metrics(owners)) | object_states(owners)
        ),
        "data": data,
        "eval_data": eval_data,
        "stop_reason": run.stop_reason,
        "num_pieces": run.num_micro_batches,
        "compiled": None if run.compiled is None else run.compiled.state_dict(),
        "trainer": users_trainer(run.program)._capture_own_state(),
        "rng": run.runtime.gather_each(run.generators.state()),
        "fingerprint": program,
    }


def capture_data(run: TrainingRun) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the positions in training and evaluation data; None for data that begins anew in the
    next epoch."""
    stream = run.train_stream
    eval_stream = run.eval_stream
    data = None
    eval_data = None
    if stream is not None and (run.progress.in_epoch or stream.spans_epochs):
        data = stream.state_dict()
    if eval_stream is not None and eval_stream.spans_epochs:
        eval_data = eval_stream.state_dict()
    return data, eval_data


def restore(run: TrainingRun, tree: Any, source: str, *, kept: Kept = NOTHING_KEPT) -> None:
    """Restore the state, except components in `kept`. All parts are compared first: all fit, or
    none is changed.

    The position in the data waits in `run.pending` for the `train` call that has the data.
    """
    tree = complete_state(tree, source)
    callbacks = _named_callbacks(run)
    small = load_stored(
        {part: value for part, value in tree.items() if part not in ("models", "optimizers")}
    )
    small["callbacks"] = migrate_callbacks(callbacks, small, source)
    if problems := _compare(run, tree, small, kept):
        raise CheckpointError(
            f"Checkpoint {source} does not match this trainer; nothing was "
            f"loaded:{listed(problems)}\n"
            "Build the same models, optimizers and callbacks as the run that wrote it, or start "
            f"a new run ({run.words.start_over})."
        )
    measured = own_process(run, small["metrics"])
    progress = Progress()
    progress.load_state_dict(small["progress"])
    owners = metric_owners(run)
    run.held.forget()
    with undone_on_error(run, source, callbacks.values()) as at:
        for name, optimizer in run.components.optimizers.items():
            at.part = f"optimizers: {name}"
            if name not in kept.optimizers:
                load_optimizer(optimizer, tree["optimizers"][name])
        note_steps(run, progress.update)
        for name, schedule in run.components.schedules.items():
            at.part = f"schedules: {name}"
            if name not in kept.schedules:
                schedule.scheduler.load_state_dict(small["schedules"][name])
        for name, callback in callbacks.items():
            at.part = f"callbacks: {name}"
            if (state := small["callbacks"].get(name)) is not None:
                run.held.load(callback, state)
        at.part = "trainer"
        remarks = run.program._load_users_state(small["trainer"], source)
        at.part = "lanes"
        run.updates.load_state_dict(small["lanes"])
        at.part = "metrics"
        load_metric_states(modules_with_metrics(owners), measured)
        num_processes = run.runtime.num_shares
        load_object_states(
            owners, measured, is_in_epoch=progress.in_epoch, num_processes=num_processes
        )
        at.part = "models"
        for name, model in run.components.models.items():
            load_model(model, tree["models"][name])
    restore_position(run, small)
    run.was_finished = run.progress.call_finished
    run.meter.computed = metrics_at(small["computed"], owners)
    unused = (
        *unused_states(callbacks, small, source),
        *_unused_choice(run, small["compiled"], source),
    )
    for line in (*unused, *remarks):
        run.say(line)


def restore_position(run: TrainingRun, saved: Mapping[str, Any]) -> None:
    """Restore the counters of a run; the position in the data and the random generators stay in
    `run.pending`."""
    run.progress.load_state_dict(saved["progress"])
    run.history.load_state_dict(saved["history"])
    load_meter(run, saved["meter"])
    note_steps(run, run.progress.update)
    run.stop_reason = saved["stop_reason"]
    # a batch that did not fit in memory will not fit now
    run.num_micro_batches = max(run.num_micro_batches, saved["num_pieces"])
    if run.compiled is not None and saved["compiled"] is not None:
        run.compiled.load_state_dict(saved["compiled"])
    run.pending = PendingRestore(
        data=own_position(run, saved["data"]),
        eval_data=own_position(run, saved["eval_data"]),
        rng=own_rng(saved["rng"], run),
        updates=None if run.updates.by_name else saved["lanes"],
        fingerprint=saved["fingerprint"],
    )


def continue_position(run: TrainingRun, saved: Mapping[str, Any]) -> None:
    """Put the counters where they were, for a `train` call that continues the saved run, and its
    generators."""
    restore_position(run, saved)
    assert run.pending is not None
    run.num_calls = run.progress.call
    run.fingerprint = run.pending.fingerprint  # the run that continues is the one that was saved
    run.pending.restore_rng(run)


def return_to(run: TrainingRun, tree: Any, source: str) -> None:
    """Restore another state of a run whose data is open, with the position in the data."""
    restore(run, tree, source)
    pending = run.pending
    run.pending = None
    assert pending is not None
    pending.restore_updates(run)
    pending.place(run, run.opened_stream)


def _compare(
    run: TrainingRun, tree: Mapping[str, Any], small: Mapping[str, Any], kept: Kept
) -> list[str]:
    """Return every difference between the trainer and the saved state, in words."""
    return [
        *compare_components(
            run.components, tree["models"], tree["optimizers"], small["schedules"], kept=kept
        ),
        *compare_callbacks(_named_callbacks(run), small["callbacks"]),
        *compare_run(run, small),
    ]


def compare_run(run: TrainingRun, small: Mapping[str, Any]) -> list[str]:
    """Return the problems of the counters, history, positions and random generators of a saved
    run."""
    missing = [part for part in RUN if part not in small]
    if missing:
        return [f"{', '.join(missing)}: not in the checkpoint"]
    return [
        *compare_rest(small, run.components.optimizers),
        *wrong_history(small["history"]),
        *wrong_meter(own_process(run, small["meter"])),
        *wrong_positions(run, small),
        *_wrong_choice(small.get("compiled")),
        *wrong_rng(small["rng"], lambda: set_rng_state(own_rng(small["rng"], run))),
    ]


def _wrong_choice(saved: Any) -> list[str]:
    """Return what is wrong with the saved choice of `compile="step"`; None is that of a run without
    it."""
    if saved is None:
        return []
    problems = list(wrong_fields("compiled", saved, ("choice", "reason", "graphs"), ("seconds",)))
    if problems:
        return problems
    choice = saved["choice"]
    reason = saved["reason"]
    graphs = saved["graphs"]
    seconds = saved.get("seconds", 0.0)
    if choice not in (None, "compiled", "eager") or not isinstance(reason, str):
        problems.append(
            f"compiled: its choice is {choice!r:.40} ({reason!r:.40}) instead of 'compiled' or "
            "'eager'"
        )
    if not isinstance(graphs, list) or not all(
        isinstance(graph, str) and len(graph.split()) == 2 for graph in graphs
    ):
        problems.append(f"compiled: its graphs are {graphs!r:.40} instead of a list of names")
    if type(seconds) not in (int, float) or not 0 <= seconds < inf:
        problems.append(f"compiled: its seconds of compiling are {seconds!r:.40}")
    return problems


def _unused_choice(run: TrainingRun, saved: Any, source: str) -> list[str]:
    """Return the line that says that steps were compiled and are not any more."""
    if run.compiled is not None or saved is None or saved["choice"] != "compiled":
        return []
    return [
        f"The steps before {source} were compiled (compile='step'), and those of this trainer are "
        "not: results may differ in the last bits. Pass compile='step' to go on as before."
    ]


def note_steps(run: TrainingRun, num_updates: int) -> None:
    """Set the step counts of optimizers: otherwise torch warns where a resumed run first steps a
    schedule."""
    for optimizer in run.components.optimizers.values() if num_updates else ():
        mark_stepped(optimizer)


def each_process(run: TrainingRun, state: dict[str, Any]) -> Any:
    """Return the state of the meter; of several processes a list, since a merged sum would not be
    bit-identical."""
    gather = run.runtime.gather_samples
    return state if gather is None or not state else gather(state)


def each_position(run: TrainingRun, state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a position in iterated data; where it differs between processes, those of all."""
    gather = run.runtime.gather_samples
    if gather is None or state is None or not _is_iterated(state):
        return state
    from ..data.cursor import digest

    states = gather(state)
    return state if len(set(map(digest, states))) == 1 else {"ranks": states}


def own_position(run: TrainingRun, saved: Any) -> Any:
    """Return the position that this rank continues with."""
    states = _positions(saved)
    return saved if states is None else states[run.runtime.sample_rank]


def wrong_positions(run: TrainingRun, small: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with positions that each process had of its own."""
    found = [
        states
        for part in ("data", "eval_data")
        if (states := _positions(small.get(part))) is not None
    ]
    world = max(map(len, found), default=0)
    now = run.runtime.num_shares
    if all(len(states) == now for states in found):
        return []
    return [
        f"data: {world} processes each had a position in their own data, but now there are {now} "
        f"processes: start {world}"
    ]


def _positions(saved: Any) -> list[Any] | None:
    """Return the positions of all processes, where they were saved."""
    states = saved.get("ranks") if isinstance(saved, dict) else None
    return states if isinstance(states, list) else None


def _is_iterated(state: Any) -> bool:
    while isinstance(state, dict) and "stream" in state:
        state = state["stream"]
    return isinstance(state, dict) and state.get("kind") == ITERATED


def own_process(run: TrainingRun, saved: Any) -> list[Any]:
    """Return the meter states that this rank continues with: its own; on another world size, rank 0
    has all of them."""
    states = saved if isinstance(saved, list) else [saved]
    if len(states) == run.runtime.num_shares:
        return [states[run.runtime.sample_rank]]
    return states if run.runtime.sample_rank == 0 else []


def load_meter(run: TrainingRun, saved: Any) -> None:
    """Load the metrics of the current epoch."""
    run.meter.load_state_dict({"sums": {}, "counts": {}, "logged": {}})
    for measured in own_process(run, saved):
        run.meter.add_state_dict(measured)


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


def save_trainer(run: TrainingRun, path: str | Path) -> None:
    write_together(run, path, capture(run), run.checkpoint_meta())


def write_together(
    run: TrainingRun,
    path: str | Path,
    tree: Tree,
    meta: dict[str, Any],
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint with all processes; it is complete for all of them when this returns.

    What callbacks write of the run so far, such as its metrics, is on disk before.
    """
    for callback in run.callbacks:
        for writer in callback.write_before_save(run.program._trainer_for(callback)):
            writer.wait()
    write_checkpoint(
        path, tree, meta, group=run.writing_group(), token=run.writing_token(), beside=beside
    )
    run.runtime.barrier("save")


def load_trainer(run: TrainingRun, path: str | Path) -> None:
    """Load for use: evaluation, or a new `train` call that counts its limits from here."""
    restore(run, read_checkpoint(path, lazy=run.runtime.world > 1).tree, str(path))
    assert run.pending is not None
    run.pending.restore_rng(run)
    run.pending.rng = None
    run.num_calls = run.progress.call


def export_weights(run: TrainingRun, path: str | Path) -> None:
    """Write the weights of a single model under their own names; of several, with the model's name
    as a prefix."""
    # without losses that have buffers only
    models = {
        name: m for name, m in run.components.models.items() if any(True for _ in m.parameters())
    }
    if len(models) == 1:
        weights = next(iter(models.values())).state_dict()
    else:
        weights = {
            f"{name}.{key}": value
            for name, m in models.items()
            for key, value in m.state_dict().items()
        }
    if run.runtime.world > 1:
        weights = {key: whole(value) for key, value in weights.items()}
    if run.runtime.is_main:
        save_weights(path, weights)
    run.runtime.barrier("export")


def whole(value: Any) -> Any:
    """Return the full tensor of a DTensor, which is a collective; other values unchanged."""
    return value.full_tensor() if isinstance(value, Tensor) and is_dtensor(value) else value


def _named_callbacks(run: TrainingRun) -> dict[str, Callback]:
    """Return the callbacks by the names of their states."""
    return named_by_class(run.callbacks)

"""Capture the complete state of a run as a tree, and write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..callback import named_by_class
from ..checkpoint.format import write_checkpoint
from ..checkpoint.sharded import is_dtensor
from ..checkpoint.tensors import Tree
from ..checkpoint.weights import save_weights
from ..data.iterated import KIND as ITERATED
from ..metrics.metric_objects import paths_of, run_states
from .callback_schedulers import state_of
from .program import users_trainer
from .restore import metric_owners

if TYPE_CHECKING:
    from .run import TrainingRun


def capture(run: TrainingRun, *, has_history: bool = True) -> dict[str, Tree]:
    """Return the complete state for an exact resume; without the history, which grows, if
    `has_history` is False.

    "lanes" (the updates) and "num_pieces" (micro-batches) are names in files, which stay.
    """
    run.flush()
    updates = {name: update.state_dict() for name, update in run.updates.by_name.items()}
    data, eval_data = capture_data(run)
    owners = metric_owners(run)
    program = run.files.fingerprint
    if run.files.pending is not None:  # loaded and not trained since
        updates = updates if run.files.pending.updates is None else run.files.pending.updates
        data = run.files.pending.data
        eval_data = run.files.pending.eval_data
        program = run.files.pending.fingerprint
    data = each_position(run, data)
    eval_data = each_position(run, eval_data)
    callbacks = named_by_class(run.callbacks)
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
        "meter": each_process(run, run.metrics.meter.state_dict()),
        "computed": paths_of(run.metrics.meter.computed, owners),
        "metrics": each_process(run, run_states(owners)),
        "data": data,
        "eval_data": eval_data,
        "stop_reason": run.stopping.reason,
        "num_pieces": run.num_micro_batches,
        "compiled": None if run.compiled is None else run.compiled.state_dict(),
        "trainer": users_trainer(run.program)._capture_own_state(),
        "rng": run.runtime.gather_each(run.generators.state()),
        "fingerprint": program,
    }


def capture_data(run: TrainingRun) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the positions in training and evaluation data; None for data that begins anew in the
    next epoch."""
    stream = run.data.train_stream
    eval_stream = run.data.eval_stream
    data = None
    eval_data = None
    if stream is not None and (run.progress.in_epoch or stream.spans_epochs):
        data = stream.state_dict()
    if eval_stream is not None and eval_stream.spans_epochs:
        eval_data = eval_stream.state_dict()
    return data, eval_data


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


def _is_iterated(state: Any) -> bool:
    while isinstance(state, dict) and "stream" in state:
        state = state["stream"]
    return isinstance(state, dict) and state.get("kind") == ITERATED


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
        for writer in callback.write_before_save(run.program._trainer_given_to(callback)):
            writer.wait()
    write_checkpoint(
        path, tree, meta, group=run.writing_group(), token=run.writing_token(), beside=beside
    )
    run.runtime.barrier("save")


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

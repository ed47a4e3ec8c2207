"""A trainer's complete state as a tree, and a tree put back into a trainer; what does not fit is listed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import mark_stepped
from ..data.order import derive_seed
from ..data.random import preserved_rng, rng_state, seed_everything, set_rng_state
from ..errors import CheckpointError
from ..metrics.metric_objects import (
    computed_paths,
    load_computed,
    load_metric_states,
    load_object_states,
    metric_states,
    modules_with_metrics,
    object_states,
)
from ..training.progress import Progress
from ..training.resume import NOTHING_KEPT, Kept, Mark
from .atomic import new_token
from .files import read_checkpoint, write_checkpoint
from .fitting import (
    compare_callbacks,
    compare_components,
    compare_rest,
    listed,
    tried,
    try_history,
    try_meter,
    try_random_state,
)
from .pieces import Group, is_dtensor
from .sharded import load_stored, place_like
from .stored import StoredTensor
from .tree import Tree
from .undoing import undone_on_error
from .weights import save_weights

if TYPE_CHECKING:
    from ..callback import Callback
    from ..trainer import Trainer


PARTS = (
    *("models", "optimizers", "schedules", "lanes", "callbacks", "progress"),
    *("history", "meter", "data", "stop_reason", "rng"),
)


RUN = ("progress", "history", "meter", "data", "stop_reason", "rng", "lanes")


def capture(trainer: Trainer, *, has_history: bool = True) -> dict[str, Tree]:
    """Everything that a run needs in order to go on exactly where it is; perhaps without the history, which grows."""
    trainer.flush()
    lanes = {name: lane.state_dict() for name, lane in trainer.optimization.lanes.items()}
    data, eval_data = capture_data(trainer)
    program = trainer.fingerprint
    if trainer.mark is not None:  # loaded and not trained since
        lanes, data, eval_data = trainer.mark.lanes, trainer.mark.data, trainer.mark.eval_data
        program = trainer.mark.fingerprint
    return {
        "models": capture_models(trainer),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in trainer.optimizers.items()},
        "schedules": {name: s.scheduler.state_dict() for name, s in trainer.schedules.items()},
        "lanes": lanes,
        "callbacks": {name: callback.state_dict() for name, callback in _named_callbacks(trainer).items()},
        "progress": trainer.progress.state_dict(),
        "history": trainer.history.state_dict() if has_history else None,
        "meter": each_process(trainer, trainer.meter.state_dict()),
        "computed": computed_paths(trainer),
        "metrics": each_process(trainer, metric_states(modules_with_metrics(trainer)) | object_states(trainer)),
        "data": data,
        "eval_data": eval_data,
        "stop_reason": trainer.stop_reason,
        "num_pieces": trainer.num_pieces,
        "rng": trainer.runtime.gather_each(rng_state()),
        "fingerprint": program,
    }


def capture_models(trainer: Trainer) -> dict[str, Tree]:
    return {name: model.state_dict() for name, model in trainer.models.items()}


def capture_data(trainer: Trainer) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The positions in the data of training and of evaluation, where the next epoch does not begin anew anyway."""
    stream, eval_stream = trainer.train_stream, trainer.eval_stream
    data = eval_data = None
    if stream is not None and (trainer.progress.in_epoch or stream.spans_epochs):
        data = stream.state_dict()
    if eval_stream is not None and eval_stream.spans_epochs:
        eval_data = eval_stream.state_dict()
    return data, eval_data


def meta_of(trainer: Trainer) -> dict[str, Any]:
    """What a person or a listing wants to know of a checkpoint without reading it."""
    progress = trainer.progress
    return {
        "epoch": progress.epoch,
        "step": progress.step,
        "update": progress.update,
        "sample": progress.sample,
    }


def restore(trainer: Trainer, tree: Any, source: str, *, kept: Kept = NOTHING_KEPT) -> None:
    """Put the state back, but for what is `kept`. Everything is compared first: all of it fits, or nothing is changed.

    The position in the data is left in `trainer.mark`, for whoever opens the data to go on from here.
    """
    missing = [part for part in PARTS if not isinstance(tree, Mapping) or part not in tree]
    if missing:
        raise CheckpointError(
            f"Checkpoint {source} is no complete state of a trainer: it holds no {', '.join(missing)}. For the weights "
            "alone, as of a kept model, use `trainer.load_weights(path)`."
        )
    small = load_stored({part: value for part, value in tree.items() if part not in ("models", "optimizers")})
    if problems := _compare(trainer, tree, small, kept):
        raise CheckpointError(
            f"Checkpoint {source} does not fit this trainer, and nothing was loaded:{listed(problems)}\nBuild the same "
            "models, optimizers and callbacks as the run that wrote it, or start a new run "
            f"({trainer.start_over})."
        )
    rng = own_rng(small["rng"], trainer)
    measured = own_process(trainer, small.get("metrics", {}))
    progress = Progress()
    progress.load_state_dict(small["progress"])
    with undone_on_error(trainer, source, _named_callbacks(trainer).values()) as at:
        for name, optimizer in trainer.optimizers.items():
            at.part = f"optimizers: {name}"
            if name not in kept.optimizers:
                load_optimizer(optimizer, tree["optimizers"][name])
        note_steps(trainer, progress.update)
        for name, schedule in trainer.schedules.items():
            at.part = f"schedules: {name}"
            if name not in kept.schedules:
                schedule.scheduler.load_state_dict(small["schedules"][name])
        for name, callback in _named_callbacks(trainer).items():
            at.part = f"callbacks: {name}"
            callback.load_state_dict(small["callbacks"].get(name) or callback.state_dict())
        at.part = "lanes"
        trainer.optimization.load_state_dict(small["lanes"])
        at.part = "metrics"
        load_metric_states(modules_with_metrics(trainer), measured)
        load_object_states(trainer, measured, is_in_epoch=progress.in_epoch)
        at.part = "models"
        for name, model in trainer.models.items():
            load_model(model, tree["models"][name])
    trainer.progress.load_state_dict(small["progress"])
    trainer.history.load_state_dict(small["history"])
    load_meter(trainer, small["meter"])
    load_computed(trainer, small.get("computed", {}))
    trainer.stop_reason = small["stop_reason"]
    trainer.num_pieces = max(trainer.num_pieces, small.get("num_pieces", 1))  # what did not fit will not fit
    trainer.mark = Mark(small["data"], rng, small["lanes"], small.get("eval_data"), small.get("fingerprint"))
    set_rng_state(rng)


def _compare(trainer: Trainer, tree: Mapping[str, Any], small: Mapping[str, Any], kept: Kept) -> list[str]:
    """Every disagreement between the trainer and the saved state, in words."""
    return [
        *compare_components(trainer, tree["models"], tree["optimizers"], small["schedules"], kept=kept),
        *compare_callbacks(_named_callbacks(trainer), small["callbacks"]),
        *compare_run(trainer, small),
    ]


def compare_run(trainer: Trainer, small: Mapping[str, Any]) -> list[str]:
    """What of the counters, histories, positions and generators of a saved run cannot be used."""
    missing = [part for part in RUN if part not in small]
    if missing:
        return [f"{', '.join(missing)}: not in the checkpoint"]
    return [
        *compare_rest(small, trainer.optimizers),
        *tried("history", lambda: try_history(small["history"])),
        *tried("meter", lambda: try_meter(own_process(trainer, small["meter"]))),
        *tried("rng", lambda: try_random_state(lambda: set_rng_state(own_rng(small["rng"], trainer)))),
    ]


def note_steps(trainer: Trainer, num_updates: int) -> None:
    """Let torch know that optimizers took steps, or it warns when a schedule is what a resumed run begins with."""
    for optimizer in trainer.optimizers.values() if num_updates else ():
        mark_stepped(optimizer)


def each_process(trainer: Trainer, state: dict[str, Any]) -> Any:
    """What this process has measured; of several, a list of all's, since exactly added up is not exactly the same."""
    gather = trainer.runtime.gather_samples
    return state if gather is None or not state else gather(state)


def own_process(trainer: Trainer, saved: Any) -> list[Any]:
    """Of what each process had measured, this one's; on another number of them the first goes on with all of it."""
    states = saved if isinstance(saved, list) else [saved]
    if len(states) == trainer.runtime.num_shares:
        return [states[trainer.runtime.sample_rank]]
    return states if trainer.runtime.sample_rank == 0 else []


def load_meter(trainer: Trainer, saved: Any) -> None:
    """Take over what the epoch under way had measured."""
    trainer.meter.load_state_dict({"sums": {}, "counts": {}, "logged": {}})
    for measured in own_process(trainer, saved):
        trainer.meter.add_state_dict(measured)


def own_rng(states: Sequence[dict[str, Any]], trainer: Trainer) -> dict[str, Any]:
    """The generators of this process; one that was not there before gets its own, from the first one's and its rank."""
    rank = trainer.runtime.sample_rank
    if rank < len(states):
        return states[rank]
    with preserved_rng():
        set_rng_state(states[0])
        seed_everything(derive_seed(int(torch.randint(1 << 62, ()).item()), rank))
        return rng_state()


def group_of(trainer: Trainer) -> Group:
    """This process as one of those that write a checkpoint together."""
    return Group(trainer.runtime.rank, trainer.runtime.world)


def token_of(trainer: Trainer) -> str:
    """What the processes of a group call the place where they write the next checkpoint."""
    if trainer.runtime.world > 1 and not trainer.token:
        trainer.token = trainer.runtime.broadcast_object(new_token())
    return trainer.token


def save_trainer(trainer: Trainer, path: str | Path) -> None:
    write_together(trainer, path, capture(trainer), meta_of(trainer))


def write_together(
    trainer: Trainer,
    path: str | Path,
    tree: Tree,
    meta: dict[str, Any],
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint, for which all processes are needed; it is there for all of them when this returns."""
    write_checkpoint(path, tree, meta, group=group_of(trainer), token=token_of(trainer), beside=beside)
    trainer.runtime.barrier("save")


def load_trainer(trainer: Trainer, path: str | Path) -> None:
    """Load for use: evaluation, or a new `train` call that counts its limits from here."""
    restore(trainer, read_checkpoint(path, lazy=trainer.runtime.world > 1).tree, str(path))
    trainer.num_calls = trainer.progress.call


def export_weights(trainer: Trainer, path: str | Path) -> None:
    """The weights of the only model under their own names; of several, with the model's name in front."""
    models = {name: m for name, m in trainer.models.items() if any(True for _ in m.parameters())}  # no loss's buffers
    if len(models) == 1:
        weights = next(iter(models.values())).state_dict()
    else:
        weights = {f"{name}.{key}": value for name, m in models.items() for key, value in m.state_dict().items()}
    if trainer.runtime.world > 1:
        weights = {key: whole(value) for key, value in weights.items()}
    if trainer.runtime.is_main:
        save_weights(path, weights)
    trainer.runtime.barrier("export")


def whole(value: Any) -> Any:
    """All of a tensor that is spread over processes, each of which has to ask."""
    return value.full_tensor() if isinstance(value, Tensor) and is_dtensor(value) else value


def load_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load weights into a model, of which this process may hold a part only."""
    own = model.state_dict()
    if any(isinstance(v, StoredTensor) for v in saved.values()) or any(map(is_dtensor, own.values())):
        placed = {k: place_like(v, own[k]) if isinstance(own[k], Tensor) else v for k, v in saved.items()}
        model.load_state_dict(placed)
    else:
        model.load_state_dict(saved)


def _named_callbacks(trainer: Trainer) -> dict[str, Callback]:
    """Callbacks under the names their state is saved by: the class, numbered where it occurs again."""
    named: dict[str, Callback] = {}
    for callback in trainer.active_callbacks:
        base = name = type(callback).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = callback
    return named


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state; torch casts it to the parameters' type, which is undone where the optimizer keeps another."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = _placed(state, params)
    optimizer.load_state_dict(state)
    for index, saved in state["state"].items():
        own = optimizer.state[params[index]]
        for key, value in saved.items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor) and own[key].dtype != value.dtype:
                own[key] = value.to(own[key].device)


def _placed(state: dict[str, Any], params: Sequence[Tensor]) -> dict[str, Any]:
    """The state with its tensors spread over processes as the parameters are that they belong to."""
    placed = {}
    for index, saved in state["state"].items():
        param = params[index]
        placed[index] = {
            key: place_like(value, param)
            if isinstance(value, StoredTensor) or (isinstance(value, Tensor) and is_dtensor(param))
            else value
            for key, value in saved.items()
        }
    return {**state, "state": placed}

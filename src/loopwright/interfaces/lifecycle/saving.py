"""The files of a run, in the core's formats: checkpoints (a model, its optimizer and scheduler),
training states (a whole run), and the record of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callbacks.recorder import RunRecorder
from ...checkpoint import read_checkpoint
from ...checkpoint.migrations import complete_state, explained
from ...checkpoint.weights import Parts, read_parts, write_parts
from ...errors import CheckpointError
from ...training.callback_schedulers import (
    CallbackSchedulers,
    schedulers_of,
    set_hyperparameters,
    state_of,
)
from ...training.restore import load_parts, own_rng, refuse, return_to
from ...training.state import capture, write_together
from ...training.train_call import emit_exception, finish
from .callbacks import RecordRunCallback
from .tracking import num_recorded

if TYPE_CHECKING:
    from .core import LifecycleCore
    from .trainer import Trainer

OWN = "lifecycle"  # the part of a training state that is the interface's
RESUMABLE = ("on_train_epoch_end", "on_eval_epoch_end", "on_training_run_epoch_end")


# Checkpoints


def write_checkpoint_of(
    interface: Trainer,
    path: str | Path,
    extra: Mapping[str, Any] | None,
    save_optimizer: bool,
    save_scheduler: bool,
) -> None:
    """Write the parts of a trainer as they are now, with the model that it has at the moment; one
    process alone can."""
    core = type(interface._core)(interface, interface._runtime)
    core.configure_models()
    has_optimizer = save_optimizer and interface.optimizer is not None
    has_scheduler = save_scheduler and interface.scheduler is not None
    write_parts(
        path,
        core.models,
        {"optimizer": interface.optimizer} if has_optimizer else {},
        {"scheduler": interface.scheduler} if has_scheduler else {},
        rest={OWN: {"extra": dict(extra or {})}},
        meta=interface._core.run.checkpoint_meta(),
    )


def load_checkpoint_into(
    interface: Trainer, path: str | Path, load_optimizer: bool, load_scheduler: bool
) -> dict[str, Any]:
    """Load the requested parts; returns the whole content under the names of the document's
    library."""
    parts = read_parts(path)
    load_parts(_core_of(interface).run, parts, optimizers=load_optimizer, schedules=load_scheduler)
    content: dict[str, Any] = {"model_state_dict": parts.models["model"]}
    if "optimizer" in parts.optimizers:
        content["optimizer_state_dict"] = parts.optimizers["optimizer"]
    if "scheduler" in parts.schedules:
        content["scheduler_state_dict"] = parts.schedules["scheduler"]
    own = parts.rest.get(OWN)
    return content | dict(parts.rest if own is None else own["extra"])


def _core_of(interface: Trainer) -> LifecycleCore:
    """A core trainer of the components that the interface has now, which may have changed since its
    run began."""
    core = type(interface._core)(interface, interface._runtime)
    core.setup()
    core.use_scheduler(interface.scheduler)
    return core


# Training states


def save_run(interface: Trainer, directory: str | Path, extra: Mapping[str, Any] | None) -> None:
    """Write everything that the run under way, or the last one, needs in order to go on."""
    core = interface._core
    handler = interface.callback_handler
    event = handler.event_under_way()
    core.setup()
    own = {
        "stage": core.stage,
        "event": event if event is not None and event[0] in RESUMABLE else None,
        "seed": core.order_seed,
        "history": interface.run_history.state_dict(),
        "callbacks": {name: state_of(callback) for name, callback in handler.named().items()},
        "counts": core.num_logged,
        "was_ended_by_callback": handler.why_over() is not None,
        "extra": dict(extra or {}),
    }
    write_together(core.run, directory, {**capture(core.run), OWN: own}, core.run.checkpoint_meta())


def load_run(interface: Trainer, directory: str | Path) -> dict[str, Any]:
    """Put the run that is being set up where the saved one was; the callbacks' part comes when they
    have started."""
    tree = _read_state(directory)
    own = tree[OWN]
    core = interface._core
    core.order_seed = own["seed"]
    core.close_streams()
    core.prepare_loaders()
    return_to(
        core.run, {part: state for part, state in tree.items() if part != OWN}, str(directory)
    )
    core.stage = own["stage"]
    core.resumed_event = own["event"]
    core.was_ended_by_callback = own.get("was_ended_by_callback", False)
    with explained(f"{OWN}: history in {directory} cannot be loaded"):
        interface.run_history.load_state_dict(own["history"])
    return tree


def load_callbacks(interface: Trainer, tree: Mapping[str, Any]) -> None:
    """The states of the trainer and of callbacks that the saved run had too, and the random numbers
    that come next."""
    with explained("trainer cannot load its part of the training state"):
        for line in interface._restore_own_state(tree.get("trainer"), "The training state"):
            interface.print(line)
    saved = tree[OWN]["callbacks"]
    callbacks = interface.callback_handler.named()
    for name, callback in callbacks.items():
        if name in saved:
            with explained(f"{OWN}: callbacks: {name} cannot load its part of the training state"):
                CallbackSchedulers().load(callback, saved[name])
    if any(schedulers_of(callback) for callback in callbacks.values()):
        # whose rates a new scheduler has set anew
        for name, optimizer in interface._core.optimizers.items():
            set_hyperparameters(optimizer, tree["optimizers"][name]["param_groups"])
    interface._core.run.generators.restore(own_rng(tree["rng"], interface._core.run))


def load_state_into(interface: Trainer, directory: str | Path) -> dict[str, Any]:
    """Model, optimizer, scheduler if there is one, history, callbacks and random numbers of a saved
    run."""
    tree = complete_state(_read_state(directory), str(directory))
    load_parts(
        _core_of(interface).run,
        Parts(Path(directory), tree["models"], tree["optimizers"], tree["schedules"]),
    )
    with explained(f"{OWN}: history in {directory} cannot be loaded"):
        interface.run_history.load_state_dict(tree[OWN]["history"])
    load_callbacks(interface, tree)
    return dict(tree[OWN]["extra"])


def _read_state(directory: str | Path) -> dict[str, Any]:
    tree: Any = read_checkpoint(directory).tree if Path(directory).exists() else {}
    own = tree.get(OWN, {}) if isinstance(tree, Mapping) else {}
    if "stage" not in own:
        raise CheckpointError(
            "not-a-training-state",
            f"There is no training state at {directory}: pass a directory that "
            "`save_training_state` wrote. (For a checkpoint of a model, use `load_checkpoint`.)",
        )
    needed = ("event", "seed", "history", "callbacks", "extra")
    refuse(str(directory), [f"{OWN}: {name!r} is missing" for name in needed if name not in own])
    return dict(tree)


# The record of a run, which `loopwright runs`, `show` and `ui` read


@contextmanager
def recorded(interface: Trainer) -> Iterator[None]:
    """Record the training run in this block, if a callback or the environment says so."""
    core = interface._core
    run = core.run
    recording = [c for c in interface.callback_handler if isinstance(c, RecordRunCallback)]
    if recording and core.runtime.is_main:
        others = [callback for callback in run.callbacks if not isinstance(callback, RunRecorder)]
        run_dir = recording[0].run_dir
        run.bind([*others, RunRecorder("warn", directory=run_dir, existing="continue")])
    if any(isinstance(callback, RunRecorder) for callback in run.callbacks):
        core.describe()
        core.num_logged = _num_before_epoch(interface, core.waiting_state)
    run.emit("on_train_start")
    run.media.begin()
    try:
        yield
    except BaseException as error:
        emit_exception(run, error)
        raise
    finish(run)


def _num_before_epoch(interface: Trainer, resumed: Mapping[str, Any] | None) -> Mapping[str, int]:
    """How many values the history had when the epoch under way began; a resumed run may have values
    of this epoch already."""
    history = interface.run_history
    counts = num_recorded(history)
    if resumed is None:
        return counts
    if (saved := resumed[OWN].get("counts")) is not None:
        return dict(saved)
    # the state is of a run that was not recorded, or of an earlier version
    ended = history.current_epoch - 1
    return {name: min(count, ended) for name, count in counts.items()}

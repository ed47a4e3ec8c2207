"""Checkpoints (a model, its optimizer and scheduler) and training states (a whole run), in the
core's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint import read_checkpoint
from ...checkpoint.migrations import complete_state, explained
from ...checkpoint.weights import Parts, read_parts, write_parts
from ...errors import CheckpointError
from ...training.held_schedulers import HeldSchedulers, schedulers_of, set_hyperparameters, state_of
from ...training.state import capture, own_rng, return_to, write_together
from ...training.state_mismatch import differing_kinds, listed
from ...training.undo import load_parts

if TYPE_CHECKING:
    from .core import Core
    from .trainer import Trainer

OWN = "lifecycle"  # the part of a training state that is the interface's
RESUMABLE = ("on_train_epoch_end", "on_eval_epoch_end", "on_training_run_epoch_end")


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
    write_parts(
        path,
        core.models,
        {"optimizer": interface.optimizer}
        if save_optimizer and interface.optimizer is not None
        else {},
        {"scheduler": interface.scheduler}
        if save_scheduler and interface.scheduler is not None
        else {},
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
        "counts": None if core.epoch_metrics is None else core.epoch_metrics.counts,
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
    for name, callback in interface.callback_handler.named().items():
        if name in saved:
            with explained(f"{OWN}: callbacks: {name} cannot load its part of the training state"):
                HeldSchedulers().load(callback, saved[name])
    if any(schedulers_of(callback) for callback in interface.callback_handler.named().values()):
        # whose rates a new scheduler has set anew
        for (
            name,
            optimizer,
        ) in interface._core.optimizers.items():
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


def _core_of(interface: Trainer) -> Core:
    """A core trainer of the components that the interface has now, which may have changed since its
    run began."""
    core = type(interface._core)(interface, interface._runtime)
    core.setup()
    core.use_scheduler(interface.scheduler)
    return core


def _read_state(directory: str | Path) -> dict[str, Any]:
    if not Path(directory).exists():
        raise CheckpointError(
            f"There is no training state at {directory}: pass a directory that "
            "`save_training_state` wrote."
        )
    tree: Any = read_checkpoint(directory).tree
    own = tree.get(OWN) if isinstance(tree, Mapping) else None
    if not isinstance(own, Mapping) or "stage" not in own:
        raise CheckpointError(
            f"{directory} is not a training state: pass a directory that `save_training_state` "
            "wrote. (For a checkpoint of a model, use `load_checkpoint`.)"
        )
    form = {"stage": "", "event": (), "seed": 0, "history": {}, "callbacks": {}, "extra": {}}
    missing = [f"{OWN}: {name} is not in it" for name in form if name not in own]
    # not in states of earlier versions
    later: dict[str, Any] = {
        "counts": {},
        "was_ended_by_callback": False,
    }
    if problems := missing + list(differing_kinds(form | later, own, OWN)):
        raise CheckpointError(f"{directory} is damaged; nothing was loaded:{listed(problems)}")
    return dict(tree)

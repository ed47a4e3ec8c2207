"""Putting a trainer together: what `configure_*` describe is built, found, checked and prepared, models first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .building import Schedule, build_schedule
from .callbacks.defaults import with_defaults
from .callbacks.nonfinite import NonFiniteGuard
from .components import check_owners, check_trainable, found_on, is_trained, start_training_mode, swap_parameters
from .data.seeding import seed_everything
from .errors import ConfigurationError
from .optimization import Lane, Optimization
from .runtime import dry_run

if TYPE_CHECKING:
    from .trainer import Trainer


def assemble_models(trainer: Trainer) -> dict[int, nn.Parameter]:
    """Build, place and wrap the models; the parameters that took the place of others, by the ids of those."""
    if trainer.seed is not None and trainer.builds_models:
        seed_everything(trainer.seed)  # models that the trainer makes are part of the run
    check_returned(trainer.configure_models(), "configure_models", "self.model = ...")  # type: ignore[func-returns-value]
    trainer.modules = found_on(trainer, nn.Module, trainer.models)
    replaced: dict[int, nn.Parameter] = {}
    for module in trainer.modules.values():
        trainer.runtime.place(module)
        if is_trained(module):
            replaced |= trainer.runtime.wrap(module)
    trainer.models = {name: module for name, module in trainer.modules.items() if module.state_dict()}
    return replaced


def check_returned(value: Any, name: str, example: str) -> None:
    """Refuse components that were returned and not assigned, as other frameworks have it."""
    if value is not None:
        raise ConfigurationError(
            f"{name} returned a {type(value).__name__}, and what it returns is not used: assign it, `{example}`."
        )


def assemble_optimizers(trainer: Trainer, replaced: dict[int, nn.Parameter]) -> None:
    """Build and find the optimizers and schedules."""
    check_returned(trainer.configure_optimizers(), "configure_optimizers", "self.optimizer = ...")  # type: ignore[func-returns-value]
    trainer.optimizers = found_on(trainer, Optimizer, trainer.optimizers)
    for optimizer in trainer.optimizers.values():
        swap_parameters(optimizer, replaced)
        trainer.runtime.adapt_optimizer(optimizer)
    taken = {id(schedule.scheduler) for schedule in trainer.schedules.values()}
    only = next(iter(trainer.optimizers.values())) if len(trainer.optimizers) == 1 else None
    for name, scheduler in found_on(trainer, (LRScheduler, Schedule), {}).items():
        schedule = build_schedule(scheduler, only)
        if id(schedule.scheduler) not in taken:
            trainer.schedules[name] = schedule


def assemble_training(trainer: Trainer) -> None:
    """Everything that is worked out once per `train` call: callbacks, lanes, modes."""
    check_trainable(trainer.modules)
    if not trainer.optimizers:
        raise ConfigurationError("Trainer has no optimizer: pass `optimizer=` or override `configure_optimizers`.")
    check_owners(trainer.modules, trainer.optimizers)
    callbacks = with_defaults(trainer) if dry_run.current is None else dry_run.current.watch(trainer)
    trainer.bind_hooks(callbacks)
    guard = next((c for c in callbacks if isinstance(c, NonFiniteGuard) and c.action != "off"), None)
    if not trainer.optimization.lanes:
        lanes = {name: build_lane(trainer, name, optimizer, guard) for name, optimizer in trainer.optimizers.items()}
        trainer.optimization = Optimization(lanes, trainer.window, trainer.runtime.no_autocast)
        _attach_schedules(trainer)
    trainer.skips_nonfinite = guard is not None and not guard.is_final
    for lane in trainer.optimization.lanes.values():
        lane.listeners, lane.guard = trainer.hooks["on_optimizer_start"], guard
    trainer.optimization.refresh(trainer.modules.values())
    start_training_mode(trainer.modules.values(), trainer.optimizers.values())


def build_lane(trainer: Trainer, name: str, optimizer: Optimizer, guard: Any) -> Lane:
    if isinstance(optimizer, torch.optim.LBFGS) and trainer.has_default_step:
        raise ConfigurationError(
            f"Optimizer {name!r} is LBFGS, which evaluates the loss several times a step: override `train_step` "
            "and call `optimizer.step(closure)` there, or use another optimizer."
        )
    runtime = trainer.runtime
    return Lane(
        name,
        optimizer,
        scaler=runtime.build_scaler(),
        clip_norm=trainer.clip_norm,
        clip_value=trainer.clip_value,
        guard=guard,
        reads_are_free=runtime.reads_are_free,
        peers=runtime if runtime.world > 1 else None,
    )


def _attach_schedules(trainer: Trainer) -> None:
    """Schedules that count updates go to the lane of their optimizer; one of a stranger is a mistake."""
    lanes = trainer.optimization.lanes
    for name, schedule in trainer.schedules.items():
        target = getattr(schedule.scheduler, "optimizer", None)
        own = [lane for lane in lanes.values() if lane.optimizer is target or (target is None and len(lanes) == 1)]
        if not own and isinstance(target, Optimizer):
            raise ConfigurationError(
                f"Scheduler {name!r} belongs to an optimizer that this trainer does not have, so it would change "
                "nothing: make it from the trainer's own optimizer, or pass it as a factory."
            )
        if schedule.interval == "update":
            for lane in own:
                lane.schedulers.append(schedule.scheduler)

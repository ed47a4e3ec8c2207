"""Putting a trainer together: what `configure_*` describe is built, found, checked and prepared, models first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..callbacks.defaults import with_defaults
from ..callbacks.nonfinite import NonFiniteGuard
from ..data.random import seed_everything
from ..errors import ConfigurationError
from ..optim.build import Schedule, build_schedule
from ..runtime import dry_run
from .components import (
    check_accumulation,
    check_clipping,
    check_options,
    check_owners,
    check_shared,
    check_trainable,
    found_on,
    is_trained,
    replaced_in,
    start_training_mode,
    swap_parameters,
)
from .update import Lane, Optimization

if TYPE_CHECKING:
    from ..trainer import Trainer


def assemble_models(trainer: Trainer) -> dict[int, nn.Parameter]:
    """Build, place and wrap the models; the parameters that took the place of others, by the ids of those."""
    if trainer.seed is not None and trainer.builds_models:
        seed_everything(trainer.seed)  # models that the trainer makes are part of the run
    check_returned(trainer.configure_models(), "configure_models", "self.model = ...")  # type: ignore[func-returns-value]
    trainer.modules = found_on(trainer, nn.Module, trainer.models)
    if trainer.runtime.world > 1:
        _check_initialized(trainer)
    if dry_run.current is None:
        _compare_models(trainer)
    replaced: dict[int, nn.Parameter] = {}
    for module in trainer.modules.values():
        replaced |= prepare_model(trainer, module)
    trainer.models = {name: module for name, module in trainer.modules.items() if module.state_dict()}
    return replaced


def check_returned(value: Any, name: str, example: str) -> None:
    """Refuse components that were returned and not assigned, as other frameworks have it."""
    if value is not None:
        raise ConfigurationError(
            f"{name} returned a {type(value).__name__}, and what it returns is not used: assign it, `{example}`."
        )


def _check_initialized(trainer: Trainer) -> None:
    from .lazy_layers import refuse, uninitialized

    if names := uninitialized(trainer.modules):
        raise refuse(names, "every process would draw its own weights for them")


def _compare_models(trainer: Trainer) -> None:
    """Note what the models are, and see that processes have the same before any of them waits for another."""
    from .fingerprint import check_ranks, describe_models

    trainer.structure = describe_models(trainer.modules)
    check_ranks(trainer, trainer.structure)


def prepare_model(trainer: Trainer, module: nn.Module) -> dict[int, nn.Parameter]:
    """Place and wrap a model; one that was prepared before stays as it is."""
    trainer.runtime.place(module)
    return trainer.runtime.wrap(module) if is_trained(module) else {}


def assemble_optimizers(trainer: Trainer, replaced: dict[int, nn.Parameter]) -> None:
    """Build and find the optimizers and schedules."""
    check_returned(trainer.configure_optimizers(), "configure_optimizers", "self.optimizer = ...")  # type: ignore[func-returns-value]
    trainer.optimizers = found_on(trainer, Optimizer, trainer.optimizers)
    for optimizer in trainer.optimizers.values():
        swap_parameters(optimizer, replaced)
        trainer.runtime.adapt_optimizer(optimizer)
    trainer.known_optimizers = dict(trainer.optimizers)
    taken = {id(schedule.scheduler) for schedule in trainer.schedules.values()}
    only = next(iter(trainer.optimizers.values())) if len(trainer.optimizers) == 1 else None
    for name, scheduler in found_on(trainer, (LRScheduler, Schedule), {}).items():
        schedule = build_schedule(scheduler, only)
        if id(schedule.scheduler) not in taken:
            trainer.schedules[name] = schedule


def adopt_replaced(trainer: Trainer) -> None:
    """Take over models, optimizers and schedulers that were assigned in the place of those that the trainer had."""
    owner = trainer.component_owner
    models = replaced_in(owner, trainer.modules, trainer.models, nn.Module)
    optimizers = replaced_in(owner, trainer.known_optimizers, trainer.optimizers, Optimizer)
    for name, module in models.items():
        trainer._replaced |= prepare_model(trainer, module)
        if trainer.is_evaluating:
            module.eval()
        if vars(owner).get(name) is trainer.modules[name]:
            setattr(owner, name, module)
        trainer.modules[name] = module
    if models:
        trainer.models = {name: module for name, module in trainer.modules.items() if module.state_dict()}
    for name, optimizer in optimizers.items():
        swap_parameters(optimizer, trainer._replaced)
        trainer.runtime.adapt_optimizer(optimizer)
        if vars(owner).get(name) is trainer.known_optimizers[name]:
            setattr(owner, name, optimizer)
        trainer.optimizers[name] = trainer.known_optimizers[name] = optimizer
    for name, schedule in trainer.schedules.items():
        given = vars(owner).get(name)
        if isinstance(given, (LRScheduler, Schedule)) and given not in (schedule, schedule.scheduler):
            trainer.schedules[name] = build_schedule(given, trainer.optimizers.get(name))


def adopt_in_training(trainer: Trainer) -> None:
    """Go on with what was replaced since the `train` call began, or refuse what could not be trained or resumed."""
    adopt_replaced(trainer)
    current = _trained_by(trainer)
    changed = [name for name, value in trainer.trained.items() if current.get(name) is not value]
    if not changed:
        return
    if trainer.run is not None:
        raise ConfigurationError(
            f"Replaced while a run with a run directory was training: {', '.join(changed)}. Were that run resumed, its "
            "weights and states would go into what it starts with: replace it before `train`, or build it in "
            "`configure_models` and `configure_optimizers`."
        )
    check_components(trainer)
    _renew_lanes(trainer)
    trainer.trained = current
    start_training_mode(trainer.modules.values(), trainer.optimizers.values())


def check_components(trainer: Trainer) -> None:
    """Refuse optimizers and settings that would train the wrong thing, or the wrong way."""
    check_accumulation(trainer.accumulate)
    check_clipping("clip_norm", trainer.clip_norm)
    check_clipping("clip_value", trainer.clip_value)
    check_owners(trainer.modules, trainer.optimizers)
    check_options(trainer.optimizers)
    if trainer.accumulate > 1:
        check_shared(trainer.modules, trainer.optimizers)


def _trained_by(trainer: Trainer) -> dict[str, Any]:
    """What of a trainer is trained and saved, by names that tell models, optimizers and schedulers apart."""
    kinds: dict[str, dict[str, Any]] = {
        "model": trainer.models,
        "optimizer": trainer.optimizers,
        "schedule": trainer.schedules,
    }
    return {f"{kind} {name!r}": value for kind, held in kinds.items() for name, value in held.items()}


def _renew_lanes(trainer: Trainer) -> None:
    """A lane for each optimizer that took the place of another, and schedulers to the lanes of their optimizers."""
    optimization = trainer.optimization
    for name, lane in list(optimization.lanes.items()):
        if lane.optimizer is not trainer.optimizers.get(name):
            lane.reset()
            optimization.replace(build_lane(trainer, name, trainer.optimizers[name], lane.guard))
            optimization.lanes[name].listeners = lane.listeners
    _attach_schedules(trainer)
    optimization.refresh(trainer.modules.values())


def assemble_training(trainer: Trainer) -> None:
    """Everything that is worked out once per `train` call: callbacks, lanes, modes."""
    check_trainable(trainer.modules, trainer.optimizers)
    if not trainer.optimizers:
        raise ConfigurationError("Trainer has no optimizer: pass `optimizer=` or override `configure_optimizers`.")
    check_components(trainer)
    callbacks = with_defaults(trainer) if dry_run.current is None else dry_run.current.watch(trainer)
    trainer.bind_hooks(callbacks)
    guard = next((c for c in callbacks if isinstance(c, NonFiniteGuard) and c.action != "off"), None)
    if not trainer.optimization.lanes:
        lanes = {name: build_lane(trainer, name, optimizer, guard) for name, optimizer in trainer.optimizers.items()}
        trainer.optimization = Optimization(lanes, trainer.window, trainer.runtime.no_autocast)
    _renew_lanes(trainer)
    trainer.skips_nonfinite = guard is not None and not guard.is_final
    trainer.meter.ignores_nonfinite = trainer.skips_nonfinite  # a resumed run goes on with this meter inside an epoch
    trainer.meter.check = None if trainer.run_dir is None else partial(_check_saved, trainer)
    for lane in trainer.optimization.lanes.values():
        lane.listeners, lane.guard = trainer.hooks["on_optimizer_start"], guard
        lane.clip_norm, lane.clip_value = trainer.clip_norm, trainer.clip_value
    trainer.trained = _trained_by(trainer)
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


def _check_saved(trainer: Trainer, name: str, metric: Any) -> None:
    from ..checkpoint.undoing import metric_owners
    from ..metrics.metric_objects import check_saved

    check_saved(metric_owners(trainer), name, metric)


def _attach_schedules(trainer: Trainer) -> None:
    """Schedules that count updates go to the lane of their optimizer; one of a stranger is a mistake."""
    lanes = trainer.optimization.lanes
    for lane in lanes.values():
        lane.schedulers = []
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

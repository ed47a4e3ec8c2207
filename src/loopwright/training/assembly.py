"""Assemble a trainer: build, find, check and prepare the components of `configure_*`, models
first."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..callback import Callback, surrounding
from ..callbacks.checkpoints import Checkpoints
from ..callbacks.nonfinite import NonFiniteGuard
from ..callbacks.progress import ProgressDisplay
from ..data.random import resolve_seed, seed_generators
from ..errors import ConfigurationError
from ..optim.build import CurveSchedule, Schedule, build_schedule
from ..runtime.modes import start_training_mode
from .components import (
    check_optimizers,
    check_settings,
    check_trainable,
    found_on,
    is_trained,
    replaced_in,
    swap_parameters,
)
from .update import OptimizerUpdate
from .updates import Updates

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..runtime.distributed import DistributedRuntime
    from .run import TrainingRun


# in the environment: where programs without a run directory are recorded
RECORDING = "LOOPWRIGHT_RUN_DIR"


def assemble(trainer: Trainer) -> None:
    """Build models and optimizers, once, and take over those that were assigned since."""
    held = trainer._components
    if not held.are_built:
        settle_seed(trainer.run)
        with trainer.run.generators.of_program():
            held.replaced = assemble_models(trainer)
        held.are_built = True
    adopt_replaced(trainer)
    # a frozen model can be evaluated
    if not held.optimizers and any(True for _ in held.parameters()):
        with trainer.run.generators.of_program():
            assemble_optimizers(trainer, held.replaced)


def settle_seed(run: TrainingRun) -> None:
    """Take the last `seed_everything` of the first process, until models are built with it."""
    if run.program._seed.source != "argument" and not run.components.are_built:
        run.program._seed = run.runtime.broadcast_object(resolve_seed("auto"))


def assemble_models(trainer: Trainer) -> dict[int, nn.Parameter]:
    """Build, place and wrap the models; return parameters that replaced others, by the ids of the
    replaced ones."""
    if trainer.seed is not None and trainer._builds_models:
        seed_generators(trainer.seed)  # models that the trainer makes are part of the run
    check_returned(trainer.configure_models(), "configure_models", "self.model = ...")  # type: ignore[func-returns-value]
    trainer._components.modules = found_on(trainer, nn.Module, trainer.models)
    if trainer.runtime.world > 1:
        from .first_batch import no_size, uninitialized

        if names := uninitialized(trainer.modules):
            raise no_size(names, "every process would draw its own weights for them")
    from .fingerprint import check_ranks, describe_models

    trainer._components.structure = describe_models(trainer.modules)
    check_ranks(trainer.run, trainer._components.structure)
    replaced: dict[int, nn.Parameter] = {}
    for module in trainer.modules.values():
        replaced |= prepare_model(trainer, module)
    trainer._components.models = {
        name: module for name, module in trainer.modules.items() if module.state_dict()
    }
    return replaced


def check_returned(value: Any, name: str, example: str) -> None:
    """Refuse components that were returned and not assigned, as other frameworks have it."""
    if value is not None:
        raise ConfigurationError(
            "component-returned",
            f"{name} returned a {type(value).__name__}, but its return value is not used: assign "
            f"the value instead, as in `{example}`.",
        )


def prepare_model(trainer: Trainer, module: nn.Module) -> dict[int, nn.Parameter]:
    """Place and wrap a model; one that was prepared before stays as it is."""
    trainer.runtime.place(module)
    return trainer.runtime.wrap(module) if is_trained(module) else {}


def assemble_optimizers(trainer: Trainer, replaced: dict[int, nn.Parameter]) -> None:
    """Build and find the optimizers and schedules."""
    check_returned(trainer.configure_optimizers(), "configure_optimizers", "self.optimizer = ...")  # type: ignore[func-returns-value]
    trainer._components.optimizers = found_on(trainer, Optimizer, trainer.optimizers)
    for optimizer in trainer.optimizers.values():
        swap_parameters(optimizer, replaced)
        trainer.runtime.adapt_optimizer(optimizer)
    trainer._components.known_optimizers = dict(trainer.optimizers)
    taken = {id(schedule.scheduler) for schedule in trainer.schedules.values()}
    only = next(iter(trainer.optimizers.values())) if len(trainer.optimizers) == 1 else None
    for name, scheduler in found_on(trainer, (LRScheduler, Schedule), {}).items():
        schedule = build_schedule(scheduler, only)
        if id(schedule.scheduler) not in taken:
            trainer.schedules[name] = schedule


def reassemble(trainer: Trainer) -> None:
    """Build and find everything anew, for training; an optimizer that was there before keeps its
    scaler and count."""
    before = {id(update.optimizer): update for update in trainer.run.updates.by_name.values()}
    held = trainer._components
    held.are_built = False
    held.models = {}
    held.modules = {}
    held.optimizers = {}
    held.schedules = {}
    trainer.run.updates = Updates({}, trainer.run.window)
    trainer._setup_training()
    for update in trainer.run.updates.by_name.values():
        if (old := before.get(id(update.optimizer))) is not None:
            update.scaler = old.scaler
            update.num_updates = old.num_updates


def adopt_replaced(trainer: Trainer) -> None:
    """Use models, optimizers and schedulers that were assigned in place of earlier ones."""
    held = trainer._components
    models = replaced_in(trainer, held.modules, held.models, nn.Module)
    for name, module in models.items():
        held.replaced |= prepare_model(trainer, module)
        if trainer.run.metrics.is_evaluating:
            module.eval()
        _assign(trainer, name, held.modules[name], module)
        held.modules[name] = module
    if models:
        held.models = {name: module for name, module in held.modules.items() if module.state_dict()}
    optimizers = replaced_in(trainer, held.known_optimizers, held.optimizers, Optimizer)
    for name, optimizer in optimizers.items():
        swap_parameters(optimizer, held.replaced)
        trainer.runtime.adapt_optimizer(optimizer)
        _assign(trainer, name, held.known_optimizers[name], optimizer)
        held.optimizers[name] = optimizer
        held.known_optimizers[name] = optimizer
    for name, schedule in held.schedules.items():
        given = vars(trainer).get(name)
        is_known = given in (schedule, schedule.scheduler)
        if isinstance(given, (LRScheduler, Schedule)) and not is_known:
            held.schedules[name] = build_schedule(given, held.optimizers.get(name))


def _assign(trainer: Trainer, name: str, old: object, new: object) -> None:
    """Replace an attribute of a trainer, where it is the old object."""
    if vars(trainer).get(name) is old:
        setattr(trainer, name, new)


def adopt_in_training(trainer: Trainer) -> None:
    """Continue with components that were replaced during a `train` call, or refuse them if a resume
    would lose them."""
    adopt_replaced(trainer)
    current = _trained_by(trainer)
    changed = [
        name
        for name, value in trainer._components.trained.items()
        if current.get(name) is not value
    ]
    if not changed:
        return
    if trainer.run.files.directory is not None:
        raise ConfigurationError(
            "replaced-in-training",
            f"{', '.join(changed)} was replaced during training. A resumed run would load the "
            "saved weights and states into the original objects instead: replace it before "
            "`train`, or build it in `configure_models` and `configure_optimizers`.",
        )
    check_components(trainer)
    _renew_updates(trainer)
    trainer._components.trained = current
    start_training_mode(trainer.modules.values(), trainer.optimizers.values())


def check_components(trainer: Trainer) -> None:
    """Refuse optimizers and settings that would train the wrong thing, or the wrong way."""
    check_settings(trainer.accumulate, trainer.clip_norm, trainer.clip_value)
    check_optimizers(trainer._components, accumulates=trainer.accumulate > 1)


def _trained_by(trainer: Trainer) -> dict[str, Any]:
    """Return the models, optimizers and schedulers of a trainer, by names that are unique among all
    of them."""
    kinds: dict[str, dict[str, Any]] = {
        "model": trainer.models,
        "optimizer": trainer.optimizers,
        "schedule": trainer.schedules,
    }
    return {
        f"{kind} {name!r}": value for kind, held in kinds.items() for name, value in held.items()
    }


def _renew_updates(trainer: Trainer) -> None:
    """Build the update of each optimizer that replaced another one, and attach schedulers to the
    updates."""
    optimization = trainer.run.updates
    for name, update in list(optimization.by_name.items()):
        if update.optimizer is not trainer.optimizers.get(name):
            update.reset()
            optimization.replace(
                build_update(trainer, name, trainer.optimizers[name], update.guard)
            )
            optimization.by_name[name].listeners = update.listeners
    _attach_schedules(trainer)
    optimization.refresh(trainer.modules.values())


def assemble_training(trainer: Trainer) -> None:
    """Prepare callbacks, updates and modes, once per `train` call."""
    run = trainer.run
    components = trainer._components
    check_trainable(components)
    if not trainer.optimizers:
        raise ConfigurationError(
            "no-optimizer",
            "Trainer has no optimizer: pass `optimizer=` or override `configure_optimizers` of "
            "the trainer.",
        )
    check_components(trainer)
    callbacks = with_defaults(trainer)
    run.bind(callbacks)
    guards = (c for c in callbacks if isinstance(c, NonFiniteGuard) and c.action != "off")
    guard = next(guards, None)
    if not run.updates.by_name:
        updates = {
            name: build_update(trainer, name, optimizer, guard)
            for name, optimizer in trainer.optimizers.items()
        }
        run.updates = Updates(updates, run.window, trainer.runtime.no_autocast)
    _renew_updates(trainer)
    run.skips_nonfinite = guard is not None and not guard.is_final
    # a resumed run continues with this meter inside an epoch
    run.metrics.meter.ignores_nonfinite = run.skips_nonfinite
    run.metrics.meter.check = None if trainer.run_dir is None else partial(_check_saved, run)
    for update in run.updates.by_name.values():
        update.listeners = run.hooks["on_optimizer_start"]
        update.guard = guard
        update.clip_norm = trainer.clip_norm
        update.clip_value = trainer.clip_value
    components.trained = _trained_by(trainer)
    if trainer.run_dir is not None and components.finite is None:
        from ..checkpoint.policy import FiniteCheck  # imported only for runs that are saved

        components.finite = FiniteCheck.of(trainer.models)
    start_training_mode(trainer.modules.values(), trainer.optimizers.values())


def build_update(trainer: Trainer, name: str, optimizer: Optimizer, guard: Any) -> OptimizerUpdate:
    runtime = trainer.runtime
    return OptimizerUpdate(
        name,
        optimizer,
        scaler=runtime.build_scaler(),
        clip_norm=trainer.clip_norm,
        clip_value=trainer.clip_value,
        guard=guard,
        reads_are_free=runtime.reads_are_free,
        peers=cast("DistributedRuntime", runtime) if runtime.world > 1 else None,
    )


def _check_saved(run: TrainingRun, name: str, metric: Any) -> None:
    from ..metrics.metric_objects import check_saved
    from .restore import metric_owners

    check_saved(metric_owners(run), name, metric)


def _attach_schedules(trainer: Trainer) -> None:
    """Attach schedules that count updates to their optimizer's update; refuse a schedule of an
    unknown optimizer."""
    updates = trainer.run.updates.by_name
    for update in updates.values():
        update.schedulers = []
        update.epoch_schedulers = []
    for name, schedule in trainer.schedules.items():
        target = getattr(schedule.scheduler, "optimizer", None)
        own = [
            update
            for update in updates.values()
            if update.optimizer is target or (target is None and len(updates) == 1)
        ]
        if not own and isinstance(target, Optimizer):
            raise ConfigurationError(
                "foreign-scheduler",
                f"Scheduler {name!r} belongs to an optimizer that this trainer does not have, so "
                "it would change nothing: make it from the trainer's own optimizer, or pass it "
                "as a factory.",
            )
        for update in own:
            is_of_updates = schedule.interval == "update"
            attached = update.schedulers if is_of_updates else update.epoch_schedulers
            attached.append(schedule.scheduler)


def with_defaults(trainer: Trainer) -> list[Callback]:
    """Return the user's callbacks and the missing defaults, in the order of their precedence.

    Default callbacks that write files treat a failing write as the user's `Checkpoints` does.
    """
    run = trainer.run
    callbacks = list(run.callbacks or trainer.callbacks)
    on_error: Literal["raise", "warn"] = "raise"
    for callback in callbacks:
        on_error = callback.on_error if isinstance(callback, Checkpoints) else on_error
    defaults: list[Callback] = [NonFiniteGuard()]
    if run.runtime.is_main:
        defaults.append(ProgressDisplay(run.progress_style))
        path = os.environ.get(RECORDING, "").strip()
        if trainer.run_dir is not None or (path and not run.call.is_trial):
            from ..callbacks.recorder import RunRecorder  # imported only for runs that are recorded

            is_own = trainer.run_dir is not None
            defaults.append(
                RunRecorder(on_error) if is_own else RunRecorder("warn", directory=path)
            )
    if trainer.run_dir is not None:
        if run.data.eval_stream is not None:
            from ..callbacks.best import BestModel, ModelKeeper  # only for runs with evaluation

            if not any(isinstance(callback, ModelKeeper) for callback in callbacks):
                defaults.append(BestModel(required=False, on_error=on_error))
        defaults.append(Checkpoints())
    callbacks += _for_curves(trainer, callbacks)
    callbacks += [callback for callback in surrounding.get() if callback not in callbacks]
    for default in defaults:
        if not any(isinstance(callback, type(default)) for callback in callbacks):
            callbacks.append(default)
    return sorted(callbacks, key=lambda callback: callback.precedence)


def _for_curves(trainer: Trainer, callbacks: list[Callback]) -> list[Callback]:
    """Return callbacks that set the learning rates of curves, for curves that no callback sets
    yet."""
    schedulers = [schedule.scheduler for schedule in trainer.schedules.values()]
    curves = [scheduler for scheduler in schedulers if isinstance(scheduler, CurveSchedule)]
    if not curves:
        return []
    from ..callbacks.scheduling import ScheduleLearningRate

    names = {id(optimizer): name for name, optimizer in trainer.optimizers.items()}
    have = {(id(c.schedule), c.optimizer) for c in callbacks if isinstance(c, ScheduleLearningRate)}
    wanted = [(schedule.curve, names.get(id(schedule.optimizer))) for schedule in curves]
    return [
        ScheduleLearningRate(c, optimizer=name) for c, name in wanted if (id(c), name) not in have
    ]

"""Why the steps of a run cannot be compiled as a whole; asked before the first step, and when
something has changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

from .._torch_compat.compiling import has_backward_hooks
from .._torch_compat.fast_paths import OptimizerStep
from .compiled_optimizers import obstacle_in

if TYPE_CHECKING:
    from .run import TrainingRun

COMPILERS = ("c++", "g++", "clang++", "cl")


class NotCompilableError(Exception):
    """Something has changed that a graph would not follow; nothing of the step was computed."""


def find_obstacle(run: TrainingRun) -> str | None:
    """Why the steps of a run cannot be compiled as a whole, or None where that has to be tried."""
    return obstacle_in_run(run) or _obstacle_in_machine(run)


def obstacle_in_run(run: TrainingRun) -> str | None:
    """Why the steps of a run, as its objects are now, cannot be compiled."""
    program: Any = run.program
    if not program._has_default_step:
        return (
            f"`{run.words.step}` is overridden, and the compiled step is the default one: "
            "override `forward` and `compute_loss` instead"
        )
    if not program._has_default_update:
        return "`update` is overridden"
    if run.runtime.world > 1:
        return (
            "several processes average gradients between the backward pass and the optimizer step"
        )
    if len(run.updates.by_name) > 1:
        return f"there are {len(run.updates.by_name)} optimizers ({', '.join(run.updates.by_name)})"
    replaced = [name for name in ("forward", "compute_loss") if name in vars(program)]
    if replaced:
        return f"`{replaced[0]}` is replaced on the trainer object, as `Profile` does to time it"
    return _obstacle_in_update(run)


def _obstacle_in_machine(run: TrainingRun) -> str | None:
    compilers = (*([os.environ["CXX"]] if os.environ.get("CXX") else []), *COMPILERS)
    if run.runtime.is_host and not any(map(shutil.which, compilers)):
        return "there is no C++ compiler, which torch.compile needs: install g++ or clang++"
    return None


def _obstacle_in_update(run: TrainingRun) -> str | None:
    update = next(iter(run.updates.by_name.values()))
    optimizer = update.optimizer
    modules = run.components.modules.values()
    if update.scaler is not None:
        return (
            "a loss scaler (precision='fp16') looks at gradients before each optimizer step: "
            "use 'bf16'"
        )
    if any(map(has_backward_hooks, all_modules(modules))):
        return "functions are registered to run in the backward pass"
    if any(getattr(module, "sparse", False) for module in all_modules(modules)):
        return "an embedding has sparse gradients"
    if (obstacle := obstacle_in(optimizer, run.runtime.is_host)) is not None:
        return obstacle
    if OptimizerStep(optimizer).plain_function() is None:
        return "functions are registered to run before or after the optimizer's steps"
    return None


def all_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules and the modules inside."""
    return [part for module in modules for part in module.modules()]

"""The compiled step as the loop calls it: the inputs of its graphs, everything around them that
stays Python, and what cannot be compiled."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._torch_compat import mark_stepped
from ..._torch_compat.compiling import (
    failed_to_compile,
    forward_hooks,
    has_backward_hooks,
    num_hooks_registered,
)
from ..._torch_compat.fast_paths import OptimizerStep
from ...metrics.result import StepResult
from ...trees import leaves
from ..components import check_reached
from ..supervised import checked_pair
from .graph import (
    NUM_SETTINGS,
    RULES,
    Applied,
    Measured,
    Plan,
    StepGraphs,
    new_state,
    obstacle_in,
)

if TYPE_CHECKING:
    from ..run import TrainingRun
    from ..update import OptimizerUpdate


COMPILERS = ("c++", "g++", "clang++", "cl")


class NotCompilableError(Exception):
    """Something has changed that a graph would not follow; nothing of the step was computed."""


class CompiledCalls:
    """Takes steps by graphs, in place of `train_step`: same result, events, counters and errors.

    Args:
        run: the run, whose only optimizer is updated.
        on_compile: called for every graph that is compiled, with its digest.
    """

    def __init__(self, run: TrainingRun, on_compile: Callable[[str], None]) -> None:
        self._run = run
        self._on_compile = on_compile
        self._graphs_by_key: dict[Any, StepGraphs] = {}
        self._seen: Tensor | None = None  # on a device: above 0 once an update was left out
        self._watched: tuple[Any, ...] = ()
        self._held: Any = None  # what is watched by its id, which must not become another's
        self._hooks: list[Any] = []  # of forward passes, by module
        self._traced_hooks: tuple[Any, ...] | None = None  # when the first graph was made
        self._new_states: dict[nn.Parameter, dict[str, Any]] = {}  # of parameters that had none
        # of compiling, after which a step was completed without graphs
        self.failure: BaseException | None = None

    def __call__(self, batch: Any) -> StepResult:
        """Take one step of the accumulation window, and the update at its end."""
        run = self._run
        update = next(iter(run.updates.by_name.values()))
        run.updates.follow_groups(update)
        if self._watch(update) != self._watched:
            self._prepare(update)
        self._follow_settings(update)
        pair = run.program.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
        measured = (self._split if self._plan.is_split else self._whole)(update, inputs, targets)
        if run.window.is_last:
            run.window.has_stepped = True
        loss, metrics, losses, count, outputs, _, size, _, _ = measured
        return StepResult(loss, size or run.window.size, metrics, count, outputs, losses)

    def forget(self) -> None:
        """Forget the state of a trial; the graphs stay."""
        self._watched = ()
        self._seen = None

    # What is prepared when something changed

    def _watch(self, update: OptimizerUpdate) -> tuple[Any, ...]:
        """Everything that may change between two steps, and that a graph does not look at."""
        optimizer = update.optimizer
        replaced = vars(self._run.program)
        return (
            *map(id, (update, update.params, update.guard, optimizer.state)),
            *map(id, optimizer.state.values()),
            *[param.requires_grad for param in update.params],
            num_hooks_registered(),
            *map(tuple, self._hooks),
            *(vars(optimizer).get("step"), replaced.get("forward"), replaced.get("compute_loss")),
            self._run.program.accumulate,
            len(update.listeners),
            len(self._run.hooks["on_train_step_end"]),
        )

    def _prepare(self, update: OptimizerUpdate) -> None:
        """Read the parameters and the state of the optimizer; a missing state is made as torch
        makes it."""
        optimizer = update.optimizer
        if (obstacle := find_obstacle(self._run)) is not None:
            raise NotCompilableError(obstacle)
        self._check_hooks()
        rule = RULES[type(optimizer)]
        self._rule = rule
        self._flags = [rule.flags(group) for group in optimizer.param_groups]
        self._params: list[nn.Parameter] = []
        self._states: list[dict[str, Any]] = []
        self._applied: list[Applied] = []
        self._new_states = {}
        start = NUM_SETTINGS
        for group, flags in zip(optimizer.param_groups, self._flags, strict=True):
            slots = rule.slots(group)
            length = len(rule.numbers(group))
            for param in group["params"]:
                if not param.requires_grad:
                    continue
                state = optimizer.state.get(param) or {}
                if slots and not state:
                    self._new_states[param] = state
                for name in slots:
                    if state.get(name) is None:
                        state[name] = new_state(name, param, group)
                self._params.append(param)
                self._states.append(state)
                self._applied.append((rule, flags, start, length))
            start += length
        self._reads = self._run.runtime.reads_are_free or (
            update.guard is not None and update.guard.is_immediate
        )
        self._settings: tuple[Any, ...] = ()
        self._remember(update)

    def _remember(self, update: OptimizerUpdate) -> None:
        state = update.optimizer.state
        self._held = (update, update.params, update.guard, state, list(state.values()))
        self._watched = self._watch(update)

    def _check_hooks(self) -> None:
        """Refuse other hooks than those that were traced: torch does not look at them again."""
        self._hooks = list(forward_hooks(all_modules(self._run.components.modules.values())))
        numbers = tuple(number for hooks in self._hooks for number in hooks)
        if self._traced_hooks is None:
            self._traced_hooks = numbers
        elif numbers != self._traced_hooks:
            raise NotCompilableError(
                "hooks of forward passes were registered or removed after it was compiled"
            )

    def _follow_settings(self, update: OptimizerUpdate) -> None:
        """Make the tensor of the numbers that may change in every step; choose the graphs that
        belong to the rest."""
        window = self._run.window
        groups = update.optimizer.param_groups
        read = self._rule.options
        limits = (update.clip_norm, update.clip_value)
        settings = (window.divisor, *limits, *[read(group) for group in groups])
        if settings != self._settings:
            # a tensor may change in place, unnoticed: it is an obstacle
            has_tensors = any(isinstance(value, Tensor) for value in leaves(settings))
            if has_tensors or [self._rule.flags(group) for group in groups] != self._flags:
                self._prepare(update)
            self._settings = settings
            numbers = [window.divisor, *(limit or 0.0 for limit in limits)]
            for group in groups:
                numbers += self._rule.numbers(group)
            device = self._run.runtime.device
            self._numbers = torch.tensor(numbers, dtype=torch.float64, device=device)
            self._choose_graphs(update)
        if not self._plan.is_split and any(p.grad is not None for p in self._params):
            raise NotCompilableError(
                "parameters have gradients before the step, as of a callback's backward pass"
            )

    def _choose_graphs(self, update: OptimizerUpdate) -> None:
        run = self._run
        guard = update.guard
        accumulates = run.program.accumulate > 1
        plan = Plan(
            program=run.program,
            rules=tuple(self._applied),
            device=run.runtime.device.type,
            is_split=accumulates or bool(update.listeners) or not run.runtime.is_host,
            has_guard=guard is not None,
            is_final=guard is not None and guard.is_final,
            clips_norm=update.clip_norm is not None,
            clips_value=update.clip_value is not None,
            has_divisor=accumulates,
            keeps_outputs=bool(run.hooks["on_train_step_end"]),
        )
        flags = [tuple(own.values()) for own in self._flags]
        key = (*plan.switches, *flags, *map(id, self._params))
        if key not in self._graphs_by_key:
            self._graphs_by_key[key] = StepGraphs(plan, self._on_compile)
        self._graphs = self._graphs_by_key[key]
        self._plan = self._graphs.plan

    # Steps

    def _whole(self, update: OptimizerUpdate, inputs: Any, targets: Any) -> Measured:
        """One step that ends in an update, as one graph."""
        args = (self._params, self._states, self._numbers, self._flag(update))
        measured: Measured = self._computed(self._graphs.whole, inputs, targets, *args)
        self._count_call(update)
        update.norm = measured[7]
        if not update.num_updates and not any(measured[5]):
            check_reached(update.params, update.name)
        if self._is_fine(update, measured[0]) and self._was_changed(update, measured[8]):
            self._count_update(update, measured[5])
        return measured

    def _split(self, update: OptimizerUpdate, inputs: Any, targets: Any) -> Measured:
        """One step of a window; its update, if it is the last, is a graph of its own.

        Between steps the gradients so far are where eager steps have them, in `param.grad`:
        whatever ends a window early, or completes it without graphs, finds them there.
        """
        taken = self._taken_gradients()
        used = [grad is not None for grad in taken]
        sums = [
            torch.zeros_like(p, requires_grad=False) if g is None else g
            for p, g in zip(self._params, taken, strict=True)
        ]
        try:
            measured: Measured = self._computed(
                self._graphs.gradients, inputs, targets, self._params, sums, self._numbers
            )
            used = [before or now for before, now in zip(used, measured[5], strict=True)]
        finally:
            for param, total, is_used in zip(self._params, sums, used, strict=True):
                param.grad = total if is_used else None
        self._count_call(update)
        if not self._is_fine(update, measured[0]):
            update.is_skipped = True
        if update.guard is not None and not self._reads:
            update.flag_nonfinite(measured[0])
        if measured[3] is not None:
            update._count = measured[3] if update._count is None else update._count + measured[3]
        if self._run.window.is_last:
            self._finish(update)
        return measured

    def _taken_gradients(self) -> list[Tensor | None]:
        """Take the gradients away from the parameters, since a graph would be made for parameters
        with gradients."""
        grads = [p.grad for p in self._params]
        for param in self._params:
            param.grad = None
        return grads

    def _finish(self, update: OptimizerUpdate) -> None:
        """End a window: listeners, clipping, step, schedules; or drop the gradients of a skipped
        update."""
        if update.is_skipped:
            update.reset()
            return
        if update.listeners and update._count is not None:
            update._divide_by_count()
        update.start_step()
        grads = self._taken_gradients()
        args = (
            update._flag,
            update._count,
            self._params,
            grads,
            self._states,
            self._numbers,
            self._flag(update),
        )
        try:
            update.norm, is_fine = self._graphs.apply(*args)
        except Exception as error:
            if not failed_to_compile(error):
                self._run.window.has_stepped = True  # some weights may have changed
                raise
            self.failure = error
            self._finish_eagerly(update, grads)
        else:
            if self._was_changed(update, is_fine):
                self._count_update(update, tuple(grad is not None for grad in grads))
        update.zero()
        update._count = None
        update._flag = None

    def _finish_eagerly(self, update: OptimizerUpdate, grads: list[Tensor | None]) -> None:
        """Take the step that could not be compiled with the gradients that graphs have computed."""
        for param, grad in zip(self._params, grads, strict=True):
            param.grad = grad
        if not update.read_flag():
            return
        if update._count is not None:
            update._divide_by_count()
        if (update.guard is None or update.is_finite()) and update.clip():
            update.step()
            update.schedule()

    def _computed(self, graph: Callable[..., Any], inputs: Any, targets: Any, *args: Any) -> Any:
        try:
            return graph(inputs, targets, *args)
        except Exception as error:
            if failed_to_compile(error):
                raise
            if graph is self._graphs.whole:
                self._run.window.has_stepped = True  # some weights may have changed
            if not isinstance(error, torch.OutOfMemoryError):
                self._raise_as_eager(inputs, targets)
            raise

    def _raise_as_eager(self, inputs: Any, targets: Any) -> None:
        """Let the model's own error be raised, from the user's line, in place of that of a
        kernel."""
        program: Any = self._run.program
        try:
            with torch.no_grad():
                program.compute_loss(program.forward(inputs), targets)
        except Exception as error:
            raise error from None

    # After a graph

    def _is_fine(self, update: OptimizerUpdate, loss: Tensor) -> bool:
        """Whether the loss is finite; if not, the weights are as before, and the guard is asked
        what that means."""
        if update.guard is None or not self._reads:
            return True
        value = loss.item()
        if math.isfinite(value):
            return True
        update.refuse(f"the loss of {update.title} is {value}")
        return False

    def _was_changed(self, update: OptimizerUpdate, is_fine: Tensor | None) -> bool:
        """Whether the graph changed the weights; if not, the guard is asked what that means."""
        if update.guard is None or not self._reads or is_fine is None or is_fine.item():
            return True
        rates = [group.get("lr", 0.0) for group in update.optimizer.param_groups]
        if not all(math.isfinite(rate) for rate in rates):
            update.refuse(
                f"the learning rate of {update.title} is {', '.join(f'{rate:g}' for rate in rates)}"
            )
        elif update.norm is not None:
            update.refuse(f"the gradient norm of {update.title} is {update.norm.item()}")
        else:
            update.refuse(f"a gradient of {update.title} is not finite")
        return False

    def _count_call(self, update: OptimizerUpdate) -> None:
        self._run.updates.calls += 1
        update.calls += 1

    def _count_update(self, update: OptimizerUpdate, used: tuple[bool, ...]) -> None:
        """Count an update, and give the optimizer the new states; torch makes none for parameters
        that the loss does not depend on."""
        if self._new_states:
            for param, is_used in zip(self._params, used, strict=True):
                if is_used and param in self._new_states:
                    update.optimizer.state[param] = self._new_states.pop(param)
            self._remember(update)
        mark_stepped(update.optimizer)
        update.num_updates += 1
        update.epoch.stepped += 1
        update.schedule()

    def _flag(self, update: OptimizerUpdate) -> Tensor | None:
        """On a device that is not waited for: the tensor in which a graph notes that it left an
        update out."""
        if update.guard is None or self._reads:
            return None
        if self._seen is None:
            self._seen = torch.zeros((), device=self._run.runtime.device)
        elif update._seen is None and not update.guard.is_final:
            self._seen.zero_()  # it was read at a log point
        update._seen = self._seen
        return self._seen


def find_obstacle(run: TrainingRun) -> str | None:
    """Why the steps of a run, as its objects are now, cannot be compiled; None where that has to be
    tried."""
    program: Any = run.program
    names = list(run.updates.by_name)
    replaced = [name for name in ("forward", "compute_loss") if name in vars(program)]
    compilers = (os.environ.get("CXX") or COMPILERS[0], *COMPILERS)
    if not program._has_default_step:
        return (
            f"`{run.message_names.step}` is overridden, and the compiled step is the default one: "
            "override `forward` and `compute_loss` instead"
        )
    if not type(program).update.__module__.startswith("loopwright."):
        return "`update` is overridden"
    if run.runtime.world > 1:
        return "several processes average gradients before the optimizer step"
    if len(names) > 1:
        return f"there are {len(names)} optimizers ({', '.join(names)})"
    if replaced:
        return f"`{replaced[0]}` is replaced on the trainer object, as `Profile` does to time it"
    if run.runtime.is_host and not any(map(shutil.which, compilers)):
        return "there is no C++ compiler, which torch.compile needs: install g++ or clang++"
    update = run.updates.by_name[names[0]]
    modules = list(all_modules(run.components.modules.values()))
    if update.scaler is not None:
        return "a loss scaler (precision='fp16') looks at gradients before each step: use 'bf16'"
    if any(map(has_backward_hooks, modules)):
        return "functions are registered to run in the backward pass"
    if any(getattr(module, "sparse", False) for module in modules):
        return "an embedding has sparse gradients"
    if (obstacle := obstacle_in(update.optimizer, run.runtime.is_host)) is not None:
        return obstacle
    if OptimizerStep(update.optimizer).plain_function() is None:
        return "functions are registered to run before or after the optimizer's steps"
    return None


def all_modules(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules and the modules inside."""
    return [part for module in modules for part in module.modules()]

"""The compiled step as the loop calls it: the inputs of its graphs, everything around them that
stays Python, and what cannot be compiled."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from operator import is_
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
from ..components import check_reached
from ..supervised import checked_pair
from .graph import (
    NUM_SETTINGS,
    Applied,
    Measured,
    Plan,
    StepGraphs,
    has_tensors,
    new_state,
    obstacle_in,
    rule_for,
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
        most_graphs: the number of graphs of one function that torch may keep.
    """

    def __init__(
        self, run: TrainingRun, on_compile: Callable[[str], None], most_graphs: int
    ) -> None:
        self._run = run
        self._on_compile = on_compile
        self._most_graphs = most_graphs
        self._graphs: dict[Any, StepGraphs] = {}
        self._update: OptimizerUpdate | None = None
        self._seen: Tensor | None = None  # on a device: above 0 once an update was left out
        self._states: list[dict[str, Any]] = []
        self._new_states: dict[nn.Parameter, dict[str, Any]] = {}  # of parameters that had none
        self._settings: tuple[Any, ...] = ()
        # of forward passes, when the first graph was made
        self._traced_hooks: tuple[int, ...] | None = None
        # of compiling, after which a step was completed without graphs
        self.failure: BaseException | None = None

    def __call__(self, batch: Any) -> StepResult:
        """Take one step of the accumulation window, and the update at its end."""
        run = self._run
        update = self._current()
        pair = run.program.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
        measured = (self._split if self._plan.is_split else self._whole)(update, inputs, targets)
        if run.window.is_last:
            run.window.has_stepped = True
        loss, metrics, losses, count, outputs, _, size, _, _ = measured
        return StepResult(loss, size or run.window.size, metrics, count, outputs, losses)

    def forget(self) -> None:
        """Forget the state of a trial; the graphs stay."""
        self._update = None
        self._seen = None

    # What is prepared when something changed

    def _current(self) -> OptimizerUpdate:
        """The update, after looking for changes since the last step: parameters, options, state,
        hooks, listeners."""
        update = next(iter(self._run.updates.by_name.values()))
        self._run.updates.follow_groups(update)
        if self._is_outdated(update):
            self._prepare(update)
        window = self._run.window
        groups = update.optimizer.param_groups
        read = self._rule.options
        settings = (
            window.divisor,
            update.clip_norm,
            update.clip_value,
            *[read(group) for group in groups],
        )
        if settings != self._settings or self._has_tensors:
            if [self._choices(group) for group in groups] != self._chosen:
                self._prepare(update)
            self._settings = settings
            self._read_numbers(update)
        if not self._plan.is_split and any(p.grad is not None for p in self._params):
            raise NotCompilableError(
                "parameters have gradients before the step, as of a callback's backward pass"
            )
        return update

    def _choices(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        """The options of a group that decide about the entries of its state, and whether it can be
        compiled."""
        return self._rule.slots(group), group.get("dampening"), group.get("differentiable")

    def _surroundings(self, update: OptimizerUpdate) -> tuple[int, ...]:
        hooks = self._run.hooks["on_train_step_end"]
        return self._run.program.accumulate, len(update.listeners), len(hooks)

    def _is_outdated(self, update: OptimizerUpdate) -> bool:
        state = update.optimizer.state
        replaced = vars(self._run.program)
        return (
            update is not self._update
            or update.params is not self._given
            or update.guard is not self._guard
            or state is not self._optimizer_state
            or len(state) != len(self._kept_states)
            or not all(map(is_, state.values(), self._kept_states))
            or num_hooks_registered() != self._num_hooks
            or any(tuple(hooks) != numbers for hooks, numbers in self._hooks)
            or vars(update.optimizer).get("step") is not self._own_step
            or "forward" in replaced
            or "compute_loss" in replaced
            or [p.requires_grad for p in update.params] != self._trainable
            or self._around != self._surroundings(update)
        )

    def _prepare(self, update: OptimizerUpdate) -> None:
        """Read the parameters and the state of the optimizer; a missing state is made as torch
        makes it."""
        run = self._run
        optimizer = update.optimizer
        self._refuse_obstacles(update)
        rule = rule_for(optimizer)
        assert rule is not None
        self._update = update
        self._given = update.params
        self._guard = update.guard
        self._rule = rule
        self._around = self._surroundings(update)
        self._trainable = [p.requires_grad for p in update.params]
        self._params = [p for p in update.params if p.requires_grad]
        self._states = []
        self._new_states = {}
        group_of = {p: group for group in optimizer.param_groups for p in group["params"]}
        for param in self._params:
            state = optimizer.state.get(param) or {}
            slots = rule.slots(group_of[param])
            if slots and not state:
                self._new_states[param] = state
            for name in slots:
                if state.get(name) is None:
                    state[name] = new_state(name, param, group_of[param])
            self._states.append(state)
        self._optimizer_state, self._kept_states = optimizer.state, list(optimizer.state.values())
        self._chosen = [self._choices(group) for group in optimizer.param_groups]
        self._has_tensors = any(
            has_tensors(rule.options(group)) for group in optimizer.param_groups
        )
        self._reads = run.runtime.reads_are_free or (
            update.guard is not None and update.guard.is_immediate
        )
        self._settings = ()

    def _refuse_obstacles(self, update: OptimizerUpdate) -> None:
        """Look at everything that a graph does not look at itself: torch sees hooks when it traces,
        and never again."""
        self._num_hooks, self._own_step = num_hooks_registered(), vars(update.optimizer).get("step")
        if (obstacle := obstacle_in_run(self._run)) is not None:
            raise NotCompilableError(obstacle)
        found = forward_hooks(all_modules(self._run.components.modules.values()))
        self._hooks = [(hooks, tuple(hooks)) for hooks in found]
        numbers = tuple(number for _, own in self._hooks for number in own)
        if self._traced_hooks is None:
            self._traced_hooks = numbers
        elif numbers != self._traced_hooks:
            raise NotCompilableError(
                "hooks of forward passes were registered or removed after it was compiled"
            )

    def _read_numbers(self, update: OptimizerUpdate) -> None:
        """Make the tensor of the numbers that may change in every step; choose the graphs that
        belong to the rest."""
        groups = update.optimizer.param_groups
        numbers = [self._run.window.divisor, update.clip_norm or 0.0, update.clip_value or 0.0]
        for group in groups:
            numbers += self._rule.numbers(group)
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=self._run.runtime.device)
        flags = [self._rule.flags(group) for group in groups]
        plan = self._plan_for(update, flags)
        key = (*(tuple(own.values()) for own in flags), plan.switches, *map(id, self._params))
        if key not in self._graphs:
            self._graphs[key] = StepGraphs(plan, self._on_compile, self._most_graphs)
        self._current_graphs = self._graphs[key]
        self._plan = self._current_graphs.plan

    def _plan_for(self, update: OptimizerUpdate, flags: list[dict[str, bool]]) -> Plan:
        run = self._run
        guard = update.guard
        return Plan(
            program=run.program,
            rules=self._rules(update, flags),
            device=run.runtime.device.type,
            is_split=run.program.accumulate > 1
            or bool(update.listeners)
            or not run.runtime.is_host,
            has_guard=guard is not None,
            is_final=guard is not None and guard.is_final,
            clips_norm=update.clip_norm is not None,
            clips_value=update.clip_value is not None,
            has_divisor=run.program.accumulate > 1,
            keeps_outputs=bool(run.hooks["on_train_step_end"]),
        )

    def _rules(self, update: OptimizerUpdate, flags: list[dict[str, bool]]) -> tuple[Applied, ...]:
        applied: dict[nn.Parameter, Applied] = {}
        start = NUM_SETTINGS
        for group, own in zip(update.optimizer.param_groups, flags, strict=True):
            length = len(self._rule.numbers(group))
            applied |= dict.fromkeys(group["params"], (self._rule, own, start, length))
            start += length
        return tuple(applied[p] for p in self._params)

    # Steps

    def _whole(self, update: OptimizerUpdate, inputs: Any, targets: Any) -> Measured:
        """One step that ends in an update, as one graph."""
        args = (self._params, self._states, self._numbers, self._flag(update))
        measured: Measured = self._computed(self._current_graphs.whole, inputs, targets, *args)
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
                self._current_graphs.gradients, inputs, targets, self._params, sums, self._numbers
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
            update.norm, is_fine = self._current_graphs.apply(*args)
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
            if graph is self._current_graphs.whole:
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
        self._keep_states(used)
        mark_stepped(update.optimizer)
        update.num_updates += 1
        update.epoch.stepped += 1
        update.schedule()

    def _keep_states(self, used: tuple[bool, ...]) -> None:
        """Give the optimizer the new states; torch makes none for parameters that the loss does not
        depend on."""
        if not self._new_states:
            return
        for param, is_used in zip(self._params, used, strict=True):
            if is_used and param in self._new_states:
                self._optimizer_state[param] = self._new_states.pop(param)
        self._kept_states = list(self._optimizer_state.values())

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
    """Why the steps of a run cannot be compiled as a whole, or None where that has to be tried."""
    return obstacle_in_run(run) or _obstacle_in_machine(run)


def obstacle_in_run(run: TrainingRun) -> str | None:
    """Why the steps of a run, as its objects are now, cannot be compiled."""
    program: Any = run.program
    if not program._has_default_step:
        return (
            f"`{run.message_names.step}` is overridden, and the compiled step is the default one: "
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

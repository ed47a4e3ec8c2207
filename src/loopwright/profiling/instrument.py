"""Times the functions that a run calls, by putting timed ones in their place, and puts them
back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from .._torch_compat.compiling import is_compiled
from ..callback import Hook
from .clock import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINTS,
    COMMUNICATION,
    DATA,
    FORWARD,
    LOGGING,
    OPTIMIZER,
    TRAIN_STEP,
    TRANSFER,
    Clock,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..callback import Trainer

    Program = Any  # the trainer as its run sees it: `training.program`, which is above this package
    Run = Any

Function = Callable[..., Any]
OF_A_STREAM = ("take", "begin")
UPDATE = ("complete", "clip", "step", "schedule", "zero")
COLLECTIVES = (
    "sync_gradients",
    "exchange",
    "finish_exchange",
    "finish_update",
    "sum_table",
    "sum_count",
    "barrier",
    "gather",
    "gather_each",
    "gather_objects",
    "gather_parts",
    "broadcast_object",
)
PACKAGE = __name__.partition(".")[0]
# callbacks that ship, by the beginning of their full names; all others count as callbacks
KNOWN = {
    "callbacks.recorder.": LOGGING,
    "callbacks.progress.": LOGGING,
    "callbacks.measuring.": LOGGING,
    "trackers.": LOGGING,
    "interfaces.lifecycle.callbacks.LogMetricsCallback": LOGGING,
    "interfaces.lifecycle.callbacks.Print": LOGGING,
    "interfaces.lifecycle.callbacks.ProgressBarCallback": LOGGING,
    "callbacks.checkpoints.": CHECKPOINTS,
    "callbacks.best.BestModel": CHECKPOINTS,
    "callbacks.best.BestCheckpoint": CHECKPOINTS,
    "interfaces.modular.core.Rounds": CHECKPOINTS,
    "interfaces.lifecycle.callbacks.SaveTrainingStateCallback": CHECKPOINTS,
    "interfaces.lifecycle.callbacks.SaveBestModelCallback": CHECKPOINTS,
    # which is a SaveBestModelCallback too
    "interfaces.lifecycle.callbacks.ModelEmaCallback": CALLBACKS,
}


class Instrument:
    """The timed functions of one run. `attach` may be called again when the run has new parts;
    `detach` ends it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._undo: list[Callable[[], None]] = []
        self._seen: list[object] = []  # kept, so that no other object gets the id of one
        self._streams: WeakSet[Any] = WeakSet()  # some interfaces open one for each evaluation
        self._thread = threading.get_ident()

    def attach(self, program: Program) -> None:
        """Time whatever is not timed yet of a program and its run."""
        run = program.run
        program._map_hooks(self._timed_hook)
        for stream in (run.data.train_stream, run.data.eval_stream):
            self._time_stream(stream)
        for update in run.updates.every():
            self._time_update(update)
        for optimizer in program.optimizers.values():
            self._time_optimizer(optimizer)
        for module in _modules_of(program):
            self._time_module(module)
        if self._is_new(program):
            self._attach_program(program, run)

    def _attach_program(self, program: Program, run: Run) -> None:
        self._undo.append(lambda: program._map_hooks(_untimed))
        for owner, name, part in program._timed_methods():
            self._time(owner, name, part)
        self._put(program, "_open", self._opening(program._open))
        self._put(program, "_eval_mode", self._evaluating(program._eval_mode))
        if not program.runtime.is_host:
            self._time(program.runtime, "move", TRANSFER)
        if program.runtime.world > 1:
            for name in COLLECTIVES:
                self._time(program.runtime, name, COMMUNICATION)
        run.updates.on_joint.append(self._time_update)
        self._undo.append(lambda: run.updates.on_joint.remove(self._time_update))
        self._time_backward()
        self._time_steps(
            run, TRAIN_STEP if not any(map(is_compiled, _modules_of(program))) else FORWARD
        )

    def detach(self) -> None:
        """Put everything back as it was."""
        undo = self._undo
        self._undo = []
        self._seen = []
        for action in reversed(undo):
            action()
        for stream in self._streams:
            for name in OF_A_STREAM:
                vars(stream).pop(name, None)
        self._streams.clear()

    # One thing to be timed

    def _is_new(self, item: object) -> bool:
        if item is None or any(item is seen for seen in self._seen):
            return False
        self._seen.append(item)
        return True

    def _timed(self, part: str, function: Function) -> Function:
        enter = self.clock.enter
        leave = self.clock.leave

        def timed(*args: Any, **kwargs: Any) -> Any:
            depth = enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                leave(depth)

        vars(timed)["__wrapped__"] = function
        return timed

    def _time(self, owner: Any, name: str, part: str) -> None:
        self._put(owner, name, self._timed(part, getattr(owner, name)))

    def _put(self, owner: Any, name: str, function: Function) -> None:
        """Let an object have another method, until `detach`."""
        attributes = vars(owner)
        before = attributes.get(name)
        attributes[name] = function

        def undo() -> None:
            # another one was put in its place, which is not ours to remove
            if attributes.get(name) is not function:
                return
            if before is None:
                del attributes[name]
            else:
                attributes[name] = before

        self._undo.append(undo)

    def _timed_hook(self, hook: Hook) -> Hook:
        """The timed function of a hook; the hooks of our own trainers pass on to others, and are no
        part."""
        key = key_of(hook)
        if key is None or hasattr(hook, "untimed"):
            return hook
        timed = self._timed(key, hook)
        vars(timed)["untimed"] = hook
        return timed

    def _time_stream(self, stream: Any) -> None:
        if stream is not None and stream not in self._streams:
            self._streams.add(stream)
            vars(stream).update(
                {name: self._timed(DATA, getattr(stream, name)) for name in OF_A_STREAM}
            )

    def _opening(self, function: Function) -> Function:
        def opened(*args: Any, **kwargs: Any) -> Any:
            stream = function(*args, **kwargs)
            self._time_stream(stream)
            return stream

        return opened

    def _evaluating(self, function: Function) -> Function:
        @contextmanager
        def evaluating() -> Iterator[None]:
            with self.clock.evaluation(), function():
                yield

        return evaluating

    def _time_update(self, update: Any) -> None:
        if self._is_new(update):
            self._time(update, "backward", BACKWARD)
            for name in UPDATE:
                self._time(update, name, OPTIMIZER)

    def _time_optimizer(self, optimizer: Optimizer) -> None:
        """Time steps by torch's own hooks, since schedulers replace the method `step`; the user may
        call it, too."""
        if not self._is_new(optimizer):
            return
        clock = self.clock
        depths = [1]
        before = optimizer.register_step_pre_hook(lambda *_: depths.append(clock.enter(OPTIMIZER)))
        after = optimizer.register_step_post_hook(lambda *_: clock.leave(depths.pop()))
        self._undo += [before.remove, after.remove]

    def _time_module(self, module: nn.Module) -> None:
        """Time forward passes by torch's own hooks, which copies of a model may keep; compiled code
        leaves them out."""
        if not self._is_new(module) or is_compiled(module):
            return
        depths: list[int] = []
        clock = self.clock
        thread = self._thread

        def is_timed() -> bool:
            return not torch.compiler.is_compiling() and threading.get_ident() == thread

        def enter(*_: object) -> None:
            if is_timed():
                depths.append(clock.enter(FORWARD))

        def leave(*_: object) -> None:
            if depths and is_timed():
                clock.leave(depths.pop())

        before = module.register_forward_pre_hook(enter, prepend=True)
        after = module.register_forward_hook(leave, always_call=True)
        self._undo += [before.remove, after.remove]

    def _time_backward(self) -> None:
        """Time every backward pass, also `loss.backward()` in a step of the user's own, in this
        thread."""
        function = torch.autograd.backward
        timed = self._timed(BACKWARD, function)

        def backward(*args: Any, **kwargs: Any) -> Any:
            return (timed if threading.get_ident() == self._thread else function)(*args, **kwargs)

        self._put(torch.autograd, "backward", backward)

    def _time_steps(self, run: Run, part: str) -> None:
        """Time the bodies of steps: from the last function of one event to the first of the
        other."""
        clock = self.clock
        self.add_hook(run, "on_train_step_start", lambda _: clock.begin_step(part))
        self.add_hook(run, "on_train_step_end", lambda *_: clock.end_step(), is_first=True)

    def add_hook(self, run: Run, event: str, hook: Hook, *, is_first: bool = False) -> None:
        """Call a function at an event, after all others or before them, until `detach`."""
        hooks = run.hooks[event]
        hooks.insert(0 if is_first else len(hooks), hook)
        self._undo.append(lambda: hooks.remove(hook))


def key_of(hook: Hook) -> str | None:
    """The part, callback and event that a hook's time belongs to; None for hooks of our own
    trainers."""
    label = getattr(hook, "label", None)
    kind = type(getattr(getattr(hook, "source", None), "__self__", None))
    is_our_trainer = hasattr(kind, "_map_hooks") and kind.__module__.startswith(f"{PACKAGE}.")
    if label is None or is_our_trainer:
        return None
    return "/".join([part_of(kind), *str(label).removeprefix("callback ").rsplit(".", 1)])


def part_of(kind: type) -> str:
    """The part that a callback's time belongs to."""
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}".removeprefix(f"{PACKAGE}.")
        for start, part in KNOWN.items():
            if name.startswith(start):
                return part
    return CALLBACKS


def is_timed(run: Run) -> bool:
    """Whether a profile measures this run."""
    return any(hasattr(hook, "untimed") for hooks in run.hooks.values() for hook in hooks)


def _untimed(hook: Hook) -> Hook:
    return getattr(hook, "untimed", hook)


def _modules_of(program: Program) -> list[nn.Module]:
    """The models of a program, and what its interface has of them, such as compiled ones."""
    held = [
        *program.modules.values(),
        *vars(program).values(),
        *vars(getattr(program, "interface", program)).values(),
    ]
    return list({id(value): value for value in held if isinstance(value, nn.Module)}.values())


def program_of(trainer: Trainer) -> Program:
    """The trainer that owns the run; a callback may have the trainer of an interface instead."""
    return trainer._core

"""The handler that calls callbacks at the events of a run."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ....callback import Hook, check_hook_names, named_by_class, named_hook
from ....errors import ConfigurationError
from ..._shared import as_tracker
from .events import EVENTS, CallbackNotFoundError, TrainerCallback
from .reporting import TrackerCallback

if TYPE_CHECKING:
    from ....trackers import Track

CallbackLike: TypeAlias = "TrainerCallback | type[TrainerCallback] | Track | type[Track]"
EXTRA = {  # keywords that an event comes with too, for callbacks that take them
    "on_train_step_end": ("step",),
    "on_eval_epoch_start": ("is_intermediate",),
    "on_eval_epoch_end": ("is_intermediate",),
}


class CallbackHandler:
    """The callbacks in their order, and the events that each of them has a method for."""

    def __init__(self, callbacks: Iterable[CallbackLike]) -> None:
        self.callbacks: list[TrainerCallback] = []
        self._under_way: tuple[str, TrainerCallback] | None = None
        self._hooks: dict[str, list[tuple[TrainerCallback, Hook]]] = {}
        self._bound: list[TrainerCallback] = []
        self.add_callbacks(callbacks)

    def __iter__(self) -> Iterator[TrainerCallback]:
        return iter(self.callbacks)

    @property
    def callback_list(self) -> list[str]:
        """The names of the callbacks' classes, in order."""
        return [type(callback).__name__ for callback in self.callbacks]

    def clear_callbacks(self) -> None:
        self.callbacks = []

    def add_callbacks(self, callbacks: Iterable[CallbackLike]) -> None:
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: CallbackLike) -> None:
        """Add an instance, or a class to make one of; misspelt events and arguments that do not fit
        are refused."""
        added: object = callback
        if (tracker := as_tracker(callback)) is not None:
            added = TrackerCallback(tracker)
        elif isinstance(callback, type):
            # of which it is known now that it is no tracker
            added = callback()  # type: ignore[call-arg]
        if not isinstance(added, TrainerCallback):
            raise CallbackNotFoundError(
                f"{callback!r} is not a callback: pass a subclass of TrainerCallback, or an "
                "instance of one, or a tracker from loopwright.trackers. To profile, use `with "
                "Profile(): trainer.train(...)`."
            )
        check_hook_names(added, TrainerCallback, allow_other=True)
        for event in EVENTS:
            _callable_by_name(added, event)
        self.callbacks.append(added)

    def why_over(self) -> str | None:
        """What the first callback that has ended the run, and knows it, says of that."""
        return next(
            (reason for callback in self.callbacks if (reason := callback.why_over()) is not None),
            None,
        )

    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call the method of that name of every callback that has it; it may be an event of your
        own."""
        if self.callbacks != self._bound:  # the list is the user's, too
            self._hooks, self._bound = {}, list(self.callbacks)
        hooks = self._hooks.get(event)
        if hooks is None:
            hooks = self._hooks[event] = self._bind(event)
        if hooks:
            self._call(event, hooks, *args, **kwargs)

    def map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        """Replace the functions that events call."""
        if self.callbacks != self._bound:
            self._hooks, self._bound = {}, list(self.callbacks)
        for event in EVENTS:
            hooks = self._hooks.get(event)
            self._hooks[event] = [
                (c, function(hook)) for c, hook in (self._bind(event) if hooks is None else hooks)
            ]

    def finish_event(self, event: str, called: Iterable[str], *args: Any, **kwargs: Any) -> None:
        """Call an event of the remaining callbacks, when a run was saved in the middle of it."""
        done = {id(callback) for name, callback in self.named().items() if name in called}
        self._call(
            event,
            [(c, hook) for c, hook in self._bind(event) if id(c) not in done],
            *args,
            **kwargs,
        )

    def event_under_way(self) -> tuple[str, list[str]] | None:
        """The event that is being called, with the names of its callbacks up to the current one."""
        if self._under_way is None:
            return None
        event, current = self._under_way
        names = {id(callback): name for name, callback in self.named().items()}
        called = [names[id(callback)] for callback, _ in self._hooks[event]]
        return event, called[: called.index(names[id(current)]) + 1]

    def _call(
        self, event: str, hooks: Iterable[tuple[TrainerCallback, Hook]], *args: Any, **kwargs: Any
    ) -> None:
        before = self._under_way
        try:
            for callback, hook in hooks:
                self._under_way = (event, callback)
                hook(*args, **kwargs)
        finally:
            self._under_way = before

    def named(self) -> dict[str, TrainerCallback]:
        """Callbacks under the names that their state is saved by."""
        return named_by_class(self.callbacks)

    def _bind(self, event: str) -> list[tuple[TrainerCallback, Hook]]:
        if event in EVENTS:
            default = getattr(TrainerCallback, event)
            listening = [c for c in self.callbacks if getattr(type(c), event) is not default]
            return [
                (c, named_hook(_callable_by_name(c, event), f"{type(c).__name__}.{event}"))
                for c in listening
            ]
        near = difflib.get_close_matches(event, EVENTS, n=1, cutoff=0.8)
        listening = [c for c in self.callbacks if callable(getattr(c, event, None))]
        if near and not listening:
            raise ConfigurationError(
                f"Callbacks have no event {event!r}; did you mean {near[0]!r}?"
            )
        return [
            (c, named_hook(getattr(c, event), f"{type(c).__name__}.{event}")) for c in listening
        ]


def _callable_by_name(callback: TrainerCallback, event: str) -> Hook:
    """The method, taking its arguments by name as events pass them; one with other names gets them
    by position."""
    method: Hook = getattr(callback, event)
    names = [
        p
        for p in inspect.signature(getattr(TrainerCallback, event)).parameters
        if p not in ("self", "kwargs")
    ]
    names.remove("trainer")
    signature = inspect.signature(method)
    label = f"{type(callback).__name__}.{event}"
    taken = [*names, *(name for name in EXTRA.get(event, ()) if _takes(signature, name))]
    if _binds(signature, 1, dict.fromkeys(taken)):
        if _takes(signature, "anything else"):
            return method
        return lambda trainer, **kwargs: method(
            trainer, **{n: v for n, v in kwargs.items() if _takes(signature, n)}
        )
    if _binds(signature, 1 + len(names), {}):
        return lambda trainer, **kwargs: method(trainer, *(kwargs[name] for name in names))
    raise ConfigurationError(
        f"{label} does not take the arguments it is called with: give it (self, "
        f"{', '.join(['trainer', *names])}, **kwargs); it has {signature}."
    )


def _takes(signature: inspect.Signature, name: str) -> bool:
    """Whether a function takes an argument of that name by keyword."""
    kinds = {p.kind for p in signature.parameters.values()}
    return name in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _binds(signature: inspect.Signature, num_positional: int, keywords: dict[str, None]) -> bool:
    try:
        signature.bind(*[None] * num_positional, **keywords)
    except TypeError:
        return False
    return True

"""What several doors need in order to translate their interface to the core's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..runtime import Runtime

T = TypeVar("T")


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether a subclass of `base`, or an assignment to this object, replaced the method that `base` has."""
    method = getattr(owner, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


def on_first_process(runtime: Runtime, action: Callable[[], T]) -> T:
    """Run an action on the first process; all processes call this together and get its result or its error."""
    own: tuple[Any, Exception | None] = (None, None)
    if runtime.is_main:
        try:
            own = (action(), None)
        except Exception as raised:
            own = (None, raised)
    value: T
    value, error = runtime.broadcast_object(own)
    if error is not None:
        raise error
    return value

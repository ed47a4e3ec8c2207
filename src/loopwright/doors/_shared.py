"""What several doors need in order to translate their interface to the core's."""

from __future__ import annotations


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether a subclass of `base`, or an assignment to this object, replaced the method that `base` has."""
    method = getattr(owner, name)
    return getattr(method, "__func__", method) is not getattr(base, name)

"""From `kind` to the class it names: found without calling anything, and refused unless it is what the place needs."""

from __future__ import annotations

import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .importing import RefusedError, find, import_allowed, import_module
from .places import Place
from .problems import near_names, nearest


def resolve_kind(kind: object, place: Place, folder: Path | None) -> Callable[..., Any]:
    """The class that a `kind` names, or a function that has a short name in this place; raises RefusedError."""
    if not isinstance(kind, str):
        raise RefusedError("kind is the import path of a class, such as mine.Net.")
    short = place.short_names
    path = short.get(kind, kind)
    if "." not in path:
        near = [name for name in near_names(kind, list(short), cutoff=0.7) if _is_accepted(name, place, folder)]
        hint = f"did you mean {' or '.join(near)}?" if near else "write its import path, such as mine.Net."
        raise RefusedError(f"there is no kind {kind} for {place.name}; {hint}")
    found = find_object(path, place, folder)
    if path in short.values() and isinstance(found, FunctionType):
        return found
    check_class(found, path, place)
    return found  # type: ignore[no-any-return]


def _is_accepted(short_name: str, place: Place, folder: Path | None) -> bool:
    """Whether a short name leads to something that can be used: a package of ours has abstract classes too."""
    try:
        resolve_kind(short_name, place, folder)
    except RefusedError:
        return False
    return True


def find_object(path: str, place: Place, folder: Path | None) -> Any:
    """What an import path leads to: through modules, then through classes, never through instances."""
    parts = path.split(".")
    for part in parts:
        if not part.isidentifier() or (part.startswith("__") and part.endswith("__")):
            raise RefusedError(f"{path!r} is not the import path of a class, such as mine.Net.")
    module, rest = import_allowed(parts[0], place.bases, folder), parts[1:]
    while len(rest) > 1 and (name := f"{module.__name__}.{rest[0]}") and _is_package(module) and find(name):
        module, rest = import_module(name), rest[1:]
    found, walked = _attribute(module, rest[0], place), f"{module.__name__}.{rest[0]}"
    for name in rest[1:]:
        if not is_class(found):
            raise RefusedError(f"{walked} is {what_is(found)}, and nothing is looked up in it.")
        found, walked = inspect.getattr_static(found, name, None), f"{walked}.{name}"
        if found is None:
            raise RefusedError(f"there is no {walked}.")
    return found


def _is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def _attribute(module: ModuleType, name: str, place: Place) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        usable = [key for key in _public_names(module) if _is_usable(module, key, place)]
        hint = nearest(name, usable) if usable else f"nor has it any {place.wanted}."
        raise RefusedError(f"the module {module.__name__} has no {name}; {hint}") from None
    except Exception as error:  # a module that makes its attributes when asked
        raise RefusedError(f"{module.__name__}.{name} cannot be had: {type(error).__name__}: {error}.") from error


def _public_names(module: ModuleType) -> list[str]:
    """What a module has or lists, without what is private; what it lists may be made when it is asked for."""
    listed = getattr(module, "__all__", None)
    names = list(vars(module)) if listed is None else [key for key in listed if isinstance(key, str)]
    return [name for name in names if not name.startswith("_")]


def _is_usable(module: ModuleType, name: str, place: Place) -> bool:
    """Whether a name leads to a class that the place would accept."""
    try:
        check_class(getattr(module, name), name, place)
    except Exception:  # refused, or not to be had without a package that is not installed
        return False
    return True


def check_class(found: Any, path: str, place: Place) -> None:
    """Refuse what is not a complete class of the right kind."""
    if not is_class(found):
        raise RefusedError(f"{path} is {what_is(found)}; expected a class that is a {place.wanted}. It was not called.")
    if not fits(found, place.bases):
        raise RefusedError(f"{path} is not a {place.wanted}, which {place.name} needs. It was not called.")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise RefusedError(f"{path} is abstract: name a subclass that defines {missing}.")
    if vars(found).get("_is_protocol", False):
        raise RefusedError(f"{path} is a protocol: name a class that has its methods.")


def is_class(value: Any) -> bool:
    """Whether it is a class by its real type, whatever its `__class__` says."""
    return type in type(value).__mro__


def real_mro(cls: type) -> tuple[type, ...]:
    """The bases as Python itself sees them, whatever a metaclass says."""
    return type.__dict__["__mro__"].__get__(cls)  # type: ignore[no-any-return]


def fits(cls: type, bases: tuple[type, ...]) -> bool:
    """Whether a class really is a subclass of one of the bases, or has the methods of a protocol among them."""
    return any(base in real_mro(cls) or _is_alike(cls, base) for base in bases)


def _is_alike(cls: type, base: type) -> bool:
    """Protocols and the abstract classes of Python are also fitted by others, but not by what Python itself ships."""
    if (getattr(cls, "__module__", "") or "").split(".")[0] in sys.stdlib_module_names:
        return False
    if getattr(base, "_is_protocol", False):
        members = {name for owner in real_mro(base) for name in vars(owner) if _is_member(name, owner)}
        return bool(members) and all(inspect.getattr_static(cls, name, None) is not None for name in members)
    return type(base) is ABCMeta and base.__module__ == "collections.abc" and type(base).__subclasscheck__(base, cls)


def _is_member(name: str, owner: type) -> bool:
    if not getattr(owner, "_is_protocol", False) or owner.__module__ == "typing":
        return False
    return callable(vars(owner)[name]) and (not name.startswith("_") or name == "__call__")


def what_is(value: Any) -> str:
    """What kind of thing it is, in words."""
    if isinstance(value, ModuleType):
        return "a module"
    if is_class(value):
        return "a class"
    if inspect.isroutine(value):
        return "a function"
    return f"an object of type {type(value).__name__}"

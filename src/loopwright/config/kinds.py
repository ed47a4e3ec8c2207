"""From `kind` to the class it names: short names, which modules may be imported, and which classes
called."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, invalidate_caches, metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any

from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import Dataset, Sampler

from ..callback import Callback
from ..text import near_names, nearest

KIND = "kind"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping.

    Args:
        accepts: a type hint, which may hold places (`Annotated[Any, place]`, or `one_of_kind`,
            `list_of` and `mapping_of`), or a `Schema` for a nested mapping with keys of its own.
        required: whether the key must be there.

    >>> from loopwright.config import Entry
    >>> Entry(int | None).required
    False
    """

    accepts: Any
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The keys that a mapping in a config may have; any other is a mistake.

    Args:
        entries: what each key accepts.

    >>> from loopwright.config import Entry, Schema
    >>> list(Schema({"seed": Entry(int), "name": Entry(str, required=True)}).entries)
    ['seed', 'name']
    """

    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place in a config where `kind` names a class and the keys beside it are its constructor's
    arguments.

    Only real subclasses of `needs` (one type or several; for a Protocol, classes with its methods)
    are ever called.

    Args:
        name: what the object is called in messages.
        needs: what the object must be.
        given: constructor arguments that the program supplies (`params` of an optimizer): never
            asked for in the file, refused there, and passed to `build` as keywords. Arguments that
            a class does not take are left out.
        short: short names for `kind`, each with its import path. A function may be used here, and
            only here. Leave it out for the short names of all that ships for `needs` (`AdamW`,
            `EarlyStopping`, ...); `{}` for none.
        default: the `kind` where a file names none, as a short name or an import path.
        also: keys beside `kind` that the program reads itself, checked against their own entries
            and never passed to the class (`optimizer` inside `model`).
        several: whether several objects may be described instead of one, each under a name of the
            user's choice.

    >>> from torch.optim import Optimizer
    >>> from loopwright.config import Place
    >>> Place("optimizer", Optimizer, given=("params",)).wanted
    'torch.optim.Optimizer'
    """

    name: str
    needs: type | tuple[type, ...]
    given: Collection[str] = ()
    short: Mapping[str, str] | None = None
    default: str | None = None
    also: Mapping[str, Entry] = field(default_factory=dict)
    several: bool = False

    @property
    def bases(self) -> tuple[type, ...]:
        return self.needs if isinstance(self.needs, tuple) else (self.needs,)

    @property
    def wanted(self) -> str:
        """What is needed, in words for a message."""
        return " or ".join(public_name(base) for base in self.bases)


def public_name(cls: type) -> str:
    """The shortest import path of a class: `torch.nn.Module` rather than where it is defined."""
    parts = cls.__module__.split(".")
    for count in range(1, len(parts)):
        module = sys.modules.get(".".join(parts[:count]))
        if module is not None and vars(module).get(cls.__name__) is cls:
            return f"{module.__name__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def one_of_kind(place: Place) -> Any:
    """The hint for an object described in this place.

    >>> from torch import nn
    >>> from loopwright.config import Entry, Place, one_of_kind
    >>> entry = Entry(one_of_kind(Place("model", nn.Module)), required=True)
    """
    return Annotated[Any, place]


def list_of(place: Place) -> Any:
    """The hint for a list of objects, each described in this place.

    >>> from torch import nn
    >>> from loopwright.config import Entry, Place, list_of
    >>> entry = Entry(list_of(Place("layer", nn.Module)))
    """
    return list[Annotated[Any, place]]


def mapping_of(place: Place) -> Any:
    """The hint for objects with names of the user's choice, each described in this place.

    >>> from torch.utils.data import Dataset
    >>> from loopwright.config import Entry, Place, mapping_of
    >>> entry = Entry(mapping_of(Place("dataset", Dataset)))
    """
    return dict[str, Annotated[Any, place]]


def describes_several(value: Any, place: Place) -> bool:
    """Whether a mapping has several objects under names, rather than one with a `kind`."""
    if not place.several or not isinstance(value, dict) or KIND in value:
        return False
    children = [value[name] for name in names_of(value, place)]
    is_described = any(isinstance(child, dict) and KIND in child for child in children)
    return is_described and all(isinstance(child, dict | str) for child in children)


def names_of(value: Mapping[Any, Any], place: Place) -> list[Any]:
    """The names of the objects in a mapping that describes several."""
    return [name for name in value if name not in place.also]


ANYTHING: tuple[type, ...] = (
    nn.Module,
    Dataset,
    Sampler,
    Optimizer,
    lr_scheduler.LRScheduler,
    Callback,
)
"""What a nested `kind` may be where the argument it is given to says nothing of its type."""
_used_folders: set[Path] = set()


class RefusedError(Exception):
    """A kind that is not used; the message says why and what to do."""


@contextmanager
def beside(folder: str | Path | None) -> Iterator[None]:
    """Put a config's folder first on `sys.path`, so that modules beside the file are imported from
    there.

    `check` and `build` do this themselves; training is to run inside it too, for imports that come
    late. A module of the same name that an earlier config had beside it is forgotten.

    Args:
        folder: the folder of the file; None changes nothing.

    >>> import sys
    >>> from loopwright.config import beside
    >>> with beside("/"):
    ...     sys.path[0]
    '/'
    """
    if folder is None:
        yield
        return
    folder = Path(folder).resolve()
    entry = str(folder)
    _forget_namesakes(folder)
    _used_folders.add(folder)
    invalidate_caches()
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _forget_namesakes(folder: Path) -> None:
    names = {path.stem for path in folder.glob("*.py")}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    others = _used_folders - {folder}
    imported = names & sys.modules.keys()
    stale = [name for name in imported if _home(sys.modules[name]) in others]
    for loaded in list(sys.modules):
        if loaded.partition(".")[0] in stale:
            del sys.modules[loaded]


def _home(module: ModuleType) -> Path | None:
    """The folder in which a top-level module or package lies."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    path = Path(file).resolve()
    return path.parent.parent if path.name == "__init__.py" else path.parent


def import_allowed(name: str, bases: tuple[type, ...], folder: Path | None) -> ModuleType:
    """Import a top-level module if it may be, by rules that look at names and metadata only.

    Beside the file: yes. Standard library: no. Outside any installed distribution (an own project
    on the path): yes. In an installed distribution: if it is, or depends on, the one that defines
    what the place needs.
    """
    if name in sys.stdlib_module_names or name == "__main__":
        raise RefusedError(
            f"{name} is a module of Python itself, and nothing in it is ever called; your own "
            "file with that name is hidden by it."
        )
    is_beside = folder is not None and _is_beside(name, folder)
    if not is_beside:
        _check_installed(name, bases)
    module = import_or_refuse(name)
    if is_beside and folder is not None and _home(module) not in (None, folder.resolve()):
        raise RefusedError(
            f"{name} is next to the file, but another {name} was imported before: "
            f"{module.__file__}. Rename it."
        )
    return module


def import_or_refuse(name: str) -> ModuleType:
    """Import, with whatever goes wrong in the module as the reason why its kind cannot be used."""
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise RefusedError(f"importing {name} failed: {type(error).__name__}: {error}.") from error


def _is_beside(name: str, folder: Path) -> bool:
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None:
        return False
    # a folder without __init__.py gives way to a real package
    return spec.origin is not None or find(name) is None


def find(name: str) -> ModuleSpec | None:
    """What would be imported, without importing it (or anything above it that is not imported
    yet)."""
    try:
        return find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _check_installed(name: str, bases: tuple[type, ...]) -> None:
    wanted = {base.__module__.split(".")[0] for base in bases}
    if name in wanted or name in ("torch", "loopwright"):
        return
    owners = _owners().get(name, [])
    if owners and not any(depends_on(owner, package) for owner in owners for package in wanted):
        raise RefusedError(
            f"{name} is not imported: {owners[0]} does not depend on "
            f"{' or '.join(sorted(wanted))}, so it cannot define the class that is needed here."
        )
    if find(name) is None:
        raise RefusedError(f"there is no module {name}, neither next to the file nor installed.")


@cache
def _owners() -> dict[str, list[str]]:
    return {name: list(owners) for name, owners in metadata.packages_distributions().items()}


@cache
def depends_on(distribution: str, package: str) -> bool:
    """Whether a distribution requires another: itself or as an extra, or through what it always
    requires."""
    wanted = {_plain(owner) for owner in _owners().get(package, [package])}
    waiting = [distribution]
    seen = set()
    is_first = True
    while waiting:
        current = waiting.pop()
        for requirement in _requirements(current):
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match is None or ("extra ==" in requirement and not is_first):
                continue
            if _plain(match[0]) in wanted:
                return True
            if "extra ==" not in requirement and match[0] not in seen:
                seen.add(match[0])
                waiting.append(match[0])
        is_first = False
    return False


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: str) -> list[str]:
    try:
        return metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []


def resolve_kind(kind: object, place: Place, folder: Path | None) -> Callable[..., Any]:
    """The class that a `kind` names, or a function that has a short name in this place; raises
    RefusedError."""
    if not isinstance(kind, str):
        raise RefusedError("kind is the import path of a class, such as mine.Net.")
    short = short_names(place)
    path = short.get(kind, kind)
    if "." not in path:
        near = near_names(kind, short, cutoff=0.7)
        hint = "write its import path, such as mine.Net."
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        raise RefusedError(f"there is no kind {kind} for {place.name}; {hint}")
    found = find_object(path, place, folder)
    if path in short.values() and isinstance(found, FunctionType):
        return found
    check_class(found, path, place)
    return found  # type: ignore[no-any-return]


def find_object(path: str, place: Place, folder: Path | None) -> Any:
    """What an import path leads to: through modules, then through classes, never through
    instances."""
    parts = path.split(".")
    for part in parts:
        if not part.isidentifier() or (part.startswith("__") and part.endswith("__")):
            raise RefusedError(f"{path!r} is not the import path of a class, such as mine.Net.")
    module = import_allowed(parts[0], place.bases, folder)
    rest = parts[1:]
    while len(rest) > 1 and hasattr(module, "__path__") and find(f"{module.__name__}.{rest[0]}"):
        module = import_or_refuse(f"{module.__name__}.{rest.pop(0)}")
    found = _attribute(module, rest[0])
    walked = f"{module.__name__}.{rest[0]}"
    for name in rest[1:]:
        if not is_class(found):
            raise RefusedError(f"{walked} is a {type(found).__name__}, not a module or class.")
        found = inspect.getattr_static(found, name, None)
        walked = f"{walked}.{name}"
        if found is None:
            raise RefusedError(f"there is no {walked}.")
    return found


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        names = getattr(module, "__all__", None) or vars(module)
        public = [key for key in names if isinstance(key, str) and not key.startswith("_")]
        raise RefusedError(
            f"the module {module.__name__} has no {name}; {nearest(name, public)}"
        ) from None
    except Exception as error:  # a module with a `__getattr__` that fails
        raise RefusedError(
            f"{module.__name__}.{name} cannot be imported: {type(error).__name__}: {error}."
        ) from error


def check_class(found: Any, path: str, place: Place) -> None:
    """Refuse what is not a complete class of the right kind."""
    if not is_class(found):
        raise RefusedError(
            f"{path} is a {type(found).__name__}; expected a class that is a {place.wanted}. It "
            "was not called."
        )
    if not fits(found, place.bases):
        raise RefusedError(
            f"{path} is not a {place.wanted}, which {place.name} needs. It was not called."
        )
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
    """Whether a class really is a subclass of one of the bases, or has the methods of a protocol
    among them."""
    return any(base in real_mro(cls) or _conforms(cls, base) for base in bases)


def _conforms(cls: type, base: type) -> bool:
    """Protocols are also fitted by classes with their methods, but not by what Python itself
    ships."""
    if (getattr(cls, "__module__", "") or "").split(".")[0] in sys.stdlib_module_names:
        return False
    if not getattr(base, "_is_protocol", False):
        return False
    members: list[str] = []
    for owner in real_mro(base):
        members += [name for name in vars(owner) if _is_member(name, owner)]
    return bool(members) and all(inspect.getattr_static(cls, name, None) for name in members)


def _is_member(name: str, owner: type) -> bool:
    if not getattr(owner, "_is_protocol", False) or owner.__module__ == "typing":
        return False
    return callable(vars(owner)[name]) and (not name.startswith("_") or name == "__call__")


def short_names(place: Place) -> Mapping[str, str]:
    """The short names for `kind` in a place, with their import paths."""
    return shipped_names(place.bases) if place.short is None else place.short


def shipped_names(bases: tuple[type, ...]) -> Mapping[str, str]:
    """Short names with their import paths, for places that need one of these classes."""
    found: dict[str, str] = {}
    for base in bases:
        for needed, modules in SHIPPED.items():
            if issubclass(base, needed):
                for module in modules:
                    found |= names_in(module, needed)
    return found


SHIPPED: dict[type, tuple[str, ...]] = {
    Optimizer: ("torch.optim",),
    lr_scheduler.LRScheduler: ("torch.optim.lr_scheduler",),
    nn.Module: ("torch.nn",),
    Callback: ("loopwright.callbacks", "loopwright.trackers"),
}


@cache
def names_in(module: str, base: type | None = None) -> dict[str, str]:
    """The classes in a module under their own names, with their import paths.

    Of a package of ours, those that it lists: its modules are not imported for it.
    """
    package = import_module(module)
    if module.startswith("loopwright."):
        names = [name for name in package.__all__ if name[:1].isupper()]
    else:
        names = [
            name
            for name, value in vars(package).items()
            if isinstance(value, type) and base in value.__mro__[1:] and not name.startswith("_")
        ]
    return {name: f"{module}.{name}" for name in sorted(names)}

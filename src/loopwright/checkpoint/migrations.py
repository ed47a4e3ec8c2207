"""Versions of the state in a checkpoint: older state is migrated, newer state is refused, unknown
state is never lost.

The manifest of a checkpoint has a table with the version of each part of its state. A checkpoint
without the table was written before there were versions: each of its parts has version 1. What
happens to a part when it is read:

| version in the checkpoint | what happens |
|---|---|
| the one of `VERSIONS` | the state is taken as it is |
| a lower one | the functions of `MIGRATIONS` lead from each version to the next |
| a higher one | `VersionError`, which names the part and both versions |
| none, since the part was added to Loopwright later | version 0: its migration makes the state that a run had then |
| any, of a part that is not in `VERSIONS` | `read_checkpoint` returns it; a trainer refuses the checkpoint |

To change the form of a part, raise its number in `VERSIONS` and add `(part, old number)` to
`MIGRATIONS`: a function from the old state to the new one, which changes nothing in place. To add a
part, give it version 1 and a migration from version 0. Callbacks have versions of their own
(`Callback.state_version`, `Callback.migrate_state`), by which their entries of the part "callbacks"
are migrated. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

from ..errors import CheckpointError
from ..metrics.progress import Progress
from ..text import listed
from .manifest import VersionError

Migration: TypeAlias = Callable[[Any], Any]

REQUIRED = (  # what the first version of Loopwright saved of a trainer
    *("models", "optimizers", "schedules", "lanes", "callbacks", "progress"),
    *("history", "meter", "data", "stop_reason", "rng"),
)
ADDED = (
    "callback_versions",
    "computed",
    "metrics",
    "eval_data",
    "num_pieces",
    "fingerprint",
    "compiled",
    "trainer",
)
INTERFACES = ("simple", "lifecycle")  # parts of an interface beside those of its trainer
# the entries of parts, where another one would be lost in the next save
FIELDS = {
    "history": ("epochs", "steps"),
    "meter": ("counts", "logged", "sums"),
    "progress": tuple(field.name for field in fields(Progress)),
}
# parts that hold one state for each component, by its name
NAMED = ("models", "optimizers", "schedules", "callbacks")


def _renamed_callbacks(state: Any) -> Any:
    """Version 1 has the state of the adversarial interface under an earlier name of its class."""
    if not isinstance(state, Mapping):
        return state
    return {("InterfaceState" if name == "DoorState" else name): state[name] for name in state}


VERSIONS: dict[str, int] = dict.fromkeys((*REQUIRED, *ADDED, *INTERFACES), 1) | {"callbacks": 2}
MIGRATIONS: dict[tuple[str, int], Migration] = {
    ("callbacks", 1): _renamed_callbacks,
    ("callback_versions", 0): lambda _: {},
    ("computed", 0): lambda _: {},
    ("metrics", 0): lambda _: {},
    ("eval_data", 0): lambda _: None,
    ("num_pieces", 0): lambda _: 1,
    ("fingerprint", 0): lambda _: None,
    ("compiled", 0): lambda _: None,
    ("trainer", 0): lambda _: None,
}


class VersionedState(Protocol):
    """What of a callback decides how its saved state is read."""

    state_version: int

    def migrate_state(self, state: Any, version: int) -> Any: ...


def versions_in(tree: Any) -> dict[str, int]:
    """The table for the manifest of a checkpoint of this state."""
    return (
        {part: VERSIONS[part] for part in tree if part in VERSIONS}
        if isinstance(tree, dict)
        else {}
    )


def upgrade(tree: Any, versions: Mapping[str, int], source: str) -> Any:
    """Migrate the parts of a state to the versions of this Loopwright.

    Args:
        tree: The state as it is in the checkpoint.
        versions: The table of the checkpoint's manifest, empty where it has none.
        source: The checkpoint, as errors name it.

    Raises:
        VersionError: A part has a higher version than this Loopwright knows, or cannot be migrated.
        CheckpointError: A part is in the table and not in the state.
    """
    if not isinstance(tree, dict):
        return tree
    if missing := [part for part in versions if part not in tree]:
        raise CheckpointError(
            "missing-state",
            f"Checkpoint {source} is damaged: it holds no state of {listed(map(repr, missing))}.",
        )
    known = {part: versions.get(part, 1) for part in tree if part in VERSIONS}
    for part, version in known.items():  # before anything is migrated
        check_version(f"{part!r}", version, VERSIONS[part], source)
    changed = {
        p: migrate(p, tree[p], version, source)
        for p, version in known.items()
        if version < VERSIONS[p]
    }
    return {**tree, **changed} if changed else tree


def migrate(part: str, state: Any, version: int, source: str) -> Any:
    """Lead the state of a part from a version to the present one."""
    for number in range(version, VERSIONS[part]):
        with explained(
            f"The state of {part!r} in {source} cannot be migrated from version {number}"
        ):
            state = MIGRATIONS[part, number](state)
    return state


def complete_state(tree: Any, source: str) -> dict[str, Any]:
    """The whole state of a trainer, after refusing one that lacks a part, or has a part that would
    be lost.

    Parts that were added to Loopwright after the checkpoint was written get the state that a run
    had then.
    """
    tree = tree if isinstance(tree, Mapping) else {}
    if missing := [part for part in REQUIRED if part not in tree]:
        raise CheckpointError(
            "incomplete-state",
            f"Checkpoint {source} is not a complete state of a trainer: it has no "
            f"{', '.join(missing)}. To load only the weights, for example of a kept model, use "
            "`trainer.load_weights(path)`.",
        )
    unknown = [str(part) for part in tree if part not in VERSIONS]
    for part, names in FIELDS.items():
        entries = tree[part] if isinstance(tree[part], Mapping) else ()
        unknown += [f"{part}/{name}" for name in entries if name not in names]
    if unknown:
        raise VersionError(
            "unknown-state",
            f"Checkpoint {source} holds state of {listed(map(repr, unknown))}, which this version of "
            "Loopwright does not know and would lose in the next save: upgrade Loopwright. To "
            "load only the weights, use `trainer.load_weights(path)`.",
        )
    for part in NAMED:
        if not isinstance(tree[part], Mapping):
            raise CheckpointError(
                "state-mismatch",
                f"Checkpoint {source} does not match this trainer; nothing was loaded:\n"
                f"  - {part}: the checkpoint has {tree[part]!r:.40} ({type(tree[part]).__name__}) "
                "instead of a state for each of them",
            )
    added = {part: migrate(part, None, 0, source) for part in ADDED if part not in tree}
    if "trainer" in added:
        # where the adversarial interface had this state before
        interface = tree["callbacks"].get("InterfaceState")
        added["trainer"] = (
            interface.get("own") if isinstance(interface, Mapping) else None
        ) or None
    return {**tree, **added}


def migrate_callbacks(
    callbacks: Mapping[str, VersionedState], tree: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The saved states of callbacks, by name, each in the version of the callback that will load
    it."""
    saved = dict(tree["callbacks"])
    versions = tree["callback_versions"]
    if not isinstance(versions, Mapping):
        raise CheckpointError(
            "malformed-state",
            f"Checkpoint {source} is damaged: callback_versions is {versions!r:.40}, not a table.",
        )
    for name, callback in callbacks.items():
        version = versions.get(name, 1)
        if saved.get(name) is None:
            continue
        if type(version) is not int or version < 1:
            raise CheckpointError(
                "malformed-state",
                f"Checkpoint {source} is damaged: callbacks: {name} has version {version!r:.40}.",
            )
        check_version(
            f"callback {name!r}",
            version,
            callback.state_version,
            source,
            "the package that defines the callback",
        )
        if version < callback.state_version:
            with explained(
                f"The state of callback {name!r} in {source} cannot be migrated from version "
                f"{version}"
            ):
                saved[name] = callback.migrate_state(saved[name], version)
    return saved


def check_version(
    what: str, version: int, known: int, source: str, owner: str = "Loopwright"
) -> None:
    """Refuse a version that is newer than the known one."""
    if version > known:
        reader = f"this {owner}" if owner == "Loopwright" else "this program"
        raise VersionError(
            "newer-state",
            f"The state of {what} in {source} has version {version}; {reader} knows versions up "
            f"to {known}: upgrade {owner}.",
        )


def unused_states(
    callbacks: Mapping[str, object], tree: Mapping[str, Any], source: str
) -> Iterator[str]:
    """A line for each saved state that a trainer leaves out: of a callback that it does not have,
    or of an interface."""
    for name, state in tree["callbacks"].items():
        if name not in callbacks and state:
            yield (
                f"{source} has state of the callback {name}, which this trainer does not have: "
                "this state was ignored and will not be in the next checkpoint."
            )
    for interface in INTERFACES:
        if interface in tree:
            yield (
                f"{source} was saved by the {interface} interface; state that only this "
                "interface uses was ignored."
            )


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise a `VersionError` that begins with `what` for anything that goes wrong with a state
    inside.

    A checkpoint whose hashes are right is not damaged: it is never passed over for an older one,
    and never removed.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # the state is untrusted, and what a user's own callback raises is not known
        raise VersionError(
            "migration-failed", f"{what}: {type(error).__name__}: {error}"
        ) from error


def entry_at(tree: Any, path: tuple[str, ...], source: str) -> Any:
    """The entry of a state at a path, or a `CheckpointError` that names it."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            raise CheckpointError(
                "missing-state", f"Checkpoint {source} is damaged: it holds no {'/'.join(path)}."
            )
        tree = tree[key]
    return tree

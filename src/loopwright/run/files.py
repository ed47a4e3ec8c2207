"""Files of a run that anybody may have written: how much of them is read, at most, and how.

A folder of runs may hold a file that is damaged, huge, or made to take all time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.layout import read_json, read_limited
from ..errors import CheckpointError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 4_000_000  # of a config
MAX_NODES = 100_000  # a file that expands to more than this through its aliases is not a config
MAX_DEPTH = 50  # of lists and mappings of a config
MAX_LEAVES = 100_000  # values of a config that are compared
MAX_NAMES = 100_000  # of metrics

PROFILE = "profile.json"
PROFILE_VERSION = 1
PROFILE_FIELDS: dict[str, type[Any]] = {  # that a reader relies on
    "version": int,
    "seconds": float,
    "verdict": str,
    "findings": list,
    "parts": list,
    "nanoseconds": dict,
    "num_steps": int,
    "num_samples": int,
    "warmup_steps": int,
    "world": int,
    "memory": dict,
    "files": dict,
}


def read_config(path: Path) -> dict[str, Any] | None:
    """The content of a `config.yaml`; None where there is no file or no mapping in it."""
    if not path.is_file():
        return None
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_limited(path, MAX_BYTES).decode("utf-8-sig")
        problem = next(_Expansion().problems(yaml.parse(text, Loader=loader)), None)
        if problem is None:
            content = yaml.load(text, Loader=loader)
            return content if isinstance(content, dict) else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"it cannot be read as YAML: {error}"
    raise CheckpointError("config-unreadable", f"{path} is not a config: {problem}.")


def read_profile(directory: Path) -> dict[str, Any] | None:
    """The `profile.json` in a run directory, as `loopwright.profiling` writes it; None without."""
    path = directory / PROFILE
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    profile: dict[str, Any] = content if isinstance(content, dict) else {}
    version = profile.get("version", PROFILE_VERSION)
    if version != PROFILE_VERSION:
        raise CheckpointError(
            "profile-version",
            f"{path} has version {version!r}, but this release reads {PROFILE_VERSION}.",
        )
    has_fields = all(type(profile.get(name)) is kind for name, kind in PROFILE_FIELDS.items())
    if not has_fields or not _are_numbers(profile):
        raise CheckpointError("profile-unreadable", f"{path} is not the profile of a run.")
    return profile


def _are_numbers(profile: dict[str, Any]) -> bool:
    peaks = (profile["memory"].get(name, 0) for name in ("process", "device"))
    return all(type(value) is int for value in (*profile["nanoseconds"].values(), *peaks))


@dataclass(slots=True)
class _Collection:
    """A mapping or a list that is being read: the number of its values and its keys so far."""

    anchor: str | None
    is_mapping: bool
    size: int = 1
    num_children: int = 0
    keys: set[str] = field(default_factory=set)

    @property
    def expects_key(self) -> bool:
        return self.is_mapping and self.num_children % 2 == 0


class _Expansion:
    """The size of a YAML file with its aliases expanded, counted from the parser's events."""

    def __init__(self) -> None:
        self.open = [_Collection(None, is_mapping=False)]
        self.sizes: dict[str, int] = {}

    def problems(self, events: Iterator[yaml.Event]) -> Iterator[str]:
        import yaml

        for event in events:
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            if isinstance(event, yaml.CollectionStartEvent):
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                self.open.append(_Collection(event.anchor, is_mapping))
                if len(self.open) > MAX_DEPTH:
                    yield f"line {line} is nested more than {MAX_DEPTH} levels deep"
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.open.pop()
                self.add(done.anchor, done.size)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.sizes:
                    yield f"*{event.anchor} in line {line} refers to itself, or to nothing"
                self.add(None, self.sizes.get(str(event.anchor), 1))
            elif isinstance(event, yaml.ScalarEvent):
                parent = self.open[-1]
                if parent.expects_key and event.value in parent.keys:
                    yield f"the key {event.value!r:.60} appears twice (line {line})"
                if parent.expects_key:
                    parent.keys.add(event.value)
                self.add(event.anchor, 1)
            if self.open[-1].size > MAX_NODES:
                yield (
                    f"it has more than {MAX_NODES} values when its aliases (*name) are "
                    f"written out (line {line})"
                )

    def add(self, anchor: str | None, size: int) -> None:
        """Count a value that is complete."""
        if anchor is not None:
            self.sizes[anchor] = size
        self.open[-1].size += size
        self.open[-1].num_children += 1

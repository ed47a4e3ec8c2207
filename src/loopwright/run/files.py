"""Files of a run that anybody may have written: how much of them is read, at most, and how.

A folder of runs may hold a file that is damaged, huge, or made to take all time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        problem = _problem(yaml.parse(text, Loader=loader))
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


def _problem(events: Iterator[yaml.Event]) -> str | None:
    """Why a YAML file is not read: an alias may stand for gigabytes, and `loopwright` writes none."""
    import yaml

    depth = 0
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {line} is nested more than {MAX_DEPTH} levels deep"
        if isinstance(event, yaml.AliasEvent):
            return f"line {line} has an alias (*{event.anchor}), which a run's config never has"
    return None

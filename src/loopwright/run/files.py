"""Files of a run that anybody may have written: how much of them is read, at most, and how.

A folder of runs may hold a file that is damaged, huge, or made to take all time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
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
PROFILE_FIELDS = {"seconds", "verdict", "findings", "parts", "nanoseconds", "num_steps"}
PROFILE_FIELDS |= {"warmup_steps", "world", "memory"}


def read_config(path: Path) -> dict[str, Any] | None:
    """The content of a `config.yaml`; None where there is no file or no mapping in it."""
    if not path.is_file():
        return None
    import yaml

    loader = _config_loader()
    try:
        text = read_limited(path, MAX_BYTES).decode("utf-8-sig")
        _check_events(yaml.parse(text, Loader=loader))
        content = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError("config-unreadable", f"{path} is not a config: {error}.") from error
    return content if isinstance(content, dict) else None


def _check_events(events: Iterator[yaml.Event]) -> None:
    """Refuse an alias, which may stand for gigabytes and which `loopwright` never writes."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has an alias (*{event.anchor}), which a run's config never has")


@cache
def _config_loader() -> Any:
    """A loader of YAML that refuses a key which appears twice; the second would win silently."""
    import yaml

    class ConfigLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            known = set()
            for key, _ in node.value:
                if str(key.value) in known:
                    line = key.start_mark.line + 1
                    raise ValueError(f"the key {key.value} appears twice, again in line {line}")
                known.add(str(key.value))
            return super().construct_mapping(node, deep)

    return ConfigLoader


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
    if not profile.keys() >= PROFILE_FIELDS:
        raise CheckpointError("profile-unreadable", f"{path} is not the profile of a run.")
    return profile

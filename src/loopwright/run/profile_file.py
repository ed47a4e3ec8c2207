"""The profile of a run as other programs read it: `profile.json`, which `loopwright.profiling` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint.layout import parse_json
from ..errors import CheckpointError

PROFILE = "profile.json"
VERSION = 1


def read_profile(directory: Path, problems: list[str]) -> dict[str, Any] | None:
    """The profile in a run directory; None without one, or where it cannot be read, which is added to `problems`."""
    path = directory / PROFILE
    try:
        content = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError) as error:
        problems.append(str(error))
        return None
    profile = content if isinstance(content, dict) else {}
    spent = profile.get("nanoseconds")
    if not isinstance(spent, dict) or not all(type(value) is int for value in spent.values()):
        problems.append(f"{path} is not a run's profile.")
        return None
    if profile.get("version") != VERSION:
        problems.append(f"{path} has version {profile.get('version')!r}, and this release reads {VERSION}.")
        return None
    return dict(profile)

"""The profile of a run as other programs read it: `profile.json`, which `loopwright.profiling`
writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint.layout import read_json
from ..errors import CheckpointError

PROFILE = "profile.json"
VERSION = 1
FIELDS: dict[str, type[Any]] = {  # that a reader relies on
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


def read_profile(directory: Path, problems: list[str]) -> dict[str, Any] | None:
    """The profile in a run directory; None without one, or where it cannot be read, which is added
    to `problems`."""
    path = directory / PROFILE
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError) as error:
        problems.append(str(error))
        return None
    profile: dict[str, Any] = content if isinstance(content, dict) else {}
    if profile.get("version", VERSION) != VERSION:
        problems.append(
            f"{path} has version {profile['version']!r}, but this release reads {VERSION}."
        )
        return None
    if not all(
        type(profile.get(name)) is kind for name, kind in FIELDS.items()
    ) or not _are_numbers(profile):
        problems.append(f"{path} is not the profile of a run.")
        return None
    return profile


def _are_numbers(profile: dict[str, Any]) -> bool:
    peaks = (profile["memory"].get(name, 0) for name in ("process", "device"))
    return all(type(value) is int for value in (*profile["nanoseconds"].values(), *peaks))

"""Names for the runs of a sweep: the chosen values, in characters that every file system takes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_LENGTH = 80
UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")


def name_variants(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each; a name that is too long or not unique ends in a part of the hash of its
    values."""
    plain = [_plain_name(chosen) for chosen in combinations]
    seen: dict[str, set[str]] = {}
    for name, chosen in zip(plain, combinations, strict=True):
        seen.setdefault(name.lower(), set()).add(_digest(chosen))
    names = [
        name if len(name) <= MAX_LENGTH and len(seen[name.lower()]) == 1 else _hashed(name, chosen)
        for name, chosen in zip(plain, combinations, strict=True)
    ]
    return _numbered(names)


def _plain_name(chosen: Mapping[str, Any]) -> str:
    keys = _short_keys(list(chosen))
    parts = [f"{keys[key]}={_text(value)}" for key, value in chosen.items()]
    return UNSAFE.sub("-", "_".join(parts)).strip(".-") or "single"


def _short_keys(keys: list[str]) -> dict[str, str]:
    """The last part of each dotted key, with as many parts before it as make it different from the
    others."""
    result = {}
    for key in keys:
        parts = key.lstrip("+").split(".")
        for count in range(1, len(parts) + 1):
            short = ".".join(parts[-count:])
            if sum(("." + other.lstrip("+")).endswith("." + short) for other in keys) == 1:
                break
        result[key] = short
    return result


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return (
            str(value["kind"]).rpartition(".")[2]
            if "kind" in value
            else "-".join(_text(v) for v in value.values())
        )
    if isinstance(value, list | tuple):
        return "-".join(_text(item) for item in value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _hashed(name: str, chosen: Mapping[str, Any]) -> str:
    return f"{name[: MAX_LENGTH - 9].rstrip('.-_')}-{_digest(chosen)}"


def _digest(chosen: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(chosen, default=str).encode()).hexdigest()[:8]


def _numbered(names: list[str]) -> list[str]:
    """The same values drawn twice are two runs: the second is called name-2."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name.lower()] = counts.get(name.lower(), 0) + 1
        result.append(name if counts[name.lower()] == 1 else f"{name}-{counts[name.lower()]}")
    return result

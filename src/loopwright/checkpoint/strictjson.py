"""Strict JSON from files that nobody vouches for."""

from __future__ import annotations

import json
from typing import NoReturn, TypeAlias

from loopwright.errors import CheckpointError

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


def parse_json(data: bytes, name: str) -> Json:
    """Strict JSON from untrusted bytes; `name` is the file that the error names."""
    try:
        value: Json = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON ({error or type(error).__name__}).") from None
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """A table, each of whose keys is there once: readers differ in which of two they take."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return table

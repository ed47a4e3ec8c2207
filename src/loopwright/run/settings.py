"""The settings of a run as one flat mapping, whatever interface it came by. Nothing here imports
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .changes import UNKNOWN, flatten

HIDDEN_ENDINGS = (".code", ".samples", ".num_params", ".num_trainable", ".every", ".metric")
HIDDEN = ("torch",)
MAX_VALUE = 200  # characters of a text; longer ones are code or data and not settings


def settings_of(manifest: Mapping[str, Any], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of a run under dotted names.

    A run of a config has the entries of that. Any other has the arguments of its trainer,
    optimizers and schedules with their options, batch sizes and limits, and what the user recorded
    as `config=`; an entry of that with the name of an argument and another value is called
    `config.<name>`.
    """
    if config is not None:
        return {
            key: value for key, value in flatten(config).items() if _is_short(value)
        } | compile_choice(manifest)
    own = manifest.get("config")
    given = flatten(own) if isinstance(own, dict) and own else {}
    program = _of_program(manifest)
    differing = {key for key, value in given.items() if key in program and program[key] != value}
    given = {f"config.{key}" if key in differing else key: value for key, value in given.items()}
    return program | given | compile_choice(manifest)


def compile_choice(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the steps of a run with `compile="step"` were compiled, which changes the last bits
    of its results."""
    noted = manifest.get("compiled")
    return (
        {"compile.choice": noted["choice"]}
        if isinstance(noted, dict) and noted.get("choice")
        else {}
    )


def _of_program(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in ("fingerprint", "arguments"):
        values = manifest.get(entry)
        found |= values if isinstance(values, dict) else {}
    interface = {
        key.removeprefix("config."): value
        for key, value in found.items()
        if key.startswith("config.")
    }
    if interface:  # an interface's own settings say it all, in the user's words
        found = interface | {key: found[key] for key in ("device", "num_processes") if key in found}
    planned = manifest.get("planned")
    limit = planned.get("limit") if isinstance(planned, dict) else None
    if isinstance(limit, list) and len(limit) == 2:
        found[f"max_{limit[0]}s" if limit[0] != "seconds" else "max_seconds"] = limit[1]
    size = manifest.get("num_parameters")
    if isinstance(size, dict) and "total" in size:
        found["num_parameters"] = size["total"]
    return {key: value for key, value in found.items() if _is_setting(key, value)}


def _is_setting(key: str, value: object) -> bool:
    if (
        key in HIDDEN
        or key.endswith(HIDDEN_ENDINGS)
        or (key.startswith("model.") and "(" in str(value))
    ):
        return False
    if isinstance(value, list) and key.startswith("model."):  # the shape of a parameter
        return False
    return _is_short(value) and not (
        isinstance(value, str) and (value == UNKNOWN or "(Python " in value)
    )


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_VALUE
    return value is None or isinstance(value, (bool, int, float, list))

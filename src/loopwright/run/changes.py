"""Differences between two descriptions of a run, and their texts. Nothing here imports torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ..errors import ConfigurationError
from ..text import lines_of
from ..trees import named_leaves
from .files import MAX_LEAVES

MISSING = "-"  # in place of a value that a run does not have
UNKNOWN = "unknown"  # in place of a value that cannot be compared: it is equal to any other
MAX_TEXT = 100
# a hash of code, which another version compiles differently
COMPILED = re.compile(r"(.*) \(Python ([\d.]+)\)")
# a value that one start of the program made: `training.fingerprint` says so
OF_THIS_START = re.compile(r"(.*) \((.*) of this start\)", re.DOTALL)
OTHER_SAMPLES = (
    "the samples have changed; random data without a seed is different in every process: call "
    "`loopwright.seed_everything(0)` before you create it"
)


class Change(NamedTuple):
    """A value that differs in the second description; `MISSING` where a description has none."""

    key: str
    first: object
    second: object


def flatten(value: object) -> dict[str, object]:
    """The leaves of nested dicts and lists under dotted keys; an empty dict or list is a leaf."""
    leaves = dict(islice(named_leaves(value), MAX_LEAVES + 1))
    if len(leaves) > MAX_LEAVES:
        raise ConfigurationError(
            "large-config", f"This config has more than {MAX_LEAVES} values, too many to compare."
        )
    return leaves


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Abbreviate each key to its last parts, as many as make it unique."""
    known = list(keys)
    short: dict[str, str] = {}
    for key in known:
        parts = key.lstrip("+").split(".")
        endings = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other.lstrip("+") for other in known if other != key]
        short[key] = next(
            (
                end
                for end in endings
                if not any(f".{other}".endswith(f".{end}") for other in others)
            ),
            key,
        )
    return short


def find_changes(
    first: Mapping[str, object],
    second: Mapping[str, object],
    is_same: Callable[[object, object], bool],
) -> list[Change]:
    """The values that differ between two flat descriptions, in the order of the first."""
    keys = dict.fromkeys([*first, *second])
    changes = (Change(key, first.get(key, MISSING), second.get(key, MISSING)) for key in keys)
    return [change for change in changes if not is_same(change.first, change.second)]


def is_identical(first: object, second: object) -> bool:
    """Whether two values have the same type and are equal; NaN equals itself."""
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


def is_same_program(first: object, second: object) -> bool:
    """Whether two values of descriptions of programs are equal, or cannot be compared."""
    if UNKNOWN in (first, second):
        return True
    if isinstance(first, str) and isinstance(second, str):
        ours = COMPILED.fullmatch(first)
        theirs = COMPILED.fullmatch(second)
        if ours and theirs and ours[2] != theirs[2]:
            return True
    return first == second or _is_of_each_start(first, second)


def _is_of_each_start(first: object, second: object) -> bool:
    """Whether both values are times, process numbers or temporary paths of their starts, or one of
    them is only by chance."""
    ours = OF_THIS_START.fullmatch(str(first))
    theirs = OF_THIS_START.fullmatch(str(second))
    if ours and theirs:
        return ours[2] == theirs[2]
    by_chance = ours or theirs
    return by_chance is not None and by_chance[1] == str(second if ours else first)


def program_changes(first: Mapping[str, object], second: Mapping[str, object]) -> list[Change]:
    """The differences between the descriptions of two programs, without those that follow from
    another difference.

    An option of torch's that only one of them has is torch's doing: another version of it has other
    options, and says those of layers in other words. Evaluation data that only one of them has
    changes nothing in the training.
    """
    if first.get("torch") != second.get("torch"):
        first = _without_options(first)
        second = _without_options(second)
    changes = find_changes(first, second, is_same_program)
    changed = {change.key for change in changes}
    return [change for change in changes if not _is_implied(change, changed, first, second)]


def _without_options(description: Mapping[str, object]) -> dict[str, object]:
    """A description with the names of layers only."""
    return {
        key: value.partition("(")[0]
        if isinstance(value, str) and key.startswith("model")
        else value
        for key, value in description.items()
        if key != "torch"
    }


def _is_implied(
    change: Change, changed: set[str], first: Mapping[str, object], second: Mapping[str, object]
) -> bool:
    parts = change.key.split(".")
    owners = [".".join(parts[:count]) for count in range(1, len(parts))]
    if parts[-1] == "code" and owners and owners[-1] in changed:
        return True
    if MISSING not in (change.first, change.second):
        return False
    if change.first is MISSING and any(
        _lacks_options(owner, first, second) or _has_same_code(owner, first, second)
        for owner in owners
    ):
        return True
    is_torch = any(
        str(first.get(o)).startswith("torch.") or str(second.get(o)).startswith("torch.")
        for o in owners
    )
    return is_torch or parts[0] == "eval_data" or any(owner in changed for owner in owners)


def _lacks_options(owner: str, first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether an object was recorded by its name only, as earlier versions did with dataclasses
    that have slots."""
    if owner not in first or first[owner] != second.get(owner):
        return False
    return not any(key.startswith(f"{owner}.") and key != f"{owner}.code" for key in first)


def _has_same_code(owner: str, first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether a function is the same, so that only an earlier version did not record its value."""
    return any(
        COMPILED.fullmatch(str(first.get(key))) is not None
        and is_same_program(first[key], second.get(key))
        for key in (owner, f"{owner}.code")
    )


def value_text(value: object) -> str:
    text = str(value) if value is MISSING else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def values_text(change: Change) -> str:
    """The old value and the new one."""
    return f"{value_text(change.first)} -> {value_text(change.second)}"


def change_text(change: Change) -> str:
    """A difference as one line of text."""
    first, second = (bool(COMPILED.fullmatch(str(value))) for value in change[1:])
    if first and second:
        return f"{change.key}: its code has changed"
    if first:
        return f"{change.key}: overridden before, the default now"
    if second:
        return f"{change.key}: the default before, overridden now"
    is_drawn = change.key.endswith("data.samples") and MISSING not in change
    return f"{change.key}: {values_text(change)}" + (f" ({OTHER_SAMPLES})" if is_drawn else "")


def listed(changes: Sequence[Change]) -> str:
    """Differences as text, one line each."""
    return lines_of([change_text(change) for change in changes])


def refusal(what: str, changes: Sequence[Change], *, start_over: str, accept: str | None) -> str:
    """The error message for a run that is not continued; `accept` is None where the new values
    cannot be applied."""
    third = (
        f"pass {accept} to continue with the new values; run.json records the change"
        if accept is not None
        else "(the run cannot continue with the new values: the saved weights do not fit the model)"
    )
    return (
        f"The program differs from that of {what}:{listed(changes)}\n"
        "You can:\n"
        "  - undo the change to resume the run as it was\n"
        f"  - pass {start_over} to start a new run next to it\n"
        f"  - {third}"
    )


def rank_refusal(differing: Mapping[str, Mapping[int, object]]) -> str:
    """The error message for ranks whose programs differ."""
    return (
        f"The processes do not run the same program; they differ in:{listed_by_rank(differing)}\n"
        "Build the same model, optimizers and data on every process; random values need the same "
        "seed on all of them (`loopwright.seed_everything(0)`)."
    )


def listed_by_rank(differing: Mapping[str, Mapping[int, object]]) -> str:
    """A line for each key, with its values by rank."""
    lines = []
    for key, values in differing.items():
        ranks: dict[str, list[int]] = {}
        for rank, value in values.items():
            ranks.setdefault(value_text(value), []).append(rank)
        texts = [f"{text} on {_ranks_text(own)}" for text, own in ranks.items()]
        lines.append(f"{key}: {', '.join(texts)}")
    return lines_of(lines)


def _ranks_text(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def differing_by_rank(descriptions: Sequence[Mapping[str, object]]) -> dict[str, dict[int, object]]:
    """The keys in which the descriptions of several ranks differ, with the value of each rank."""
    keys = dict.fromkeys(
        key for description in descriptions for key in description if key != "torch"
    )
    found = {}
    for key in keys:
        values = [description.get(key, MISSING) for description in descriptions]
        if any(not is_same_program(values[0], value) for value in values[1:]):
            found[key] = dict(enumerate(values))
    return found

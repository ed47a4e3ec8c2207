"""The `sweep:` block of a file: which keys are varied, over which values, and how they are combined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from .overrides import RANGE, parse_range
from .problems import ConfigError, Problem, nearest
from .tree import Node

METHODS = ("grid", "random", "optuna")
OPTIONS = {"method": str, "num": int, "seed": int, "metric": str, "direction": str}


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, whole ones if both are; `log` spreads them evenly over orders of magnitude."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    def at(self, part: float) -> float:
        """The number this far (0 to 1) through the interval."""
        low, high = (self.low, self.high + 1) if self.is_whole else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            value = low + part * (high - low)
        return self.snapped(value)

    def snapped(self, value: float) -> float:
        """The number of the interval that is nearest from below: a whole one, or one on its steps."""
        if self.step is not None:
            value = self.low + math.floor(round((value - self.low) / self.step, 9)) * self.step
        if self.is_whole:
            return min(math.floor(value), int(self.high))
        return float(f"{min(value, self.high):.12g}")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is varied: for each key a list of values or an interval, and how they are combined."""

    space: Mapping[str, Sequence[Any] | Interval]
    method: str = "grid"  # "grid", "random" or "optuna"
    num: int | None = None
    seed: int = 0
    metric: str | None = None
    direction: str | None = None  # "minimize" or "maximize"

    def with_space(self, space: Mapping[str, Sequence[Any] | Interval]) -> Sweep:
        return replace(self, space=space)


def read_block(block: Node) -> Sweep:
    """The sweep that a block describes; raises ConfigError with all its mistakes.

    Without `method` and `space` the block's keys are those that are varied, in a grid.
    """
    if not isinstance(block.value, dict) or not block.value:
        message = f"is {block.shown()}; expected keys with lists of values, such as {{model.width: [16, 32]}}."
        raise ConfigError([Problem(block.file, block.line, "sweep", message)])
    reader = BlockReader()
    if "space" not in block.value and "method" not in block.value:
        sweep = Sweep(reader.space(block, "sweep"))
    else:
        sweep = reader.options(block)
    if reader.problems:
        raise ConfigError(reader.problems)
    return sweep


class BlockReader:
    """Reads the parts of a block and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, node: Node, key: str, message: str) -> None:
        self.problems.append(Problem(node.file, node.line, key, message))

    def options(self, block: Node) -> Sweep:
        values: dict[str, Any] = {}
        known = [item.name for item in fields(Sweep)]
        for name, node in block.value.items():
            key = f"sweep.{name}"
            if name == "space":
                values["space"] = self.space(node, key)
            elif name not in OPTIONS:
                self.add(node, key, f"is not an option of a sweep; {nearest(str(name), known)}")
            elif type(node.value) is not OPTIONS[name]:
                self.add(node, key, f"is {node.shown()}; expected {OPTIONS[name].__name__}.")
            else:
                values[name] = node.value
        self.allowed(block, values, "method", METHODS)
        self.allowed(block, values, "direction", ("minimize", "maximize"))
        if "space" not in block.value:
            self.add(
                block, "sweep.space", "is missing: it says which keys are varied, such as {model.width: [16, 32]}."
            )
        if values.get("method") == "random" and "num" not in block.value:
            self.add(block, "sweep.num", "is missing: the number of random runs.")
        if "num" in values and values["num"] < 1:
            self.add(block.value["num"], "sweep.num", f"is {values['num']}; expected 1 or more.")
        return Sweep(**{"space": {}, **values})

    def allowed(self, block: Node, values: dict[str, Any], name: str, known: Sequence[str]) -> None:
        if name in values and values[name] not in known:
            self.add(block.value[name], f"sweep.{name}", f"{values[name]!r} is unknown; {nearest(values[name], known)}")

    def space(self, node: Node, key: str) -> dict[str, Sequence[Any] | Interval]:
        if not isinstance(node.value, dict) or not node.value:
            self.add(node, key, f"is {node.shown()}; expected keys with lists of values.")
            return {}
        found = {str(name): self.values(child, f"{key}.{name}") for name, child in node.value.items()}
        return {name: values for name, values in found.items() if values is not None}

    def values(self, node: Node, key: str) -> Sequence[Any] | Interval | None:
        """A list, a range, or an interval with `low` and `high`."""
        if isinstance(node.value, list) and node.value:
            return list(node.plain())
        if isinstance(node.value, str) and (match := RANGE.fullmatch(node.value.strip())):
            try:
                return parse_range(match[1])
            except ConfigError as error:
                self.add(node, key, error.problems[0].message)
                return None
        if isinstance(node.value, dict):
            return self.interval(node, key)
        self.add(node, key, f"is {node.shown()}; expected a list of values, range(...), or {{low: ..., high: ...}}.")
        return None

    def interval(self, node: Node, key: str) -> Interval | None:
        values, before = node.plain(), len(self.problems)
        for name, value in values.items():
            wanted: Any = bool if name == "log" else int | float
            if name not in {item.name for item in fields(Interval)}:
                self.add(node.value[name], f"{key}.{name}", nearest(str(name), ["low", "high", "log", "step"]))
            elif type(value) not in (get_args(wanted) or (wanted,)):
                self.add(node.value[name], f"{key}.{name}", f"is {node.value[name].shown()}; expected {wanted}.")
        if "low" not in values or "high" not in values:
            self.add(node, key, "an interval has low and high.")
        if len(self.problems) > before:
            return None
        interval = Interval(**values)
        if not math.isfinite(interval.high - interval.low) or interval.low >= interval.high:
            self.add(node, key, f"low is {interval.low} and high is {interval.high}; expected low < high.")
        if interval.log and interval.low <= 0:
            self.add(node, key, f"low is {interval.low}; with log it must be above 0.")
        if interval.step is not None and interval.step <= 0:
            self.add(node, key, f"step is {interval.step}; expected a number above 0.")
        return interval if len(self.problems) == before else None

"""One config per combination of values: comma lists and ranges in overrides, and the `sweep:` block
of a file."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..run.changes import short_keys
from .compose import Config, Override, escaped, finish, parse_overrides, parse_range, read_root
from .kinds import Entry, Schema
from .tree import COMMAND_LINE, ConfigError, Node, Problem, collecting, to_node
from .validate import ConfigValidation
from .yaml import plain_text

SWEEP = "sweep"
# where the values of the command line are resolved; a name that no file uses
VARIED = "values of a sweep"
MAX_VARIANTS = 100_000
MAX_LENGTH = 80  # of the name of a run
UNSAFE = re.compile(r"[^A-Za-z0-9._+=-]+")
OPTIONS = Schema(
    {
        "space": Entry(dict[str, Any], required=True),
        "method": Entry(Literal["grid", "random", "optuna"]),
        "num": Entry(int),
        "seed": Entry(int),
        "metric": Entry(str),
        "direction": Entry(Literal["minimize", "maximize"]),
    }
)
# no class as a hint: a `kind` could name a subclass, and nothing is imported to read a sweep
INTERVAL = Schema(
    {
        "low": Entry(int | float, required=True),
        "high": Entry(int | float, required=True),
        "log": Entry(bool),
        "step": Entry(int | float),
    }
)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Numbers from `low` to `high`, whole ones if both are.

    Args:
        low: The smallest number.
        high: The largest number.
        log: Whether the numbers are spread evenly over orders of magnitude.
        step: The distance of two numbers; None for any number in between.

    >>> from loopwright.config import ValueRange
    >>> ValueRange(0.001, 10.0, log=True).at(0.5)
    0.1
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))

    def at(self, part: float) -> float:
        """The number this far (0 to 1) through the interval."""
        low = self.low
        high = self.high + 1 if self.is_whole else self.high
        if self.log:
            start = math.log(low)
            return self.snapped(math.exp(start + part * (math.log(high) - start)))
        return self.snapped(low + part * (high - low))

    def values(self) -> list[float]:
        """All numbers on the steps of the interval."""
        step = self.step or math.inf
        count = math.floor(round((self.high - self.low) / step, 9)) + 1
        return [self.snapped(self.low + index * step) for index in range(count)]

    def snapped(self, value: float) -> float:
        """The number of the interval that is nearest from below: a whole one, or one on its
        steps."""
        if self.step is not None:
            count = math.floor(round((value - self.low) / self.step, 9))
            value = self.low + count * self.step
        if self.is_whole:
            return min(math.floor(value), int(self.high))
        return float(f"{min(value, self.high):.12g}")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is varied: for each key a list of values or an interval, and how they are combined.

    Args:
        space: The values by key: a list, or an `ValueRange`.
        method: "grid", "random" or "optuna".
        num: The number of runs, for "random" and "optuna".
        seed: Seeds the choice of "random" and "optuna".
        metric: The metric that "optuna" optimises.
        direction: "minimize" or "maximize".

    >>> from loopwright.config import ValueRange, Sweep
    >>> Sweep({"lr": ValueRange(0.001, 0.1, log=True), "seed": [1, 2]}, method="random", num=5).num
    5
    """

    space: Mapping[str, Sequence[Any] | ValueRange]
    method: str = "grid"  # "grid", "random" or "optuna"
    num: int | None = None
    seed: int = 0
    metric: str | None = None
    direction: str | None = None  # "minimize" or "maximize"


def read_block(block: Node) -> Sweep:
    """The sweep that a block describes; raises ConfigError with its mistakes.

    Without `method` and `space` the block's keys are varied in a grid.
    """
    if "space" not in (block.value or ()) and "method" not in (block.value or ()):
        return Sweep(_read_space(block, SWEEP))
    options, problems = ConfigValidation(None).check(block.copy(SWEEP), OPTIONS)
    if problems:
        raise ConfigError(problems)
    num = options.get("num")
    if num is None and options.get("method") == "random":
        raise block.error("sweep.num", "is missing: the number of random runs.")
    if num is not None and num < 1:
        raise block.value["num"].error("sweep.num", f"is {num}; expected 1 or more.")
    options["space"] = _read_space(block.value["space"], "sweep.space")
    return Sweep(**options)


def _read_space(node: Node, key: str) -> dict[str, Sequence[Any] | ValueRange]:
    if not isinstance(node.value, dict) or not node.value:
        example = "{model.width: [16, 32]}"
        raise node.error(key, f"is {node.shown()}; expected keys with values, such as {example}.")
    found: dict[str, Sequence[Any] | ValueRange] = {}
    problems: list[Problem] = []
    for name, child in node.value.items():
        with collecting(problems):
            found[str(name)] = _read_values(child, f"{key}.{name}")
    if problems:
        raise ConfigError(problems)
    return found


def _read_values(node: Node, key: str) -> Sequence[Any] | ValueRange:
    """A list, a range, or an interval with `low` and `high`."""
    if isinstance(node.value, list) and node.value:
        return list(node.plain())
    if isinstance(node.value, dict):
        return _read_interval(node, key)
    try:
        numbers = parse_range(node.value) if isinstance(node.value, str) else None
    except ValueError as error:
        raise node.error(key, str(error)) from None
    if numbers is None:
        expected = "a list of values, range(...), or {low: ..., high: ...}"
        raise node.error(key, f"is {node.shown()}; expected {expected}.")
    return numbers


def _read_interval(node: Node, key: str) -> ValueRange:
    values, problems = ConfigValidation(None).check(node.copy(key), INTERVAL)
    if problems:
        raise ConfigError(problems)
    found = ValueRange(**values)
    if not math.isfinite(found.high - found.low) or found.low >= found.high:
        raise node.error(key, f"low is {found.low} and high is {found.high}; expected low < high.")
    if found.log and found.low <= 0:
        raise node.error(key, f"low is {found.low}; with log it must be above 0.")
    if found.step is not None and found.step <= 0:
        raise node.error(key, f"step is {found.step}; expected a number above 0.")
    return found


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of a sweep. `name` is the chosen values, safe as the name of a directory, and the
    same every time."""

    name: str
    chosen: Mapping[str, Any]
    config: Config


def expand_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
) -> list[Variant]:
    """The runs of a sweep, in order; a single one called "single" where nothing is varied.

    Several values in overrides are combined as a grid, and win over the same key in the file's
    `sweep:` block.

    Args:
        path: the YAML file.
        overrides: as in `load_config`; `a.b=1,2` and `a.b=range(0, 3)` are several values.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import expand_sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("model: {width: 16}")
    ...     [variant.name for variant in expand_sweep(file, ["model.width=16,32"])]
    ['width=16', 'width=32']
    """
    base = SweptFile(path, overrides)
    combinations = list(itertools.islice(combine(base.sweep, base.origin), MAX_VARIANTS + 1))
    if len(combinations) > MAX_VARIANTS:
        raise base.origin.error(SWEEP, f"makes more than {MAX_VARIANTS} runs; vary fewer values.")
    names = name_variants(combinations)
    pairs = zip(names, combinations, strict=True)
    return [Variant(name, chosen, base.config(chosen)) for name, chosen in pairs]


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
) -> Sweep:
    """Read what a sweep varies, for a search that chooses the values itself; `space` is empty where
    nothing is varied.

    Args:
        path: The file, as for `expand_sweep`.
        overrides: As for `expand_sweep`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import read_sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("lr: 1\\nsweep: {lr: {low: 0.1, high: 1, log: true}}")
    ...     read_sweep(file).space
    {'lr': ValueRange(low=0.1, high=1, log=True, step=None)}
    """
    return SweptFile(path, overrides).sweep


def load_variant(
    path: str | Path,
    overrides: Sequence[str],
    chosen: Mapping[str, Any],
) -> Variant:
    """The run in which the keys of the space have these values.

    Args:
        path: the YAML file.
        overrides: as in `expand_sweep`.
        chosen: a value for each key that is varied.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import load_variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("lr: 1")
    ...     load_variant(file, ["lr=1,2,3"], {"lr": 2}).config.tree
    {'lr': 2}
    """
    base = SweptFile(path, overrides)
    return Variant(name_variants([chosen])[0], dict(chosen), base.config(chosen))


class SweptFile:
    """What all runs of a sweep have in common: the file, the fixed overrides, and the space."""

    def __init__(self, path: str | Path, overrides: Sequence[str]) -> None:
        self.path = path
        problems: list[Problem] = []
        parsed = parse_overrides(overrides, problems)
        fixed = [override for override in parsed if not override.is_sweep]
        varied = [override for override in parsed if override.is_sweep]
        self.marks = {override.key: override.mark for override in varied}
        self.root = read_root(path, problems)
        # Resolved once without the choices, so that a block may use variables and mistakes are
        # reported only once.
        root = self.root.copy()
        values: dict[str, Node] = {}
        for override in varied:
            values[override.key] = Node(list(override.values), COMMAND_LINE, None)
        root.value[VARIED] = Node(values, COMMAND_LINE, None)
        whole = finish(root, fixed, problems, path, os.environ)
        block = whole.root.value.pop(SWEEP, None)
        self.root.value.pop(SWEEP, None)
        self.fixed = [override for override in fixed if override.key.split(".")[0] != SWEEP]
        self.origin = Node(None, self.root.file, None) if block is None else block
        sweep = Sweep({}) if block is None else read_block(block)
        space = {**sweep.space, **whole.root.value[VARIED].plain()}
        self.sweep = replace(sweep, space=space)

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """The config in which the varied keys have these values."""
        changes = [self.change(key, value) for key, value in chosen.items()]
        return finish(self.root.copy(), [*self.fixed, *changes], (), self.path, os.environ)

    def change(self, key: str, value: Any) -> Override:
        mark = self.marks.get(key, "++" if key.startswith("+") else "")
        node = as_text(to_node(value, self.origin.file, self.origin.line))
        name = key.lstrip("+")
        return Override(name, mark, (node,), f"{name}=...", self.origin.file, self.origin.line)


def as_text(node: Node) -> Node:
    """The node with its text marked as resolved already: a `${` in it is no variable."""
    if isinstance(node.value, str):
        node.value = escaped(node.value)
    for _, child in node.children():
        as_text(child)
    return node


def combine(sweep: Sweep, origin: Node) -> Iterator[dict[str, Any]]:
    """The values of each run: all combinations, or `num` random ones."""
    if sweep.method == "optuna":
        raise origin.error(SWEEP, "optuna chooses values while it runs: there is no list of runs.")
    if sweep.method == "random":
        chooser = random.Random(sweep.seed)
        for _ in range(sweep.num or 0):
            yield {key: draw(values, chooser) for key, values in sweep.space.items()}
        return
    grids: list[Sequence[Any]] = []
    for key, values in sweep.space.items():
        if isinstance(values, ValueRange):
            if values.step is None:
                what = f"{key} is an interval without a step: list values, or use method: random."
                raise origin.error(SWEEP, what)
            values = values.values()
        grids.append(values)
    for choice in itertools.product(*grids):
        yield dict(zip(sweep.space, choice, strict=True))


def draw(values: Sequence[Any] | ValueRange, chooser: random.Random) -> Any:
    """One of the values, or a number from the interval."""
    if isinstance(values, ValueRange):
        return values.at(chooser.random())
    return chooser.choice(values)


def name_variants(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each, in characters that every file system takes.

    A name that is too long or not unique ends in a part of the hash of its values. The same values
    drawn twice are two runs: the second is called name-2.
    """
    plain = [_plain_name(chosen) for chosen in combinations]
    seen: dict[str, set[str]] = {}
    for name, chosen in zip(plain, combinations, strict=True):
        seen.setdefault(name.lower(), set()).add(_digest(chosen))
    names = []
    counts: Counter[str] = Counter()
    for name, chosen in zip(plain, combinations, strict=True):
        if len(name) > MAX_LENGTH or len(seen[name.lower()]) > 1:
            name = f"{name[: MAX_LENGTH - 9].rstrip('.-_')}-{_digest(chosen)}"
        counts[name.lower()] += 1
        number = counts[name.lower()]
        names.append(name if number == 1 else f"{name}-{number}")
    return names


def _plain_name(chosen: Mapping[str, Any]) -> str:
    keys = short_keys(chosen)
    parts = [f"{keys[key].lstrip('+')}={_name_of(value)}" for key, value in chosen.items()]
    return UNSAFE.sub("-", "_".join(parts)).strip(".-") or "single"


def _name_of(value: Any) -> str:
    if isinstance(value, dict):
        if "kind" in value:
            return str(value["kind"]).rpartition(".")[2]
        value = list(value.values())
    if isinstance(value, list):
        return "-".join(map(_name_of, value))
    return plain_text(value) if value is None or isinstance(value, bool) else str(value)


def _digest(chosen: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(chosen, default=str).encode()).hexdigest()[:8]

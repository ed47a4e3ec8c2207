"""One config per combination of values: comma lists and ranges in overrides, and the `sweep:` block
of a file."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from ..text import nearest
from .compose import RUN_KEYS, escaped, finish, folder_of, parse_overrides, read_root
from .naming import name_variants
from .overrides import RANGE, Override, parse_range
from .tree import COMMAND_LINE, Config, ConfigError, Node, Problem, to_node

METHODS = ("grid", "random", "optuna")
OPTIONS: dict[str, type[Any]] = {
    "method": str,
    "num": int,
    "seed": int,
    "metric": str,
    "direction": str,
}
SWEEP = "sweep"
# where the values of the command line are resolved; a name that no file uses
VARIED = "values of a sweep"
MAX_VARIANTS = 100_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, whole ones if both are.

    Args:
        low: The smallest number.
        high: The largest number.
        log: Whether the numbers are spread evenly over orders of magnitude.
        step: The distance of two numbers; None for any number in between.

    >>> from loopwright.config import Interval
    >>> Interval(0.001, 10.0, log=True).at(0.5)
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
        low, high = (self.low, self.high + 1) if self.is_whole else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        else:
            value = low + part * (high - low)
        return self.snapped(value)

    def snapped(self, value: float) -> float:
        """The number of the interval that is nearest from below: a whole one, or one on its
        steps."""
        if self.step is not None:
            value = self.low + math.floor(round((value - self.low) / self.step, 9)) * self.step
        if self.is_whole:
            return min(math.floor(value), int(self.high))
        return float(f"{min(value, self.high):.12g}")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is varied: for each key a list of values or an interval, and how they are combined.

    Args:
        space: The values by key: a list, or an `Interval`.
        method: "grid", "random" or "optuna".
        num: The number of runs, for "random" and "optuna".
        seed: Seeds the choice of "random" and "optuna".
        metric: The metric that "optuna" optimises.
        direction: "minimize" or "maximize".

    >>> from loopwright.config import Interval, Sweep
    >>> Sweep({"lr": Interval(0.001, 0.1, log=True), "seed": [1, 2]}, method="random", num=5).num
    5
    """

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

    Without `method` and `space` the block's keys are varied in a grid.
    """
    if not isinstance(block.value, dict) or not block.value:
        message = (
            f"is {block.shown()}; expected keys with lists of values, such as {{model.width: "
            "[16, 32]}."
        )
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
                block,
                "sweep.space",
                "is missing: it says which keys are varied, such as {model.width: [16, 32]}.",
            )
        if values.get("method") == "random" and "num" not in block.value:
            self.add(block, "sweep.num", "is missing: the number of random runs.")
        if "num" in values and values["num"] < 1:
            self.add(block.value["num"], "sweep.num", f"is {values['num']}; expected 1 or more.")
        return Sweep(**{"space": {}, **values})

    def allowed(self, block: Node, values: dict[str, Any], name: str, known: Sequence[str]) -> None:
        if name in values and values[name] not in known:
            self.add(
                block.value[name],
                f"sweep.{name}",
                f"{values[name]!r} is unknown; {nearest(values[name], known)}",
            )

    def space(self, node: Node, key: str) -> dict[str, Sequence[Any] | Interval]:
        if not isinstance(node.value, dict) or not node.value:
            self.add(node, key, f"is {node.shown()}; expected keys with lists of values.")
            return {}
        found = {
            str(name): self.values(child, f"{key}.{name}") for name, child in node.value.items()
        }
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
        self.add(
            node,
            key,
            f"is {node.shown()}; expected a list of values, range(...), or {{low: ..., high: "
            "...}.",
        )
        return None

    def interval(self, node: Node, key: str) -> Interval | None:
        values = node.plain()
        before = len(self.problems)
        for name, value in values.items():
            wanted: Any = bool if name == "log" else int | float
            if name not in {item.name for item in fields(Interval)}:
                self.add(
                    node.value[name],
                    f"{key}.{name}",
                    nearest(str(name), ["low", "high", "log", "step"]),
                )
            elif type(value) not in (get_args(wanted) or (wanted,)):
                self.add(
                    node.value[name],
                    f"{key}.{name}",
                    f"is {node.value[name].shown()}; expected {wanted}.",
                )
        if "low" not in values or "high" not in values:
            self.add(node, key, "an interval has low and high.")
        if len(self.problems) > before:
            return None
        interval = Interval(**values)
        if not math.isfinite(interval.high - interval.low) or interval.low >= interval.high:
            self.add(
                node,
                key,
                f"low is {interval.low} and high is {interval.high}; expected low < high.",
            )
        if interval.log and interval.low <= 0:
            self.add(node, key, f"low is {interval.low}; with log it must be above 0.")
        if interval.step is not None and interval.step <= 0:
            self.add(node, key, f"step is {interval.step}; expected a number above 0.")
        return interval if len(self.problems) == before else None


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
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
) -> list[Variant]:
    """The runs of a sweep, in order; a single one called "single" where nothing is varied.

    Several values in overrides are combined as a grid, and win over the same key in the file's
    `sweep:` block.

    Args:
        path: the YAML file.
        overrides: as in `load_config`; `a.b=1,2` and `a.b=range(0, 3)` are several values.
        environ: the variables of `${env:NAME}`.
        may_add: top-level keys that an override may set although the file does not.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import expand_sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("model: {width: 16}")
    ...     [variant.name for variant in expand_sweep(file, ["model.width=16,32"])]
    ['width=16', 'width=32']
    """
    base = Base(path, overrides, environ, may_add)
    combinations = list(itertools.islice(combine(base.sweep, base.origin), MAX_VARIANTS + 1))
    if len(combinations) > MAX_VARIANTS:
        raise ConfigError(
            [base.origin.problem(f"makes more than {MAX_VARIANTS} runs; vary fewer values.")]
        )
    names = name_variants(combinations)
    return [
        Variant(name, chosen, base.config(chosen))
        for name, chosen in zip(names, combinations, strict=True)
    ]


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
) -> Sweep:
    """Read what a sweep varies, for a search that chooses the values itself; `space` is empty where
    nothing is varied.

    Args:
        path: The file, as for `expand_sweep`.
        overrides: As for `expand_sweep`.
        environ: As for `expand_sweep`.
        may_add: As for `expand_sweep`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import read_sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("lr: 1\\nsweep: {lr: {low: 0.1, high: 1, log: true}}")
    ...     read_sweep(file).space
    {'lr': Interval(low=0.1, high=1, log=True, step=None)}
    """
    return Base(path, overrides, environ, may_add).sweep


def load_variant(
    path: str | Path,
    overrides: Sequence[str],
    chosen: Mapping[str, Any],
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
) -> Variant:
    """The run in which the keys of the space have these values.

    Args:
        path: the YAML file.
        overrides: as in `expand_sweep`.
        chosen: a value for each key that is varied.
        environ: the variables of `${env:NAME}`.
        may_add: top-level keys that an override may set although the file does not.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import load_variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("lr: 1")
    ...     load_variant(file, ["lr=1,2,3"], {"lr": 2}).config.tree
    {'lr': 2}
    """
    base = Base(path, overrides, environ, may_add)
    return Variant(name_variants([chosen])[0], dict(chosen), base.config(chosen))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sweep is written, for messages about it."""

    file: str
    line: int | None

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.line, SWEEP, message)


class Base:
    """What all runs of a sweep have in common: the file, the overrides with one value, and the
    space."""

    def __init__(
        self,
        path: str | Path,
        overrides: Sequence[str],
        environ: Mapping[str, str],
        may_add: Collection[str],
    ) -> None:
        self.environ, self.may_add, self.folder = environ, may_add, folder_of(path)
        problems: list[Problem] = []
        parsed = parse_overrides(overrides, problems)
        self.fixed = [override for override in parsed if not override.is_sweep]
        varied = {override.key: override for override in parsed if override.is_sweep}
        self.root = read_root(path, problems)
        # Resolved once without the choices, so that a block may use variables and mistakes are
        # reported only once.
        root = self.root.copy()
        listed = {
            key: Node(list(override.values), COMMAND_LINE, None) for key, override in varied.items()
        }
        root.value[VARIED] = Node(listed, COMMAND_LINE, None)
        whole = finish(root, self.fixed, problems, self.folder, environ=environ, may_add=may_add)
        block = whole.root.value.pop(SWEEP, None)
        self.root.value.pop(SWEEP, None)
        self.fixed = [override for override in self.fixed if override.key.split(".")[0] != SWEEP]
        self.origin = Origin(
            self.root.file if block is None else block.file, None if block is None else block.line
        )
        from_file = Sweep({}) if block is None else read_block(block)
        self.sweep = from_file.with_space({**from_file.space, **whole.root.value[VARIED].plain()})
        self.marks = {key: override.mark for key, override in varied.items()}

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """The config in which the varied keys have these values."""
        changes = [self.change(key, value) for key, value in chosen.items()]
        overrides = [*self.fixed, *changes]
        return finish(
            self.root.copy(), overrides, [], self.folder, environ=self.environ, may_add=self.may_add
        )

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


def combine(sweep: Sweep, origin: Origin) -> Iterator[dict[str, Any]]:
    """The values of each run: all combinations, or `num` random ones."""
    if sweep.method == "optuna":
        message = (
            "method: optuna chooses values while it runs; there is no list of runs beforehand."
        )
        raise ConfigError([origin.problem(message)])
    if sweep.method == "random":
        chooser = random.Random(sweep.seed)
        for _ in range(sweep.num or 0):
            yield {key: draw(values, chooser) for key, values in sweep.space.items()}
        return
    grids = {key: listed(key, values, origin) for key, values in sweep.space.items()}
    for choice in itertools.product(*grids.values()):
        yield dict(zip(grids, choice, strict=True))


def listed(key: str, values: Sequence[Any] | Interval, origin: Origin) -> Sequence[Any]:
    if not isinstance(values, Interval):
        return values
    if values.step is None:
        message = (
            f"{key} is an interval without a step, and a grid needs values: list them, or use "
            "method: random."
        )
        raise ConfigError([origin.problem(message)])
    count = math.floor(round((values.high - values.low) / values.step, 9)) + 1
    return [values.snapped(values.low + index * values.step) for index in range(count)]


def draw(values: Sequence[Any] | Interval, chooser: random.Random) -> Any:
    """One of the values, or a number from the interval."""
    return values.at(chooser.random()) if isinstance(values, Interval) else chooser.choice(values)

"""One config per combination of values: comma lists and ranges in overrides, and the `sweep:` block of a file."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .interpolation import escaped
from .loading import RUN_KEYS, finish, folder_of, parse_overrides, read_root
from .naming import name_variants
from .overrides import Override
from .problems import COMMAND_LINE, ConfigError, Problem
from .spaces import Interval, Sweep, read_block
from .tree import Config, Node, to_node

SWEEP = "sweep"
VARIED = "values of a sweep"  # where those of the command line are resolved; a name that no file uses
MAX_VARIANTS = 100_000


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of a sweep. `name` is the chosen values, safe as the name of a directory, and the same every time."""

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

    Several values in overrides are combined as a grid, and win over the same key in the file's `sweep:` block.
    """
    base = Base(path, overrides, environ, may_add)
    combinations = list(itertools.islice(combine(base.sweep, base.origin), MAX_VARIANTS + 1))
    if len(combinations) > MAX_VARIANTS:
        raise ConfigError([base.origin.problem(f"makes more than {MAX_VARIANTS} runs; vary fewer values.")])
    names = name_variants(combinations)
    return [Variant(name, chosen, base.config(chosen)) for name, chosen in zip(names, combinations, strict=True)]


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
) -> Sweep:
    """What is varied, for a search that chooses the values itself; `space` is empty where nothing is."""
    return Base(path, overrides, environ, may_add).sweep


def load_variant(
    path: str | Path,
    overrides: Sequence[str],
    chosen: Mapping[str, Any],
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
) -> Variant:
    """The run in which the keys of the space have these values."""
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
    """What all runs of a sweep have in common: the file, the overrides with one value, and the space."""

    def __init__(
        self, path: str | Path, overrides: Sequence[str], environ: Mapping[str, str], may_add: Collection[str]
    ) -> None:
        self.environ, self.may_add, self.folder = environ, may_add, folder_of(path)
        problems: list[Problem] = []
        parsed = parse_overrides(overrides, problems)
        self.fixed = [override for override in parsed if not override.is_sweep]
        varied = {override.key: override for override in parsed if override.is_sweep}
        self.root = read_root(path, problems)
        # Resolved once without the choices, so that a block may use variables and mistakes are reported only once.
        root = self.root.copy()
        listed = {key: Node(list(override.values), COMMAND_LINE, None) for key, override in varied.items()}
        root.value[VARIED] = Node(listed, COMMAND_LINE, None)
        whole = finish(root, self.fixed, problems, self.folder, environ=environ, may_add=may_add)
        block = whole.root.value.pop(SWEEP, None)
        self.root.value.pop(SWEEP, None)
        self.fixed = [override for override in self.fixed if override.key.split(".")[0] != SWEEP]
        self.origin = Origin(self.root.file if block is None else block.file, None if block is None else block.line)
        from_file = Sweep({}) if block is None else read_block(block)
        self.sweep = from_file.with_space({**from_file.space, **whole.root.value[VARIED].plain()})
        self.marks = {key: override.mark for key, override in varied.items()}

    def config(self, chosen: Mapping[str, Any]) -> Config:
        """The config in which the varied keys have these values."""
        changes = [self.change(key, value) for key, value in chosen.items()]
        overrides = [*self.fixed, *changes]
        return finish(self.root.copy(), overrides, [], self.folder, environ=self.environ, may_add=self.may_add)

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
    """The values of each run: all combinations, or as many random ones as are asked for."""
    if sweep.method == "optuna":
        message = "method: optuna chooses values while it runs; there is no list of runs beforehand."
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
        message = f"{key} is an interval without a step, and a grid needs values: list them, or use method: random."
        raise ConfigError([origin.problem(message)])
    count = math.floor(round((values.high - values.low) / values.step, 9)) + 1
    return [values.snapped(values.low + index * values.step) for index in range(count)]


def draw(values: Sequence[Any] | Interval, chooser: random.Random) -> Any:
    """One of the values, or a number from the interval."""
    return values.at(chooser.random()) if isinstance(values, Interval) else chooser.choice(values)

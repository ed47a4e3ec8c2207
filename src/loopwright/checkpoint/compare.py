"""Where two checkpoints differ: their metadata first, then every tensor and value, in the order of
the state."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from .format import read_checkpoint
from .inspect import find_checkpoint
from .tree import ATOMS, Tree, join_path
from .weights import load_weights

# never the same twice, and never meant to be
CLOCKS = frozenset({"progress/seconds", "progress/call_seconds"})
BLOCK = 1 << 22  # values compared at once, so that large tensors need little memory


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two states differ, and how, in words."""

    path: str
    what: str
    is_tensor: bool = False
    max_abs: float | None = None  # where both have a tensor of one type and shape


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """All differences between two checkpoints, or between two sets of weights."""

    first: Path
    second: Path
    meta: tuple[Difference, ...]
    state: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        return not self.meta and not self.state

    @property
    def first_tensor(self) -> Difference | None:
        """The first tensor in which they differ."""
        return next((difference for difference in self.state if difference.is_tensor), None)


def diff_checkpoints(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, model: str | None = None
) -> CheckpointDiff:
    """Compare two checkpoints bit for bit, after verifying both.

    Where one of them is a file of weights, or `model` is named, only weights are compared. The time
    that training took is left out: it is the one part of a state that no two runs share.

    Args:
        first: A checkpoint, a file of weights, or a run, of which the newest resume point is taken.
        second: The same.
        model: The model whose weights to compare.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import diff_checkpoints, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"rate": 0.1, "numbers": [1, 2]})
        ...     write_checkpoint(f"{folder}/second", {"rate": 0.2, "numbers": [1, 2]})
        ...     [found.path for found in diff_checkpoints(f"{folder}/first", f"{folder}/second").state]
        ['rate']
    """
    one, two = (
        source if source.is_file() else find_checkpoint(source)
        for source in (Path(first), Path(second))
    )
    if model is not None or one.is_file() or two.is_file():
        weights = [load_weights(path, model=model) for path in (one, two)]
        return CheckpointDiff(one, two, (), compare_trees(*weights))
    own, other = (read_checkpoint(path, verify=False, copies=False) for path in (one, two))
    return CheckpointDiff(
        one, two, compare_trees(own.meta, other.meta), compare_trees(own.tree, other.tree)
    )


def compare_trees(first: Tree, second: Tree) -> tuple[Difference, ...]:
    """Every place in which two state trees differ."""
    walk = _Walk()
    try:
        walk.compare(first, second, "")
    except RecursionError:
        raise CheckpointError(
            "state-too-deep", "The states are nested too deeply to be compared."
        ) from None
    return tuple(walk.found)


class _Walk:
    def __init__(self) -> None:
        self.found: list[Difference] = []

    def compare(self, first: Tree, second: Tree, path: str) -> None:
        if path in CLOCKS:
            return
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            self.compare_tensors(first, second, path)
        elif isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
            self.compare_arrays(first, second, path)
        elif isinstance(first, Mapping) and isinstance(second, Mapping):
            self.compare_mappings(first, second, path)
        elif type(first) is type(second) and isinstance(first, list | tuple):
            self.compare_sequences(first, second, path)
        elif not _is_same(first, second):
            self.add_unlike(first, second, path)

    def compare_mappings(
        self, first: Mapping[Tree, Tree], second: Mapping[Tree, Tree], path: str
    ) -> None:
        for key, value in first.items():
            if key in second:
                self.compare(value, second[key], join_path(path, key))
            else:
                self.add_missing(value, join_path(path, key), "first")
        for key, value in second.items():
            if key not in first:
                self.add_missing(value, join_path(path, key), "second")

    def compare_sequences(self, first: Tree, second: Tree, path: str) -> None:
        # one line for a curve, not one for each point
        if {*map(type, first), *map(type, second)} <= ATOMS:
            unlike = [
                i for i, pair in enumerate(zip(first, second, strict=False)) if not _is_same(*pair)
            ]
            at = unlike[0] if unlike else min(len(first), len(second))
            if unlike or len(first) != len(second):
                entries = (
                    _brief(values[at]) if at < len(values) else "the end"
                    for values in (first, second)
                )
                lengths = f"{len(first)} / {len(second)} entries"
                self.found.append(
                    Difference(path, f"{lengths}, from entry {at} on: {' / '.join(entries)}")
                )
            return
        # entry by entry, as of two dicts by number
        self.compare_mappings(dict(enumerate(first)), dict(enumerate(second)), path)

    def compare_arrays(self, first: Tree, second: Tree, path: str) -> None:
        if first.dtype == second.dtype and first.dtype.kind in "biufc" and first.dtype.isnative:
            self.compare_tensors(torch.from_numpy(first), torch.from_numpy(second), path)
        elif (
            first.dtype != second.dtype
            or first.shape != second.shape
            or first.tobytes() != second.tobytes()
        ):
            self.add_unlike(first, second, path)

    def compare_tensors(self, first: Tensor, second: Tensor, path: str) -> None:
        if first.dtype != second.dtype or first.shape != second.shape:
            self.add_unlike(first, second, path)
            return
        count, largest = _distance(first, second)
        if count:
            what = (
                f"{_brief(first)}: {count} of {first.numel()} values differ, max abs "
                f"difference {largest:.6g}"
            )
            self.found.append(Difference(path, what, is_tensor=True, max_abs=largest))

    def add_unlike(self, first: Tree, second: Tree, path: str) -> None:
        is_tensor = any(isinstance(value, Tensor | np.ndarray) for value in (first, second))
        self.found.append(Difference(path, f"{_brief(first)} / {_brief(second)}", is_tensor))

    def add_missing(self, value: Tree, path: str, side: str) -> None:
        if path not in CLOCKS:
            self.found.append(
                Difference(path, f"only in the {side}: {_brief(value)}", isinstance(value, Tensor))
            )


def _distance(first: Tensor, second: Tensor) -> tuple[int, float]:
    """How many values are not the same bits, and how far apart two of them are at most; NaN where
    one is NaN."""
    count = 0
    largest = torch.tensor(0.0, dtype=torch.float64)
    blocks = (tensor.detach().reshape(-1).split(BLOCK) for tensor in (first, second))  # type: ignore[no-untyped-call]
    for one, two in zip(*blocks, strict=True):
        bits = one.view(torch.uint8) != two.view(torch.uint8) if one.numel() else torch.zeros(0)
        if not bits.any():
            continue
        unlike = bits.view(one.numel(), -1).any(dim=1)
        count += int(unlike.sum())
        wide = torch.complex128 if one.is_complex() else torch.float64
        apart = (one[unlike].to(wide) - two[unlike].to(wide)).abs()
        largest = torch.maximum(largest, apart.max())
    return count, float(largest)


def _is_same(first: Tree, second: Tree) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, complex):
        return _is_same(first.real, second.real) and _is_same(first.imag, second.imag)
    if isinstance(first, np.generic):
        return bool(first.dtype == second.dtype and first.tobytes() == second.tobytes())
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    return bool(first == second)


def _brief(value: Tree) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

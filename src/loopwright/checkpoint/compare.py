"""Where two checkpoints differ: their metadata first, then every tensor and value, in the order of
the state."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from .format import read_checkpoint
from .inspect import find_checkpoint
from .tensors import ATOMS, Tree, join_path
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
    try:
        return tuple(_differences(first, second, ""))
    except RecursionError:
        raise CheckpointError(
            "state-too-deep", "The states are nested too deeply to be compared."
        ) from None


def _differences(first: Tree, second: Tree, path: str) -> Iterator[Difference]:
    if path in CLOCKS:
        return
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        yield from _of_mappings(first, second, path)
        return
    if type(first) is type(second) and isinstance(first, list | tuple):
        if {*map(type, first), *map(type, second)} <= ATOMS:
            yield from _of_values(first, second, path)
        else:  # entry by entry, as of two dicts by number
            yield from _of_mappings(dict(enumerate(first)), dict(enumerate(second)), path)
        return
    is_tensor = isinstance(first, Tensor | np.ndarray) or isinstance(second, Tensor | np.ndarray)
    is_one_kind = isinstance(first, Tensor) == isinstance(second, Tensor)
    if is_one_kind and _has_values(first) and _has_values(second):
        if first.dtype == second.dtype and first.shape == second.shape:
            count, largest = _distance(torch.as_tensor(first), torch.as_tensor(second))
            if count:
                what = f"{_brief(first)}: {count} of {torch.as_tensor(first).numel()} values differ"
                text = f"{what}, max abs difference {largest:.6g}"
                yield Difference(path, text, is_tensor=True, max_abs=largest)
            return
    elif _is_same(first, second):
        return
    yield Difference(path, f"{_brief(first)} / {_brief(second)}", is_tensor)


def _has_values(value: Tree) -> bool:
    """Whether it is a tensor, or an array of numbers that can be one."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and value.dtype.isnative
    return isinstance(value, Tensor)


def _of_mappings(
    first: Mapping[Tree, Tree], second: Mapping[Tree, Tree], path: str
) -> Iterator[Difference]:
    for key in [*first, *(key for key in second if key not in first)]:
        below = join_path(path, key)
        if key in first and key in second:
            yield from _differences(first[key], second[key], below)
        elif below not in CLOCKS:
            side, value = ("first", first[key]) if key in first else ("second", second[key])
            what = f"only in the {side}: {_brief(value)}"
            yield Difference(below, what, isinstance(value, Tensor))


def _of_values(first: Tree, second: Tree, path: str) -> Iterator[Difference]:
    """One line for a curve, not one for each point."""
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    at = next((i for i, pair in pairs if not _is_same(*pair)), shorter)
    if at < shorter or len(first) != len(second):
        entries = [_brief(each[at]) if at < len(each) else "the end" for each in (first, second)]
        lengths = f"{len(first)} / {len(second)} entries"
        yield Difference(path, f"{lengths}, from entry {at} on: {' / '.join(entries)}")


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
    if isinstance(first, np.generic | np.ndarray):
        is_alike = first.dtype == second.dtype and first.shape == second.shape
        return bool(is_alike and first.tobytes() == second.tobytes())
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

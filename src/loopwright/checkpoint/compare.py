"""Where two states differ: which tensors and values, and tensors by how much."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .format import read_checkpoint
from .inspect import find_checkpoint
from .tensors import ATOMS, StoredTensor, Tree, join_path
from .weights import load_weights

# never the same twice, and never meant to be
CLOCKS = frozenset({"progress/seconds", "progress/call_seconds"})
BLOCK = 1 << 22  # values compared at once, so that large tensors need little memory
NOTHING = object()  # in place of a value that one state does not have


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two states differ, and how, in words."""

    path: str
    what: str
    max_abs: float | None = None  # where both have a tensor of one type and shape


def diff_checkpoints(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, model: str | None = None
) -> tuple[Difference, ...]:
    """List what differs between two checkpoints, bit for bit, after verifying both.

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
        ...     [found.path for found in diff_checkpoints(f"{folder}/first", f"{folder}/second")]
        ['rate']
    """
    paths = [Path(first), Path(second)]
    paths = [path if path.is_file() else find_checkpoint(path) for path in paths]
    if model is not None or any(path.is_file() for path in paths):
        own, other = (load_weights(path, model=model) for path in paths)
    else:
        own, other = (read_checkpoint(path, verify=False, lazy=True).tree for path in paths)
    return compare_trees(own, other)


def compare_trees(first: Tree, second: Tree) -> tuple[Difference, ...]:
    """Every place in which two state trees differ, in the order of the first."""
    own = dict(_entries(first, ""))
    other = dict(_entries(second, ""))
    differences = []
    for path in dict.fromkeys((*own, *other)):
        if path in CLOCKS:
            continue
        found = _compare(path, own.get(path, NOTHING), other.get(path, NOTHING))
        if found is not None:
            differences.append(found)
    return tuple(differences)


def _entries(tree: Tree, path: str) -> Iterator[tuple[str, Tree]]:
    """The values of a tree by path; a list of numbers is one value."""
    if isinstance(tree, list | tuple) and not {*map(type, tree)} <= ATOMS:
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping) or not tree:
        yield path, tree
        return
    for key, item in tree.items():
        yield from _entries(item, join_path(path, key))


def _compare(path: str, first: Tree, second: Tree) -> Difference | None:
    is_one_kind = type(first) is type(second)
    ours = _as_tensor(first)
    theirs = _as_tensor(second)
    if not is_one_kind or ours is None or theirs is None:
        is_same = is_one_kind and _exact(first) == _exact(second)
        return None if is_same else Difference(path, f"{_brief(first)} / {_brief(second)}")
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return Difference(path, f"{_brief(first)} / {_brief(second)}")
    count, largest = _distance(ours, theirs)
    if not count:
        return None
    what = f"{_brief(first)}: {count} of {ours.numel()} values differ"
    return Difference(path, f"{what}, max abs difference {largest:.6g}", largest)


def _exact(value: Tree) -> Tree:
    """What two equal values have in common, and no others: -0.0 is not 0.0, and NaN equals itself."""
    is_array = isinstance(value, np.ndarray)
    return (value.dtype, value.shape, value.tobytes()) if is_array else repr(value)


def _as_tensor(value: Tree) -> Tensor | None:
    """A tensor, also one in a file; an array of numbers as a tensor."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.isnative:
        return torch.as_tensor(value)
    if isinstance(value, StoredTensor):
        return value.read()
    return value if isinstance(value, Tensor) else None


def _distance(first: Tensor, second: Tensor) -> tuple[int, float]:
    """How many values are not the same bits, and how far apart two of them are at most; NaN where
    one is NaN."""
    count = 0
    largest = torch.tensor(0.0, dtype=torch.float64)
    blocks = (tensor.detach().reshape(-1).split(BLOCK) for tensor in (first, second))  # type: ignore[no-untyped-call]
    for one, two in zip(*blocks, strict=True):
        if one.numel() == 0:
            continue
        bits = one.view(torch.uint8) != two.view(torch.uint8)
        unlike = bits.view(one.numel(), -1).any(dim=1)
        if unlike.any():
            count += int(unlike.sum())
            wide = torch.complex128 if one.is_complex() else torch.float64
            apart = (one[unlike].to(wide) - two[unlike].to(wide)).abs()
            largest = torch.maximum(largest, apart.max())
    return count, float(largest)


def _brief(value: Tree) -> str:
    if value is NOTHING:
        return "nothing"
    if isinstance(value, Tensor | StoredTensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""A copy of a state tree in host memory, made quickly and into the same buffers every time."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopwright.checkpoint.encoding import encode_with_pieces
from loopwright.checkpoint.pieces import Group, Piece, is_dtensor, piece_of
from loopwright.checkpoint.tree import ATOMS, TensorKey, Tree, plain_tensor, tensor_key
from loopwright.errors import CheckpointError

BufferKey: TypeAlias = tuple[tuple[int, ...], torch.dtype, bool]


class SnapshotBuffers:
    """Memory for one snapshot; taking the next overwrites the one before.

    It holds one copy of the state, pinned where the state is on a CUDA device. With a `group`, it holds only what
    this process writes of a checkpoint; without, all that this process has, a part of each tensor that is spread.
    """

    def __init__(self, group: Group | None = None) -> None:
        self._group = group
        self._buffers: dict[BufferKey, deque[Tensor]] = {}

    def take(self, tree: Tree) -> Tree:
        """The tree as it is now; what happens to the original afterwards does not show in it."""
        copier, copied = self._walk(tree)
        copier.finish()
        self._buffers = copier.used
        return copied

    def reserve(self, tree: Tree) -> Callable[[], None]:
        """Set memory aside for trees of this form; calling the result makes the system really provide it.

        The first snapshot costs several times as much as later ones without, since memory is given page by page
        when first written. That part may be done on another thread.
        """
        copier, _ = self._walk(tree)
        self._buffers = copier.used
        return copier.touch

    def _walk(self, tree: Tree) -> tuple[_Copier, Tree]:
        copier = _Copier(self._buffers, self._group)
        try:
            return copier, copier.copy(tree)
        except (CheckpointError, RecursionError):
            encode_with_pieces(tree)  # raises the error that names the place
            raise

    def release(self) -> None:
        """Give the memory back."""
        self._buffers = {}


def snapshot(tree: Tree, buffers: SnapshotBuffers | None = None) -> Tree:
    """A copy of the tree in host memory; with `buffers`, in theirs."""
    return (buffers or SnapshotBuffers()).take(tree)


class _UnknownTypeError(CheckpointError):
    pass


class _Copier:
    def __init__(self, free: dict[BufferKey, deque[Tensor]], group: Group | None) -> None:
        self.is_written = group is None or group.is_main
        self.is_shared = group is not None
        self.free = {key: deque(buffers) for key, buffers in free.items()}
        self.used: dict[BufferKey, deque[Tensor]] = {}
        self.shared: dict[TensorKey, Tensor] = {}
        self.targets: list[Tensor] = []
        self.sources: list[Tensor] = []

    def copy(self, value: Tree) -> Tree:
        kind = type(value)
        if kind in ATOMS:
            return value
        copy = _BY_TYPE.get(kind) or _by_ancestor(value)
        return copy(self, value)

    def touch(self) -> None:
        """Write to every buffer, so that its memory is really there."""
        for target in self.targets:
            target.zero_()

    def finish(self) -> None:
        """Copy all tensors at once, and wait for devices that copy in the background."""
        if not self.targets:
            return
        with torch.no_grad():
            torch._foreach_copy_(self.targets, self.sources, non_blocking=True)
        for device in {source.device for source in self.sources if source.device.type != "cpu"}:
            torch.accelerator.synchronize(device)

    def copy_tensor(self, value: Tensor) -> Tensor:
        source = plain_tensor(value, "snapshot")
        return self.copy_values(source) if self.is_written else torch.empty(0, dtype=source.dtype)

    def copy_dtensor(self, value: Tree) -> Piece:
        return self.copy_piece(piece_of(value, "snapshot"))

    def copy_piece(self, piece: Piece) -> Piece:
        source = plain_tensor(piece.local, "snapshot")
        if self.is_shared and not piece.is_written:
            return replace(piece, local=source.new_empty((0,) * source.dim(), device="cpu"), is_primary=False)
        return replace(piece, local=self.copy_values(source))

    def copy_values(self, source: Tensor) -> Tensor:
        key = tensor_key(source)
        if key is not None and key in self.shared:
            return self.shared[key]
        target = self.buffer(source)
        if key is not None:
            self.shared[key] = target
            self.targets.append(target)
            self.sources.append(source)
        return target

    def buffer(self, source: Tensor) -> Tensor:
        pinned = source.is_cuda
        key = (tuple(source.shape), source.dtype, pinned)
        free = self.free.get(key)
        target = free.popleft() if free else torch.empty(key[0], dtype=source.dtype, pin_memory=pinned)
        self.used.setdefault(key, deque()).append(target)
        return target

    def copy_list(self, value: list[Tree]) -> list[Tree]:
        if set(map(type, value)) <= ATOMS:
            return value.copy()
        return [self.copy(item) for item in value]

    def copy_tuple(self, value: tuple[Tree, ...]) -> tuple[Tree, ...]:
        return tuple(self.copy(item) for item in value)

    def copy_dict(self, value: dict[Tree, Tree]) -> dict[Tree, Tree]:
        return {key: self.copy(item) for key, item in value.items()}

    def copy_counter(self, value: Counter[Tree]) -> Counter[Tree]:
        return value.copy()

    def copy_ordered(self, value: OrderedDict[Tree, Tree]) -> OrderedDict[Tree, Tree]:
        copied = OrderedDict(self.copy_dict(value))
        if (metadata := getattr(value, "_metadata", None)) is not None:
            copied._metadata = self.copy(metadata)  # type: ignore[attr-defined]
        return copied

    def copy_array(self, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tree:
        return value.copy()

    def copy_same(self, value: Tree) -> Tree:
        return value


def _by_ancestor(value: Tree) -> Callable[[_Copier, Tree], Tree]:
    if is_dtensor(value):
        return _Copier.copy_dtensor
    for kind, copy in _BY_ANCESTOR:
        if isinstance(value, kind):
            return copy
    raise _UnknownTypeError


_BY_TYPE: dict[type, Callable[[_Copier, Tree], Tree]] = {
    Tensor: _Copier.copy_tensor,
    torch.nn.Parameter: _Copier.copy_tensor,
    Piece: _Copier.copy_piece,
    dict: _Copier.copy_dict,
    OrderedDict: _Copier.copy_ordered,
    Counter: _Copier.copy_counter,
    list: _Copier.copy_list,
    tuple: _Copier.copy_tuple,
    torch.Size: _Copier.copy_tuple,
    np.ndarray: _Copier.copy_array,
    torch.dtype: _Copier.copy_same,
    torch.device: _Copier.copy_same,
}
_BY_ANCESTOR: tuple[tuple[type, Callable[[_Copier, Tree], Tree]], ...] = (
    (Tensor, _Copier.copy_tensor),
    (np.generic, _Copier.copy_same),
    (PurePath, _Copier.copy_same),
    (dict, _Copier.copy_dict),
)

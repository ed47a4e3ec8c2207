"""Tensors that are still in their checkpoint: read whole, or only the region that a process needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .headers import read_header
from .layout import PIECES, Box, Layout, StoredPiece, read_layouts, whole
from .manifest import Manifest
from .tensors import DTYPES, open_tensors

DTYPE_NAMES = {name: dtype for dtype, name in DTYPES.items()}


class StoredFiles:
    """The safetensors files of one checkpoint, mapped when first needed and then kept open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[str, Any] = {}

    def read(self, piece: StoredPiece, region: Box) -> Tensor:
        """A region of one entry, mapped: to be copied, since it changes if the file does."""
        path = self.directory / piece.file
        try:
            if piece.file not in self._open:
                self._open[piece.file] = open_tensors(path)
            tensor: Tensor = self._open[piece.file].get_slice(piece.name)[region.slices]
        except Exception as error:  # the reader has no common error type, and the file is untrusted
            raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
        return tensor


class StoredTensor:
    """A tensor in a checkpoint, of which only the description was read so far."""

    def __init__(self, files: StoredFiles, layout: Layout, dtype: torch.dtype | None = None) -> None:
        self.layout = layout
        self.stored_dtype = _dtype(layout.dtype)
        self.dtype = dtype or self.stored_dtype
        self._files = files

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.layout.shape[:-1] if self._is_pairs else self.layout.shape)

    @property
    def _is_pairs(self) -> bool:
        """Whether complex numbers are stored as pairs of real ones."""
        return self.dtype.is_complex and not self.stored_dtype.is_complex

    def viewed_as(self, dtype: torch.dtype) -> StoredTensor:
        """The same memory taken for values of another type, for types that the file format does not have."""
        return StoredTensor(self._files, self.layout, dtype)

    def read(self) -> Tensor:
        """All of it, in memory of its own."""
        return self._read(whole(tuple(self.shape)))

    def read_box(self, offsets: Iterable[int], shape: Iterable[int]) -> Tensor:
        """A region of it, in memory of its own; only the pieces that overlap it are touched."""
        box = Box(tuple(offsets), tuple(shape))
        if not box.fits(tuple(self.shape)):
            raise CheckpointError(
                f"The region at {list(box.offsets)} of {list(box.shape)} is not inside a tensor of {list(self.shape)}."
            )
        return self._read(box)

    def _read(self, box: Box) -> Tensor:
        if self._is_pairs:
            box = Box((*box.offsets, 0), (*box.shape, 2))
        try:
            values = torch.empty(box.shape, dtype=self.stored_dtype)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise CheckpointError(f"There is no memory for a tensor of {list(box.shape)}: {error}") from error
        for piece in self.layout.pieces:
            if (shared := piece.box.overlap(box)) is not None:
                target = values[shared.relative_to(box.offsets).slices]
                target.copy_(self._files.read(piece, shared.relative_to(piece.box.offsets)))
        if self.dtype == self.stored_dtype:
            return values
        return torch.view_as_complex(values) if self._is_pairs else values.view(self.dtype)

    def __repr__(self) -> str:
        return f"StoredTensor({list(self.shape)}, {self.dtype}, pieces={len(self.layout.pieces)})"


def stored_tensors(directory: Path, file: str, files: StoredFiles) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a file that holds them whole."""
    for info in read_header(directory / file):
        piece = StoredPiece(file, info.tied_to or info.name, whole(info.shape))
        yield info.name, StoredTensor(files, Layout(info.dtype, info.shape, (piece,)))


def stored_pieces(directory: Path, manifest: Manifest, files: StoredFiles) -> dict[str, StoredTensor]:
    """The tensors of a checkpoint that several processes wrote piece by piece."""
    if PIECES not in manifest.files:
        return {}
    layouts = read_layouts(directory, manifest.files)
    return {name: StoredTensor(files, layout) for name, layout in layouts.items()}


def read_pieces(directory: Path, manifest: Manifest, prefix: str = "") -> dict[str, Tensor]:
    """Those tensors in memory, put together; tied ones, whose pieces are the same, as one tensor."""
    tensors: dict[str, Tensor] = {}
    read: dict[Layout, Tensor] = {}
    for name, stored in stored_pieces(directory, manifest, StoredFiles(directory)).items():
        if not name.startswith(prefix):
            continue
        is_empty = math.prod(stored.layout.shape) == 0
        tensors[name] = stored.read() if is_empty or stored.layout not in read else read[stored.layout]
        read[stored.layout] = tensors[name]
    return tensors


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPE_NAMES:
        raise CheckpointError(f"The checkpoint holds a tensor of type {name!r:.40}, which this version cannot read.")
    return DTYPE_NAMES[name]

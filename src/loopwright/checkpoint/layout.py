"""Where the pieces of a tensor are that several processes wrote, and whether they make up the whole of it.

`pieces.json` of a checkpoint lists, for every such tensor, its type and shape and the box that each piece fills.
Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from ..errors import CheckpointError
from .headers import Json, TensorInfo, parse_json, read_header

PIECES = "pieces.json"

Numbers: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A region of a tensor: where it begins in each dimension, and how far it reaches."""

    offsets: Numbers
    shape: Numbers

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))

    def overlap(self, other: Box) -> Box | None:
        """The region that both share, None where there is none."""
        starts = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(min(end, end2) - start for start, end, end2 in zip(starts, self._ends, other._ends, strict=True))
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def relative_to(self, origin: Numbers) -> Box:
        return Box(tuple(a - b for a, b in zip(self.offsets, origin, strict=True)), self.shape)

    def fits(self, shape: Numbers) -> bool:
        """Whether it lies inside a tensor of this shape."""
        if len(self.offsets) != len(shape) or len(self.shape) != len(shape):
            return False
        return all(start >= 0 and size >= 0 for start, size in zip(self.offsets, self.shape, strict=True)) and all(
            end <= size for end, size in zip(self._ends, shape, strict=True)
        )

    @property
    def _ends(self) -> Numbers:
        return tuple(start + size for start, size in zip(self.offsets, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A box of a tensor, and the entry of the file that holds it."""

    file: str
    name: str
    box: Box


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor in a checkpoint: its type as stored, its shape, and the pieces it consists of."""

    dtype: str
    shape: Numbers
    pieces: tuple[StoredPiece, ...]

    def find_problem(self) -> str | None:
        """Why the pieces do not cover the tensor exactly once, None where they do."""
        return _find_gap(self.shape, tuple(piece.box for piece in self.pieces))


def whole(shape: Numbers) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def layouts_bytes(layouts: Mapping[str, Layout]) -> bytes:
    """The table of pieces, as it is written."""
    content = {"tensors": {name: asdict(layout) for name, layout in layouts.items()}}
    return json.dumps(content, separators=(",", ":")).encode()


def read_layouts(directory: Path, files: Iterable[str]) -> dict[str, Layout]:
    """The tensors of a checkpoint that are in pieces, once the pieces are known to be there and to make them up."""
    path = directory / PIECES
    try:
        content = parse_json(path.read_bytes(), str(path))
        layouts = {name: _layout(entry) for name, entry in table_of(table_of(content)["tensors"]).items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is malformed ({error!r}).") from None
    headers = {name: _entries(directory / name) for name in set(files) & _files_of(layouts)}
    for name, layout in layouts.items():
        if problem := next(_misfits(layout, headers), None) or layout.find_problem():
            raise CheckpointError(f"{path} does not describe {name!r} correctly: {problem}.")
    return layouts


def read_box(entry: Mapping[str, Json]) -> Box:
    """The region that a table describes."""
    return Box(numbers_of(entry["offsets"]), numbers_of(entry["shape"]))


def table_of(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.60}")
    return value


def tables_of(value: Json) -> list[dict[str, Json]]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r:.60}")
    return [table_of(item) for item in value]


def text_of(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def numbers_of(value: Json) -> Numbers:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise TypeError(f"expected a list of sizes, found {value!r:.60}")
    return tuple(item for item in value if isinstance(item, int))


def _layout(value: Json) -> Layout:
    entry = table_of(value)
    pieces = tuple(
        StoredPiece(text_of(piece["file"]), text_of(piece["name"]), read_box(table_of(piece["box"])))
        for piece in tables_of(entry["pieces"])
    )
    return Layout(text_of(entry["dtype"]), numbers_of(entry["shape"]), pieces)


def _files_of(layouts: Mapping[str, Layout]) -> set[str]:
    return {piece.file for layout in layouts.values() for piece in layout.pieces}


def _entries(path: str | os.PathLike[str]) -> dict[str, TensorInfo]:
    return {info.name: info for info in read_header(path)}


def _misfits(layout: Layout, headers: Mapping[str, Mapping[str, TensorInfo]]) -> Iterator[str]:
    """What the files hold otherwise than the table says."""
    for piece in layout.pieces:
        info = headers.get(piece.file, {}).get(piece.name)
        if info is None:
            yield f"{piece.file!r} with its entry {piece.name!r} is not part of the checkpoint"
        elif (info.dtype, info.shape) != (layout.dtype, piece.box.shape):
            yield f"{piece.file} holds {info.dtype} {list(info.shape)}, not {layout.dtype} {list(piece.box.shape)}"


@lru_cache(maxsize=1024)  # most tensors of a model are cut the same way
def _find_gap(shape: Numbers, boxes: tuple[Box, ...]) -> str | None:
    import numpy as np  # only here: listing checkpoints does without

    for box in boxes:
        if not box.fits(shape):
            return f"the piece at {list(box.offsets)} of {list(box.shape)} lies outside its shape {list(shape)}"
    filled = [box for box in boxes if box.num_values]
    if filled and shape:
        starts = np.array([box.offsets for box in filled])
        ends = starts + np.array([box.shape for box in filled])
        for box, start, end in zip(filled, starts, ends, strict=True):
            if ((starts < end) & (start < ends)).all(axis=1).sum() > 1:
                return f"the piece at {list(box.offsets)} of {list(box.shape)} overlaps another"
    count, total = sum(box.num_values for box in filled), math.prod(shape)
    return None if count == total else f"its pieces hold {count} values instead of {total}"

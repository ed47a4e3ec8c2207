"""Where the shards of a tensor are that several processes wrote, and whether they make up the whole
of it.

`pieces.json` of a checkpoint lists, for every such tensor, its type and shape and the box that each
shard fills. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import CheckpointError
from .atomic import FileRecord

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
MAX_DEPTH = 100  # of JSON in JSON
# bytes of a file or a text of a run that are read; a run writes thousands of them
LARGEST_TEXT = 32 << 20


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that the system does not let us read."""
    return CheckpointError("unreadable-file", f"{path} cannot be read: {error}")


def read_limited(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """The content of a file of a run, which may hold anything: a file that is too large is not
    read.

    Raises:
        CheckpointError: The file has more bytes than `largest`.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > largest else file.read(largest + 1)  # a device has no size
    if size > largest or len(data) > largest:
        raise CheckpointError(
            "file-too-large",
            f"{path} has {max(size, len(data)):,} bytes and is not read: Loopwright writes no "
            f"such file of more than {largest:,} bytes. Restore it from a copy, or move it away.",
        )
    return data


def read_json(path: Path, largest: int = LARGEST_TEXT) -> Json:
    """JSON from a file of a run; an error where it is too large, or nested deeper than a reader can
    follow."""
    data = read_limited(path, largest)
    value = parse_json(data, str(path))
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deeper(value):
        raise CheckpointError(
            "file-too-deep",
            f"{path} is nested more than {MAX_DEPTH} levels deep: restore it from a copy.",
        )
    return value


def _is_deeper(value: Json) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                inside += item.values()
            elif isinstance(item, list):
                inside += item
        level = inside
    return bool(level)


def parse_json(data: bytes, name: str) -> Json:
    """JSON from untrusted bytes; `name` is the file that the error names."""
    try:
        return json.loads(data)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            "invalid-json", f"{name} is not valid JSON ({error or type(error).__name__})."
        ) from None


HEADER_KEY = "__metadata__"
TIED = "loopwright.tied"  # in the header's metadata: {"name left out": "name it is tied to"}
LARGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: its type and shape as stored, its bytes, and the one it shares them with,
    if any."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    tied_to: str | None = None


def read_header(path: str | os.PathLike[str]) -> list[TensorInfo]:
    """List the tensors of a safetensors file without reading their values or importing torch.

    Args:
        path: The file.

    Returns:
        The tensors in natural order (`layers.2` before `layers.10`); tied ones have no bytes of
        their own.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from loopwright.checkpoint import read_header, save_weights
        >>> with TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/model.safetensors", {"weight": torch.ones(2, 3)})
        ...     [(info.name, info.dtype, info.shape) for info in read_header(f"{folder}/model.safetensors")]
        [('weight', 'F32', (2, 3))]
    """
    source = Path(path)
    header = _header(source)
    noted = header.pop(HEADER_KEY, None)
    tensors = {name: _tensor(source, name, entry) for name, entry in header.items()}
    for name, kept in _tied(source, noted).items():
        if kept in tensors and name not in tensors:
            tensors[name] = TensorInfo(name, tensors[kept].dtype, tensors[kept].shape, 0, kept)
    return sorted(tensors.values(), key=lambda tensor: _counted(tensor.name))


def _header(path: Path) -> dict[str, Json]:
    try:
        with path.open("rb") as file:
            available = os.fstat(file.fileno()).st_size - 8
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(available, LARGEST_HEADER):
                raise CheckpointError(
                    "not-safetensors",
                    f"{path} is not a safetensors file: its header does not fit into it.",
                )
            header = parse_json(file.read(length), str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    if not isinstance(header, dict):
        raise CheckpointError(
            "not-safetensors", f"{path} is not a safetensors file: its header is not a table."
        )
    return header


def _tensor(path: Path, name: str, entry: Json) -> TensorInfo:
    try:
        table = table_of(entry)
        start, end = numbers_of(table["data_offsets"])
        return TensorInfo(name, text_of(table["dtype"]), numbers_of(table["shape"]), end - start)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            "not-safetensors",
            f"{path} has a malformed header: the entry {name!r:.80} describes no tensor.",
        ) from None


def _tied(path: Path, noted: Json) -> dict[str, str]:
    """The names that were left out of a file, with those of the tensors they stand for."""
    entries = noted if isinstance(noted, dict) else {}
    if isinstance(text := entries.get(TIED), str):
        tied = parse_json(text.encode("utf-8", "replace"), f"{path} ({TIED})")
        entries = tied if isinstance(tied, dict) else {}
    # `safetensors.torch.save_model` notes them as plain entries
    return {name: kept for name, kept in entries.items() if isinstance(kept, str)}


def _counted(name: str) -> list[tuple[int, str]]:
    """A key that puts `layers.10` after `layers.2`."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


SHARDS = "pieces.json"

Numbers: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A region of a tensor: where it begins in each dimension, and how far it reaches."""

    offsets: Numbers
    shape: Numbers

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(
            slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True)
        )

    def overlap(self, other: Box) -> Box | None:
        """The region that both share, None where there is none."""
        starts = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(
            min(end, end2) - start
            for start, end, end2 in zip(starts, self._ends, other._ends, strict=True)
        )
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def relative_to(self, origin: Numbers) -> Box:
        return Box(tuple(a - b for a, b in zip(self.offsets, origin, strict=True)), self.shape)

    def fits(self, shape: Numbers) -> bool:
        """Whether it lies inside a tensor of this shape."""
        if len(self.offsets) != len(shape) or len(self.shape) != len(shape):
            return False
        return all(
            start >= 0 and size >= 0 for start, size in zip(self.offsets, self.shape, strict=True)
        ) and all(end <= size for end, size in zip(self._ends, shape, strict=True))

    @property
    def _ends(self) -> Numbers:
        return tuple(start + size for start, size in zip(self.offsets, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A box of a tensor, and the entry of the file that holds it."""

    file: str
    name: str
    box: Box


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor in a checkpoint: its type as stored, its shape, and the shards it consists of."""

    dtype: str
    shape: Numbers
    shards: tuple[StoredShard, ...]

    def find_problem(self) -> str | None:
        """Why the shards do not cover the tensor exactly once, None where they do."""
        return _find_gap(self.shape, tuple(shard.box for shard in self.shards))


def whole(shape: Numbers) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def layouts_table(layouts: Mapping[str, TensorLayout]) -> dict[str, Any]:
    """The table of shards, as it is written."""
    tables = {name: asdict(layout) for name, layout in layouts.items()}
    for table in tables.values():
        table["pieces"] = table.pop("shards")  # the name that the format has for them
    return {"tensors": tables}


def layouts_in(content: Json) -> dict[str, TensorLayout]:
    """The tensors of such a table; raises KeyError or TypeError."""
    found = {}
    for name, value in table_of(table_of(content)["tensors"]).items():
        entry = table_of(value)
        shards = []
        for shard in map(table_of, list_of(entry["pieces"])):
            box = table_of(shard["box"])
            region = Box(numbers_of(box["offsets"]), numbers_of(box["shape"]))
            shards.append(StoredShard(text_of(shard["file"]), text_of(shard["name"]), region))
        layout = TensorLayout(text_of(entry["dtype"]), numbers_of(entry["shape"]), tuple(shards))
        found[name] = layout
    return found


def read_layouts(directory: Path, files: Iterable[str]) -> dict[str, TensorLayout]:
    """The tensors of a checkpoint that are in shards, once the shards are known to be there and to
    make them up."""
    path = directory / SHARDS
    try:
        layouts = layouts_in(parse_json(path.read_bytes(), str(path)))
    except OSError as error:
        raise unreadable(path, error) from error
    except (KeyError, TypeError) as error:
        raise CheckpointError("malformed-shards", f"{path} is malformed ({error!r}).") from None
    named = {shard.file for layout in layouts.values() for shard in layout.shards}
    headers = {}
    for name in named.intersection(files):
        headers[name] = {info.name: info for info in read_header(directory / name)}
    for name, layout in layouts.items():
        if problem := next(_misfits(layout, headers), None) or layout.find_problem():
            raise CheckpointError(
                "malformed-shards", f"{path} does not describe {name!r} correctly: {problem}."
            )
    return layouts


def table_of(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.60}")
    return value


def list_of(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r:.60}")
    return value


def text_of(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def numbers_of(value: Json) -> Numbers:
    numbers = tuple(item for item in list_of(value) if type(item) is int and item >= 0)
    if len(numbers) < len(list_of(value)):
        raise TypeError(f"expected a list of sizes, found {value!r:.60}")
    return numbers


def record_of(entry: Json) -> FileRecord:
    """What a table says of a file."""
    table = table_of(entry)
    size = table["size"]
    sha256 = table["sha256"]
    if type(size) is not int or not isinstance(sha256, str):
        raise TypeError("a file's size is a number and its sha256 is text")
    return FileRecord(size, sha256)


def _misfits(
    layout: TensorLayout, headers: Mapping[str, Mapping[str, TensorInfo]]
) -> Iterator[str]:
    """What the files hold otherwise than the table says."""
    for shard in layout.shards:
        info = headers.get(shard.file, {}).get(shard.name)
        if info is None:
            yield f"{shard.file!r} with its entry {shard.name!r} is not part of the checkpoint"
        elif (info.dtype, info.shape) != (layout.dtype, shard.box.shape):
            yield (
                f"{shard.file} holds {info.dtype} {list(info.shape)}, not {layout.dtype} "
                f"{list(shard.box.shape)}"
            )


@lru_cache(maxsize=1024)  # most tensors of a model are cut the same way
def _find_gap(shape: Numbers, boxes: tuple[Box, ...]) -> str | None:
    import numpy as np  # only here: listing checkpoints does without

    for box in boxes:
        if not box.fits(shape):
            return (
                f"the shard at {list(box.offsets)} of {list(box.shape)} lies outside its "
                f"shape {list(shape)}"
            )
    filled = [box for box in boxes if math.prod(box.shape)]
    if filled and shape:
        starts = np.array([box.offsets for box in filled])
        ends = starts + np.array([box.shape for box in filled])
        for box, start, end in zip(filled, starts, ends, strict=True):
            if ((starts < end) & (start < ends)).all(axis=1).sum() > 1:
                return f"the shard at {list(box.offsets)} of {list(box.shape)} overlaps another"
    count = sum(math.prod(box.shape) for box in filled)
    total = math.prod(shape)
    return None if count == total else f"its shards hold {count} values instead of {total}"

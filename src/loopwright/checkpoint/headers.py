"""What can be read of a checkpoint without torch: strict JSON, and the headers of safetensors files."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from ..errors import CheckpointError

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


def parse_json(data: bytes, name: str) -> Json:
    """Strict JSON from untrusted bytes; `name` is the file that the error names."""
    try:
        value: Json = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON ({error or type(error).__name__}).") from None
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """A table, each of whose keys is there once: readers differ in which of two they take."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return table


HEADER_KEY = "__metadata__"
TIED = "loopwright.tied"  # in the header's metadata: {"name left out": "name it is tied to"}
LARGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: its type and shape as stored, its bytes, and the one it shares them with, if any."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    tied_to: str | None = None

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


def read_header(path: str | os.PathLike[str]) -> list[TensorInfo]:
    """The tensors of a safetensors file, in the order a person counts; tied ones follow with no bytes of their own."""
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
                raise CheckpointError(f"{path} is not a safetensors file: its header does not fit into it.")
            header = parse_json(file.read(length), str(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is not a table.")
    return header


def _tensor(path: Path, name: str, entry: Json) -> TensorInfo:
    if isinstance(entry, dict):
        dtype, shape, span = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
        if isinstance(dtype, str) and shape is not None and span is not None and len(span) == 2:
            return TensorInfo(name, dtype, tuple(shape), span[1] - span[0])
    raise CheckpointError(f"{path} has a malformed header: the entry {name!r:.80} describes no tensor.")


def _counts(value: Json) -> list[int] | None:
    if not isinstance(value, list):
        return None
    counts = [item for item in value if type(item) is int and item >= 0]
    return counts if len(counts) == len(value) else None


def _tied(path: Path, noted: Json) -> dict[str, str]:
    text = noted.get(TIED) if isinstance(noted, dict) else None
    tied = parse_json(text.encode("utf-8", "replace"), f"{path} ({TIED})") if isinstance(text, str) else None
    return {name: kept for name, kept in tied.items() if isinstance(kept, str)} if isinstance(tied, dict) else {}


def _counted(name: str) -> list[tuple[int, str]]:
    """A key that puts `layers.10` after `layers.2`."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]

"""What a safetensors file says it holds, read from its header alone: no tensor is loaded, no torch imported."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from loopwright.checkpoint.strictjson import Json, parse_json
from loopwright.errors import CheckpointError

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

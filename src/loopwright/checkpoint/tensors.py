"""Tensors in safetensors files: written straight from memory, hashed on the way, tied ones stored once."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .atomic import FileRecord, HashingFile
from .tree import Json, TensorKey, parse_json, tensor_key

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


ALIGNMENT = 8

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> FileRecord:
    """A new safetensors file; a tensor that occurs twice is written once and noted in the metadata."""
    unique, tied = split_tied(tensors)
    texts = {**(metadata or {}), **({TIED: json.dumps(tied)} if tied else {})}
    # Widest first, as the format's own writer does, so that every tensor stays aligned.
    names = sorted(unique, key=lambda name: (-unique[name].itemsize, name))
    with HashingFile(path) as file:
        file.write(_header_text(names, unique, texts))
        for name in names:
            file.write(_bytes_of(unique[name]))
    return file.record()


def read_tensors(path: Path, *, copies: bool = True) -> dict[str, Tensor]:
    """All tensors of a safetensors file in memory of their own, tied ones as one tensor under two names.

    Without `copies` they are mapped from the file: only to be looked at, and in no more memory than is looked at.
    """
    try:
        with open_tensors(path) as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if copies:  # a mapped tensor would change under us if the file did
                tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    except Exception as error:  # the reader has no common error type, and the file is untrusted
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
    return tensors | {name: tensors[kept] for name, kept in _tied_in(path, metadata, tensors).items()}


def open_tensors(path: Path) -> Any:
    """The file as safetensors maps it; its reader takes only paths that are UTF-8, which not every path is."""
    from safetensors import safe_open

    if _is_utf8(path):
        return safe_open(path, framework="pt", device="cpu")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return safe_open(f"/dev/fd/{descriptor}", framework="pt", device="cpu")
    finally:
        os.close(descriptor)


def _is_utf8(path: Path) -> bool:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def split_tied(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that are one memory each, and the names of the others with those they stand for."""
    first: dict[TensorKey, str] = {}
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = tensor_key(tensor)
        kept = name if key is None else first.setdefault(key, name)
        if kept == name:
            unique[name] = tensor
        else:
            tied[name] = kept
    return unique, tied


def _tied_in(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names that were left out of a file, and the tensors they stand for."""
    if TIED not in metadata:  # files of `safetensors.torch.save_model` note the same as plain entries
        noted = {name: kept for name, kept in metadata.items() if name != "format"}  # which says "pt", for torch
        return {name: kept for name, kept in noted.items() if kept in tensors and name not in tensors}
    tied = parse_json(metadata[TIED].encode("utf-8", "replace"), f"{path} ({TIED})")
    if not isinstance(tied, dict) or not all(isinstance(k, str) and k in tensors for k in tied.values()):
        raise CheckpointError(f"{path} ties names to tensors that it does not hold: it is damaged.")
    return {name: str(kept) for name, kept in tied.items() if name not in tensors}


def _header_text(names: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.itemsize
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory where it is contiguous on the host, otherwise that of one copy."""
    if tensor.numel() == 0:
        return memoryview(b"")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data

"""Tensors in safetensors files: written straight from memory, hashed on the way, tied ones stored once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .atomic import FileRecord, HashingFile
from .headers import TIED, parse_json
from .tree import TensorKey, tensor_key

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

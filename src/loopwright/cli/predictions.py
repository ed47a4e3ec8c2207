"""Outputs of a model for all samples of a data set: concatenated, and written in the format of a
file's suffix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigurationError
from .output import strict_json


def joined(batches: Sequence[Any]) -> dict[str, Any]:
    """Concatenate each output over all batches: to a tensor where the shapes allow it, else to a
    list."""
    parts: dict[str, list[Any]] = {}
    for batch in batches:
        for name, value in _named(batch, ""):
            parts.setdefault(name, []).append(value)
    return {name: _one(values) for name, values in parts.items()}


def _named(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The tensors of an output: by their keys, and numbered in a tuple."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _named(item, f"{prefix or 'output'}.{number}")
    elif value is not None:
        yield prefix or "output", value


def _one(values: list[Any]) -> Any:
    """Concatenate along the first dimension, the samples."""
    first = values[0]
    if all(
        isinstance(value, Tensor) and value.dim() and value.shape[1:] == first.shape[1:]
        for value in values
    ):
        return torch.cat(values)
    return values


def write_predictions(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write the file at once or not at all."""
    from ..checkpoint.atomic import staged_file, write_bytes

    if not outputs:
        raise ConfigurationError(
            "There is nothing to write: the data set is empty, or the model gives no outputs."
        )
    content = SUFFIXES[path.suffix](outputs)
    with staged_file(path) as staging:
        write_bytes(staging, content)


def _safetensors(outputs: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    tensors = _tensors(outputs, ".safetensors")
    return bytes(save({name: value.contiguous() for name, value in tensors.items()}))


def _npy(outputs: Mapping[str, Any]) -> bytes:
    import numpy as np

    arrays = _arrays(outputs, ".npy")
    if len(arrays) != 1:
        raise ConfigurationError(
            f"The model has {len(arrays)} outputs ({', '.join(arrays)}): use .npz, not .npy."
        )
    file = BytesIO()
    np.save(file, next(iter(arrays.values())), allow_pickle=False)
    return file.getvalue()


def _npz(outputs: Mapping[str, Any]) -> bytes:
    import numpy as np

    file = BytesIO()
    np.savez(file, **_arrays(outputs, ".npz"))
    return file.getvalue()


def _json(outputs: Mapping[str, Any]) -> bytes:
    """One output as a list, several as a mapping of lists."""
    plain = {name: _listed(value) for name, value in outputs.items()}
    content = plain["output"] if list(plain) == ["output"] else plain
    return (json.dumps(strict_json(content), allow_nan=False) + "\n").encode()


def _listed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [_listed(item) for item in value] if isinstance(value, list) else value


def _tensors(outputs: Mapping[str, Any], suffix: str) -> dict[str, Tensor]:
    for name, value in outputs.items():
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                f"The output {name!r} cannot be written as {suffix}: its batches are "
                f"{type(value[0]).__name__}s that do not form one tensor over all samples. Use "
                ".json."
            )
    return {name: value.detach() for name, value in outputs.items()}


def _arrays(outputs: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """Convert to numpy; bfloat16, which it does not have, becomes float32."""
    tensors = _tensors(outputs, suffix)
    return {
        n: (v.float() if v.dtype == torch.bfloat16 else v).resolve_conj().numpy()
        for n, v in tensors.items()
    }


SUFFIXES: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".npz": _npz,
    ".json": _json,
}

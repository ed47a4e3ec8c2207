"""Strict JSON and named tensors back to a state tree; only plain values can come out."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._torch_compat import set_state_dict_metadata
from ..errors import CheckpointError
from .headers import Json
from .stored import StoredTensor
from .tree import Tree

ARRAY_DTYPE = re.compile(r"[<>|=][biufcmMSU]\d+(\[\w+\])?")
FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "-0.0": -0.0}
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    binascii.Error,
    struct.error,
)


def decode(structure: Json, tensors: Mapping[str, Tensor | StoredTensor]) -> Tree:
    """The tree that was encoded; `tensors` holds what the structure refers to, in memory or still in files."""
    try:
        return _Decoder(tensors).decode(structure)
    except RecursionError:
        raise CheckpointError("The saved state is nested too deeply to be read: it is damaged.") from None


class _Decoder:
    def __init__(self, tensors: Mapping[str, Tensor | StoredTensor]) -> None:
        self.tensors = tensors

    def decode(self, value: Json) -> Tree:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        markers = [key for key in value if key.startswith("$")]
        if not markers:
            return {key: self.decode(item) for key, item in value.items()}
        return self.marked(markers[0], value)

    def marked(self, marker: str, value: dict[str, Json]) -> Tree:
        rebuild, keys = _BY_MARKER.get(marker, (None, ()))
        if rebuild is None or not {marker} <= set(value) <= {marker, *keys}:
            raise CheckpointError(
                f"The saved state holds {sorted(value)[:4]}, which this version cannot read: "
                "upgrade loopwright, or use another checkpoint."
            )
        try:
            return rebuild(self, value)
        except (CheckpointError, RecursionError):
            raise
        except MALFORMED as error:
            raise CheckpointError(f"The saved state holds a malformed {marker}: {error!r}.") from None

    def stored(self, key: Json) -> Tensor | StoredTensor:
        if not isinstance(key, str) or key not in self.tensors:
            raise CheckpointError(f"The saved state refers to tensor {key!r}, which is not in its files.")
        return self.tensors[key]

    def values(self, key: Json) -> Tensor:
        stored = self.stored(key)
        return stored.read() if isinstance(stored, StoredTensor) else stored

    def get_tensor(self, value: dict[str, Json]) -> Tensor | StoredTensor:
        tensor = self.stored(value["$tensor"])
        if "as" not in value:
            return tensor
        dtype = _dtype(value["as"])
        if isinstance(tensor, StoredTensor):
            return tensor.viewed_as(dtype)
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)

    def get_array(self, value: dict[str, Json]) -> Tree:
        data = self.values(value["$array"]).numpy().tobytes()
        shape = [_count(n) for n in _items(value["shape"])]
        return np.frombuffer(bytearray(data), dtype=_array_dtype(value["dtype"])).reshape(shape)

    def get_scalar(self, value: dict[str, Json]) -> Tree:
        data = bytes.fromhex(_text(value["$scalar"]))
        dtype = _array_dtype(value["dtype"])
        if not data:  # an empty numpy string has no bytes to read from
            return dtype.type()
        return np.frombuffer(data, dtype=dtype).reshape(())[()]

    def get_numbers(self, value: dict[str, Json]) -> list[float] | list[int]:
        return self.values(value["$numbers"]).reshape(-1).tolist()

    def get_integer(self, value: dict[str, Json]) -> int:
        return int(_text(value["$int"]), 16)

    def get_float(self, value: dict[str, Json]) -> float:
        text = _text(value["$float"])
        if text in FLOATS:
            return FLOATS[text]
        (number,) = struct.unpack(">d", bytes.fromhex(text.removeprefix("nan:")))
        return number  # type: ignore[no-any-return]

    def get_complex(self, value: dict[str, Json]) -> complex:
        real, imaginary = (self.decode(part) for part in _items(value["$complex"]))
        return complex(real, imaginary)

    def get_bytes(self, value: dict[str, Json]) -> bytes:
        return base64.b64decode(_text(value["$bytes"]), validate=True)

    def get_tuple(self, value: dict[str, Json]) -> tuple[Tree, ...]:
        return tuple(self.decode(item) for item in _items(value["$tuple"]))

    def get_dict(self, value: dict[str, Json]) -> dict[Tree, Tree]:
        return self.get_pairs(value["$dict"])

    def get_counter(self, value: dict[str, Json]) -> Counter[Tree]:
        return Counter(self.get_pairs(value["$counter"]))

    def get_pairs(self, value: Json) -> dict[Tree, Tree]:
        return {self.decode(key): self.decode(item) for key, item in map(_items, _items(value))}

    def get_state_dict(self, value: dict[str, Json]) -> OrderedDict[Tree, Tree]:
        items = OrderedDict(self.decode(value["$state_dict"]))
        set_state_dict_metadata(items, self.decode(value["metadata"]))
        return items

    def get_path(self, value: dict[str, Json]) -> Path:
        return Path(_text(value["$path"]))

    def get_dtype(self, value: dict[str, Json]) -> torch.dtype:
        return _dtype(value["$dtype"])

    def get_device(self, value: dict[str, Json]) -> torch.device:
        return torch.device(_text(value["$device"]))


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def _items(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r:.60}")
    return value


def _count(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"expected a size, found {value!r:.60}")
    return value


def _dtype(value: Json) -> torch.dtype:
    dtype = getattr(torch, _text(value), None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no dtype is called {value!r:.60}")
    return dtype


def _array_dtype(value: Json) -> np.dtype[np.generic]:
    if not ARRAY_DTYPE.fullmatch(_text(value)):
        raise TypeError(f"no array dtype is called {value!r:.60}")
    return np.dtype(_text(value))


_BY_MARKER: dict[str, tuple[Callable[[_Decoder, dict[str, Json]], Tree], tuple[str, ...]]] = {
    "$tensor": (_Decoder.get_tensor, ("as",)),
    "$array": (_Decoder.get_array, ("dtype", "shape")),
    "$scalar": (_Decoder.get_scalar, ("dtype",)),
    "$numbers": (_Decoder.get_numbers, ()),
    "$int": (_Decoder.get_integer, ()),
    "$float": (_Decoder.get_float, ()),
    "$complex": (_Decoder.get_complex, ()),
    "$bytes": (_Decoder.get_bytes, ()),
    "$tuple": (_Decoder.get_tuple, ()),
    "$dict": (_Decoder.get_dict, ()),
    "$counter": (_Decoder.get_counter, ()),
    "$state_dict": (_Decoder.get_state_dict, ("metadata",)),
    "$path": (_Decoder.get_path, ()),
    "$dtype": (_Decoder.get_dtype, ()),
    "$device": (_Decoder.get_device, ()),
}

"""A state tree as strict JSON plus named tensors.

Whatever JSON cannot say is an object with one `$` key (`{"$tuple": [...]}`); a dictionary whose own
keys are not plain strings, or begin with `$`, is written as pairs, so no user key is ever taken for
a marker.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from .._torch_compat import set_state_dict_metadata, state_dict_metadata
from ..errors import CheckpointError
from .layout import HEADER_KEY, Json, list_of, numbers_of, text_of
from .sharded import TensorShard, is_dtensor, shard_of
from .tensors import (
    StoredTensor,
    Tree,
    join_path,
    numbers_tensor,
    plain_tensor,
    refusal,
    stored_form,
)

# a list of this many floats or ints is kept as a tensor: smaller, exact and quick
NUMBERS_FROM = 256
ARRAY_KINDS = "biufcmMSU"
LARGE_INT = 1 << 63
CANONICAL_NAN = struct.pack(">d", math.nan)


def encode(tree: Tree) -> tuple[Json, dict[str, Tensor]]:
    """Encode a tree as JSON and tensors, the latter by a path such as
    `optimizers/default/state/0/exp_avg`.

    Args:
        tree: Nested dicts, lists and tuples of tensors, arrays and plain values.

    Raises:
        CheckpointError: A value cannot be saved; the error names its place.

    Example:
        >>> import torch
        >>> from loopwright.checkpoint import decode, encode
        >>> structure, tensors = encode({"sizes": (1, 2), "weight": torch.ones(2)})
        >>> structure
        {'sizes': {'$tuple': [1, 2]}, 'weight': {'$tensor': 'weight'}}
        >>> decode(structure, tensors)
        {'sizes': (1, 2), 'weight': tensor([1., 1.])}
    """
    structure, tensors, shards = encode_with_shards(tree)
    for path, shard in shards.items():
        remedy = "gather it to a plain tensor first (`full_tensor()` for a DTensor)"
        raise refusal(path, shard, remedy, "a sharded tensor")
    return structure, tensors


def encode_with_shards(tree: Tree) -> tuple[Json, dict[str, Tensor], dict[str, TensorShard]]:
    """The tree as JSON, its tensors, and this process's shards of sharded ones."""
    encoder = _Encoder()
    try:
        return encoder.encode(tree, ""), encoder.tensors, encoder.shards
    except RecursionError:
        raise CheckpointError(
            "state-too-deep",
            "The state is nested too deeply, or contains itself: return plain, finite containers.",
        ) from None


def encode_plain(tree: Tree, what: str) -> Json:
    """The tree as JSON alone, where there is no place for tensors."""
    structure, tensors = encode(tree)
    if tensors:
        raise CheckpointError(
            "tensor-in-metadata",
            f"{what} contains a tensor or an array at {next(iter(tensors))!r}: store a number "
            "instead (`float(x)`).",
        )
    return structure


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.shards: dict[str, TensorShard] = {}

    def encode(self, value: Tree, path: str) -> Json:
        encode = _BY_TYPE.get(type(value)) or _by_ancestor(value)
        if encode is None:
            raise refusal(
                path, value, "return numbers, strings, tensors or dicts, lists and tuples of them"
            )
        return encode(self, value, path)

    def add(self, tensor: Tensor, path: str) -> str:
        key = self.free_key(path)
        self.tensors[key] = tensor
        return key

    def free_key(self, path: str) -> str:
        """The path of a tensor, or one as near to it as is free."""
        key = path
        number = 2
        while key in self.tensors or key in self.shards or key in ("", HEADER_KEY):
            key = f"{path}~{number}"
            number += 1
        return key

    def put_items(self, values: Iterable[Tree], path: str) -> list[Json]:
        return [self.encode(item, join_path(path, i)) for i, item in enumerate(values)]

    def put_list(self, value: list[Tree], path: str) -> Json:
        if len(value) >= NUMBERS_FROM and (numbers := numbers_tensor(value)) is not None:
            return {"$numbers": self.add(numbers, path)}
        return self.put_items(value, path)

    def put_dict(self, value: dict[Tree, Tree], path: str) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, join_path(path, key)) for key, item in value.items()}
        return {"$dict": self.put_pairs(value, path)}

    def put_pairs(self, value: dict[Tree, Tree], path: str) -> list[Json]:
        pairs: list[Json] = []
        for key, item in value.items():
            if isinstance(key, Tensor):
                what = "a dict with a tensor as key"
                raise refusal(path, key, "use an integer or a string as the key", what)
            pairs.append([self.encode(key, path), self.encode(item, join_path(path, key))])
        return pairs

    def put_ordered(self, value: OrderedDict[Tree, Tree], path: str) -> Json:
        metadata = state_dict_metadata(value)  # a module's state dict: the versions of its parts
        if metadata is None:
            return self.put_dict(value, path)
        return {
            "$state_dict": self.put_dict(value, path),
            "metadata": self.encode(metadata, join_path(path, "_metadata")),
        }

    def put_tensor(self, value: Tensor, path: str) -> Json:
        tensor, foreign = stored_form(plain_tensor(value, path))
        return {"$tensor": self.add(tensor, path), **foreign}

    def put_shard(self, value: TensorShard, path: str) -> Json:
        tensor, foreign = stored_form(plain_tensor(value.local, path))
        key = self.free_key(path)
        self.shards[key] = value.stored_as(tensor)
        return {"$tensor": key, **foreign}

    def put_array(
        self, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]], path: str
    ) -> Json:
        if value.dtype.kind not in ARRAY_KINDS or value.dtype.hasobject:
            raise refusal(
                path, value, "return a numeric array or a list", f"an array of {value.dtype}"
            )
        data = torch.empty(0, dtype=torch.uint8)
        if value.nbytes:
            data = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)
        key = self.add(data, path)
        return {"$array": key, "dtype": value.dtype.str, "shape": [int(n) for n in value.shape]}

    def put_scalar(self, value: np.generic, path: str) -> Json:
        if value.dtype.kind not in ARRAY_KINDS:
            raise refusal(path, value, "return a Python number")
        return {"$scalar": value.tobytes().hex(), "dtype": value.dtype.str}


def _put_float(_: _Encoder, value: float, path: str) -> Json:
    if math.isfinite(value) and (value or math.copysign(1.0, value) > 0):
        return value
    bits = struct.pack(">d", value)
    is_odd = math.isnan(value) and bits != CANONICAL_NAN
    return {"$float": f"nan:{bits.hex()}" if is_odd else repr(value)}


def _put_int(_: _Encoder, value: int, path: str) -> Json:
    return value if -LARGE_INT <= value < LARGE_INT else {"$int": hex(value)}


def _by_ancestor(value: Tree) -> Put | None:
    if is_dtensor(value):
        return lambda encoder, value, path: encoder.put_shard(shard_of(value, path), path)
    return next((encode for kind, encode in _BY_ANCESTOR if isinstance(value, kind)), None)


Put: TypeAlias = Callable[[_Encoder, Tree, str], Json]
_BY_TYPE: dict[type, Put] = {
    type(None): lambda _, value, path: value,
    bool: lambda _, value, path: value,
    str: lambda _, value, path: value,
    int: _put_int,
    float: _put_float,
    complex: lambda encoder, value, path: {
        "$complex": [_put_float(encoder, part, path) for part in (value.real, value.imag)]
    },
    bytes: lambda _, value, path: {"$bytes": base64.b64encode(value).decode()},
    list: _Encoder.put_list,
    tuple: lambda encoder, value, path: {"$tuple": encoder.put_items(value, path)},
    torch.Size: lambda encoder, value, path: {"$tuple": encoder.put_items(value, path)},
    dict: _Encoder.put_dict,
    Counter: lambda encoder, value, path: {"$counter": encoder.put_pairs(value, path)},
    OrderedDict: _Encoder.put_ordered,
    Tensor: _Encoder.put_tensor,
    TensorShard: _Encoder.put_shard,
    np.ndarray: _Encoder.put_array,
    torch.dtype: lambda _, value, path: {"$dtype": str(value).removeprefix("torch.")},
    torch.device: lambda _, value, path: {"$device": str(value)},
}
_BY_ANCESTOR: tuple[tuple[type, Put], ...] = (
    (Tensor, _Encoder.put_tensor),
    (np.generic, _Encoder.put_scalar),
    (PurePath, lambda _, value, path: {"$path": str(value)}),
    (dict, _Encoder.put_dict),
)


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
    """Decode the tree that `encode` returned as JSON and tensors.

    Args:
        structure: The tree as JSON.
        tensors: The tensors that it refers to, by name, in memory or still in files.

    Raises:
        CheckpointError: The structure is malformed, or refers to a tensor that is not there.
    """
    try:
        return _Decoder(tensors).decode(structure)
    except RecursionError:
        raise CheckpointError(
            "state-too-deep", "The saved state is nested too deeply to be read: it is damaged."
        ) from None


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
        others = {key: part for key, part in value.items() if key != marker}
        if rebuild is None or not set(others) <= set(keys):
            raise CheckpointError(
                "unknown-state-marker",
                f"The saved state holds {sorted(value)[:4]}, which this version cannot read: "
                "upgrade Loopwright, or use another checkpoint.",
            )
        try:
            return rebuild(self, value[marker], **others)
        except (CheckpointError, RecursionError):
            raise
        except MALFORMED as error:
            raise CheckpointError(
                "malformed-state", f"The saved state holds a malformed {marker}: {error!r}."
            ) from None

    def stored(self, key: Json) -> Tensor | StoredTensor:
        if not isinstance(key, str) or key not in self.tensors:
            raise CheckpointError(
                "missing-tensor",
                f"The saved state refers to tensor {key!r}, which is not in its files.",
            )
        return self.tensors[key]

    def values(self, key: Json) -> Tensor:
        stored = self.stored(key)
        return stored.read() if isinstance(stored, StoredTensor) else stored

    def get_tensor(self, key: Json, **noted: Json) -> Tensor | StoredTensor:
        tensor = self.stored(key)
        if "as" not in noted:
            return tensor
        dtype = _dtype(noted["as"])
        if isinstance(tensor, StoredTensor):
            return StoredTensor(tensor.files, tensor.layout, dtype)
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)

    def get_array(self, key: Json, *, dtype: Json, shape: Json) -> Tree:
        data = bytearray(self.values(key).numpy().tobytes())
        return np.frombuffer(data, dtype=_array_dtype(dtype)).reshape(numbers_of(shape))

    def get_complex(self, parts: Json) -> complex:
        real, imaginary = (self.decode(part) for part in list_of(parts))
        return complex(real, imaginary)

    def get_pairs(self, pairs: Json) -> dict[Tree, Tree]:
        return {self.decode(key): self.decode(item) for key, item in map(list_of, list_of(pairs))}

    def get_state_dict(self, items: Json, *, metadata: Json) -> OrderedDict[Tree, Tree]:
        state = OrderedDict(self.decode(items))
        set_state_dict_metadata(state, self.decode(metadata))
        return state


def _get_scalar(_: _Decoder, value: Json, *, dtype: Json) -> Tree:
    data = bytes.fromhex(text_of(value))
    kind = _array_dtype(dtype)
    if not data:  # an empty numpy string has no bytes to read from
        return kind.type()
    return np.frombuffer(data, dtype=kind).reshape(())[()]


def _get_float(_: _Decoder, value: Json) -> float:
    text = text_of(value)
    if text in FLOATS:
        return FLOATS[text]
    (number,) = struct.unpack(">d", bytes.fromhex(text.removeprefix("nan:")))
    return number  # type: ignore[no-any-return]


def _dtype(value: Json) -> torch.dtype:
    dtype = getattr(torch, text_of(value), None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"there is no dtype {value!r:.60}")
    return dtype


def _array_dtype(value: Json) -> np.dtype[np.generic]:
    if not ARRAY_DTYPE.fullmatch(text_of(value)):
        raise TypeError(f"there is no array dtype {value!r:.60}")
    return np.dtype(text_of(value))


# how to rebuild a value, and the keys that it may have beside its marker
_BY_MARKER: dict[str, tuple[Callable[..., Tree], tuple[str, ...]]] = {
    "$tensor": (_Decoder.get_tensor, ("as",)),
    "$array": (_Decoder.get_array, ("dtype", "shape")),
    "$scalar": (_get_scalar, ("dtype",)),
    "$numbers": (lambda decoder, key: decoder.values(key).reshape(-1).tolist(), ()),
    "$int": (lambda _, text: int(text_of(text), 16), ()),
    "$float": (_get_float, ()),
    "$complex": (_Decoder.get_complex, ()),
    "$bytes": (lambda _, text: base64.b64decode(text_of(text), validate=True), ()),
    "$tuple": (lambda decoder, items: tuple(map(decoder.decode, list_of(items))), ()),
    "$dict": (_Decoder.get_pairs, ()),
    "$counter": (lambda decoder, pairs: Counter(decoder.get_pairs(pairs)), ()),
    "$state_dict": (_Decoder.get_state_dict, ("metadata",)),
    "$path": (lambda _, text: Path(text_of(text)), ()),
    "$dtype": (lambda _, value: _dtype(value), ()),
    "$device": (lambda _, text: torch.device(text_of(text)), ()),
}

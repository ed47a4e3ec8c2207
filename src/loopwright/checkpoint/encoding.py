"""A state tree as strict JSON plus named tensors.

Whatever JSON cannot say is an object with one `$` key (`{"$tuple": [...]}`); a dictionary whose own
keys are not plain strings, or begin with `$`, is written as pairs, so no user key is ever taken for
a marker.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

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
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value  # type: ignore[no-any-return]
        if kind is int:
            return value if -LARGE_INT <= value < LARGE_INT else {"$int": hex(value)}
        if kind is float:
            return _float(value)
        if kind is list:
            return self.put_list(value, path)
        if kind is tuple or kind is torch.Size:
            return {"$tuple": self.put_items(value, path)}
        if kind is Counter:
            return {"$counter": self.put_pairs(value, path)}
        if isinstance(value, dict):
            return self.put_dict(value, path)
        if is_dtensor(value):
            return self.put_shard(shard_of(value, path), path)
        if kind is TensorShard:
            return self.put_shard(value, path)
        if isinstance(value, Tensor):
            tensor, foreign = stored_form(plain_tensor(value, path))
            return {"$tensor": self.add(tensor, path), **foreign}
        return self.put_other(value, path)

    def put_other(self, value: Tree, path: str) -> Json:
        if type(value) is complex:
            return {"$complex": [_float(value.real), _float(value.imag)]}
        if type(value) is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, PurePath):
            return {"$path": str(value)}
        is_array = type(value) is np.ndarray
        if (is_array or isinstance(value, np.generic)) and value.dtype.kind in ARRAY_KINDS:
            data = value.tobytes()
            if not is_array:
                return {"$scalar": data.hex(), "dtype": value.dtype.str}
            values = np.frombuffer(bytearray(data), dtype=np.uint8)
            key = self.add(torch.from_numpy(values), path)
            return {"$array": key, "dtype": value.dtype.str, "shape": list(value.shape)}
        remedy = "return numbers, strings, tensors or dicts, lists and tuples of them"
        raise refusal(path, value, remedy)

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
            items: Json = {
                key: self.encode(item, join_path(path, key)) for key, item in value.items()
            }
        else:
            items = {"$dict": self.put_pairs(value, path)}
        metadata = state_dict_metadata(value) if type(value) is OrderedDict else None
        if metadata is None:
            return items
        # a module's state dict: the versions of its parts
        return {
            "$state_dict": items,
            "metadata": self.encode(metadata, join_path(path, "_metadata")),
        }

    def put_pairs(self, value: dict[Tree, Tree], path: str) -> list[Json]:
        pairs: list[Json] = []
        for key, item in value.items():
            if isinstance(key, Tensor):
                what = "a dict with a tensor as key"
                raise refusal(path, key, "use an integer or a string as the key", what)
            pairs.append([self.encode(key, path), self.encode(item, join_path(path, key))])
        return pairs

    def put_shard(self, value: TensorShard, path: str) -> Json:
        tensor, foreign = stored_form(plain_tensor(value.local, path))
        key = self.free_key(path)
        self.shards[key] = value.stored_as(tensor)
        return {"$tensor": key, **foreign}


def _float(value: float) -> Json:
    if math.isfinite(value) and (value or math.copysign(1.0, value) > 0):
        return value
    if math.isnan(value):  # its bits may be any of many
        return {"$float": f"nan:{struct.pack('>d', value).hex()}"}
    return {"$float": repr(value)}


ARRAY_DTYPE = re.compile(r"[<>|=][biufcmMSU]\d+(\[\w+\])?")
# errors of untrusted content; not those that a signal handler of the program raises
MALFORMED = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError),
    *(TypeError, ValueError, struct.error),
)
BESIDE = {  # the keys that a value may have beside its marker
    "$tensor": ("as",),
    "$array": ("dtype", "shape"),
    "$scalar": ("dtype",),
    "$state_dict": ("metadata",),
}
FLOATS = ("nan", "inf", "-inf", "-0.0")


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
        marker = next((key for key in value if key.startswith("$")), None)
        if marker is None:
            return {key: self.decode(item) for key, item in value.items()}
        try:
            return self.marked(marker, value[marker], value)
        except (CheckpointError, RecursionError):
            raise
        except MALFORMED as error:
            raise CheckpointError(
                "malformed-state", f"The saved state holds a malformed {marker}: {error!r}."
            ) from None

    def marked(self, marker: str, value: Json, entry: dict[str, Json]) -> Tree:
        match marker if entry.keys() <= {marker, *BESIDE.get(marker, ())} else None:
            case "$tensor":
                return self.get_tensor(value, entry.get("as"))
            case "$array":
                data = bytearray(self.values(value).numpy().tobytes())
                array = np.frombuffer(data, dtype=_array_dtype(entry["dtype"]))
                return array.reshape(numbers_of(entry["shape"]))
            case "$scalar":
                return _get_scalar(bytes.fromhex(text_of(value)), _array_dtype(entry["dtype"]))
            case "$numbers":
                return self.values(value).reshape(-1).tolist()
            case "$int":
                return int(text_of(value), 16)
            case "$float":
                return _get_float(text_of(value))
            case "$complex":
                real, imaginary = (self.decode(part) for part in list_of(value))
                return complex(real, imaginary)
            case "$bytes":
                return base64.b64decode(text_of(value), validate=True)
            case "$tuple":
                return tuple(map(self.decode, list_of(value)))
            case "$dict":
                return self.get_pairs(value)
            case "$counter":
                return Counter(self.get_pairs(value))
            case "$state_dict":
                state = OrderedDict(self.decode(value))
                set_state_dict_metadata(state, self.decode(entry["metadata"]))
                return state
            case "$path":
                return Path(text_of(value))
            case "$dtype":
                return _dtype(value)
            case "$device":
                return torch.device(text_of(value))
        raise CheckpointError(
            "unknown-state-marker",
            f"The saved state holds {sorted(entry)[:4]}, which this version cannot read: upgrade "
            "Loopwright, or use another checkpoint.",
        )

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

    def get_tensor(self, key: Json, noted: Json) -> Tensor | StoredTensor:
        tensor = self.stored(key)
        if noted is None:
            return tensor
        dtype = _dtype(noted)
        if isinstance(tensor, StoredTensor):
            return StoredTensor(tensor.files, tensor.layout, dtype)
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)

    def get_pairs(self, pairs: Json) -> dict[Tree, Tree]:
        return {self.decode(key): self.decode(item) for key, item in map(list_of, list_of(pairs))}


def _get_scalar(data: bytes, kind: np.dtype[np.generic]) -> Tree:
    if not data:  # an empty numpy string has no bytes to read from
        return kind.type()
    return np.frombuffer(data, dtype=kind)[0]


def _get_float(text: str) -> float:
    if text.startswith("nan:"):
        (number,) = struct.unpack(">d", bytes.fromhex(text.removeprefix("nan:")))
        return number  # type: ignore[no-any-return]
    if text not in FLOATS:
        raise ValueError(text)
    return float(text)


def _dtype(value: Json) -> torch.dtype:
    dtype = getattr(torch, text_of(value), None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"there is no dtype {value!r:.60}")
    return dtype


def _array_dtype(value: Json) -> np.dtype[np.generic]:
    if not ARRAY_DTYPE.fullmatch(text_of(value)):
        raise TypeError(f"there is no array dtype {value!r:.60}")
    return np.dtype(text_of(value))

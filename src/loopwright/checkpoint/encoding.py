"""A state tree as strict JSON plus named tensors.

Whatever JSON cannot say is an object with one `$` key (`{"$tuple": [...]}`); a dictionary whose own keys are
not plain strings, or begin with `$`, is written as pairs, so no user key is ever taken for a marker.
"""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import PurePath

import numpy as np
import torch
from torch import Tensor

from .._torch_compat import state_dict_metadata
from ..errors import CheckpointError
from .headers import Json
from .pieces import Piece, is_dtensor, piece_of
from .tree import Tree, escape, plain_tensor, refusal

NUMBERS_FROM = 256  # a list of this many floats or ints is kept as a tensor: smaller, exact and quick
ARRAY_KINDS = "biufcmMSU"
LARGE_INT = 1 << 63
CANONICAL_NAN = struct.pack(">d", math.nan)
HEADER_KEY = "__metadata__"  # means something else in a safetensors header

NATIVE = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode(tree: Tree) -> tuple[Json, dict[str, Tensor]]:
    """The tree as JSON, and its tensors by a readable path such as `optimizers/default/state/0/exp_avg`."""
    structure, tensors, pieces = encode_with_pieces(tree)
    for path, piece in pieces.items():
        remedy = "gather it to a plain tensor first (`full_tensor()` for a DTensor)"
        raise refusal(path, piece, remedy, "a tensor that is spread over processes")
    return structure, tensors


def encode_with_pieces(tree: Tree) -> tuple[Json, dict[str, Tensor], dict[str, Piece]]:
    """The tree as JSON, its tensors, and this process's part of those that are spread over several."""
    encoder = _Encoder()
    try:
        return encoder.encode(tree, ""), encoder.tensors, encoder.pieces
    except RecursionError:
        raise CheckpointError(
            "The state is nested too deeply, or contains itself: return plain, finite containers."
        ) from None


def encode_plain(tree: Tree, what: str) -> Json:
    """The tree as JSON alone, where there is no place for tensors."""
    structure, tensors = encode(tree)
    if tensors:
        raise CheckpointError(
            f"{what} holds a tensor or an array at {next(iter(tensors))!r}: put numbers there (`float(x)`)."
        )
    return structure


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.pieces: dict[str, Piece] = {}

    def encode(self, value: Tree, path: str) -> Json:
        encode = _BY_TYPE.get(type(value)) or _by_ancestor(value)
        if encode is None:
            raise refusal(path, value, "return numbers, strings, tensors or dicts, lists and tuples of them")
        return encode(self, value, path)

    def add(self, tensor: Tensor, path: str) -> str:
        key = self.free_key(path)
        self.tensors[key] = tensor
        return key

    def free_key(self, path: str) -> str:
        """The path of a tensor, or one as near to it as is free."""
        key, number = path, 2
        while key in self.tensors or key in self.pieces or key in ("", HEADER_KEY):
            key, number = f"{path}~{number}", number + 1
        return key

    def put_same(self, value: Tree, path: str) -> Json:
        return value  # type: ignore[no-any-return]

    def put_integer(self, value: int, path: str) -> Json:
        return value if -LARGE_INT <= value < LARGE_INT else {"$int": hex(value)}

    def put_float(self, value: float, path: str) -> Json:
        if math.isfinite(value) and (value or math.copysign(1.0, value) > 0):
            return value
        bits = struct.pack(">d", value)
        is_odd = math.isnan(value) and bits != CANONICAL_NAN
        return {"$float": f"nan:{bits.hex()}" if is_odd else repr(value)}

    def put_complex(self, value: complex, path: str) -> Json:
        return {"$complex": [self.put_float(value.real, path), self.put_float(value.imag, path)]}

    def put_bytes(self, value: bytes, path: str) -> Json:
        return {"$bytes": base64.b64encode(value).decode()}

    def put_list(self, value: list[Tree], path: str) -> Json:
        if len(value) >= NUMBERS_FROM and (numbers := _numbers(value)) is not None:
            return {"$numbers": self.add(numbers, path)}
        return [self.encode(item, f"{path}/{i}" if path else str(i)) for i, item in enumerate(value)]

    def put_tuple(self, value: tuple[Tree, ...], path: str) -> Json:
        return {"$tuple": [self.encode(item, _join(path, i)) for i, item in enumerate(value)]}

    def put_dict(self, value: dict[Tree, Tree], path: str) -> Json:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, _join(path, key)) for key, item in value.items()}
        return {"$dict": self.put_pairs(value, path)}

    def put_pairs(self, value: dict[Tree, Tree], path: str) -> list[Json]:
        return [[self.put_key(key, path), self.encode(item, _join(path, key))] for key, item in value.items()]

    def put_key(self, value: Tree, path: str) -> Json:
        if isinstance(value, Tensor):
            raise refusal(path, value, "use an integer or a string as the key", "a dict with a tensor as key")
        return self.encode(value, path)

    def put_counter(self, value: Counter[Tree], path: str) -> Json:
        return {"$counter": self.put_pairs(value, path)}

    def put_ordered(self, value: OrderedDict[Tree, Tree], path: str) -> Json:
        metadata = state_dict_metadata(value)  # a module's state dict: the versions of its parts
        if metadata is None:
            return self.put_dict(value, path)
        return {
            "$state_dict": self.put_dict(value, path),
            "metadata": self.encode(metadata, _join(path, "_metadata")),
        }

    def put_tensor(self, value: Tensor, path: str) -> Json:
        tensor, foreign = _stored_form(plain_tensor(value, path))
        return {"$tensor": self.add(tensor, path), **foreign}

    def put_dtensor(self, value: Tree, path: str) -> Json:
        return self.put_piece(piece_of(value, path), path)

    def put_piece(self, value: Piece, path: str) -> Json:
        tensor, foreign = _stored_form(plain_tensor(value.local, path))
        key = self.free_key(path)
        self.pieces[key] = value.stored_as(tensor)
        return {"$tensor": key, **foreign}

    def put_array(self, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]], path: str) -> Json:
        if value.dtype.kind not in ARRAY_KINDS or value.dtype.hasobject:
            raise refusal(path, value, "return a numeric array or a list", f"an array of {value.dtype}")
        stored = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else None
        key = self.add(torch.empty(0, dtype=torch.uint8) if stored is None else stored, path)
        return {"$array": key, "dtype": value.dtype.str, "shape": [int(n) for n in value.shape]}

    def put_scalar(self, value: np.generic, path: str) -> Json:
        if value.dtype.kind not in ARRAY_KINDS:
            raise refusal(path, value, "return a Python number")
        return {"$scalar": value.tobytes().hex(), "dtype": value.dtype.str}

    def put_path(self, value: PurePath, path: str) -> Json:
        return {"$path": str(value)}

    def put_dtype(self, value: torch.dtype, path: str) -> Json:
        return {"$dtype": str(value).removeprefix("torch.")}

    def put_device(self, value: torch.device, path: str) -> Json:
        return {"$device": str(value)}


def _stored_form(tensor: Tensor) -> tuple[Tensor, dict[str, Json]]:
    """The tensor in a type that the file format has, and what to note where that is not its own."""
    if tensor.dtype in NATIVE:
        return tensor.resolve_neg(), {}
    name: dict[str, Json] = {"as": str(tensor.dtype).removeprefix("torch.")}
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj().resolve_neg()), name
    return tensor.view(CARRIERS[tensor.itemsize]), name


def _join(path: str, key: object) -> str:
    return f"{path}/{escape(str(key))}" if path else escape(str(key))


def _numbers(values: list[Tree]) -> Tensor | None:
    """The list as one tensor, where all of it is floats or all of it small ints."""
    kinds = set(map(type, values))
    try:
        if kinds == {float}:
            return torch.frombuffer(array("d", values), dtype=torch.float64).clone()
        if kinds == {int}:
            return torch.frombuffer(array("q", values), dtype=torch.int64).clone()
    except OverflowError:
        return None
    return None


def _by_ancestor(value: Tree) -> Callable[[_Encoder, Tree, str], Json] | None:
    if is_dtensor(value):
        return _Encoder.put_dtensor
    return next((encode for kind, encode in _BY_ANCESTOR if isinstance(value, kind)), None)


_BY_TYPE: dict[type, Callable[[_Encoder, Tree, str], Json]] = {
    type(None): _Encoder.put_same,
    bool: _Encoder.put_same,
    str: _Encoder.put_same,
    int: _Encoder.put_integer,
    float: _Encoder.put_float,
    complex: _Encoder.put_complex,
    bytes: _Encoder.put_bytes,
    list: _Encoder.put_list,
    tuple: _Encoder.put_tuple,
    torch.Size: _Encoder.put_tuple,
    dict: _Encoder.put_dict,
    Counter: _Encoder.put_counter,
    OrderedDict: _Encoder.put_ordered,
    Tensor: _Encoder.put_tensor,
    Piece: _Encoder.put_piece,
    np.ndarray: _Encoder.put_array,
    torch.dtype: _Encoder.put_dtype,
    torch.device: _Encoder.put_device,
}
_BY_ANCESTOR: tuple[tuple[type, Callable[[_Encoder, Tree, str], Json]], ...] = (
    (Tensor, _Encoder.put_tensor),
    (np.generic, _Encoder.put_scalar),
    (PurePath, _Encoder.put_path),
    (dict, _Encoder.put_dict),
)

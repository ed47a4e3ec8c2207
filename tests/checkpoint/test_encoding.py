"""State trees survive being written as JSON and tensors, and nothing else can be written."""

import json
import math
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loopwright.checkpoint import decode, encode, read_checkpoint, write_checkpoint
from loopwright.errors import CheckpointError
from tests.checkpoint.helpers import raw, same
from tests.mistakes import raises

DTYPES = [
    *[
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    *[torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool],
    *[
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.complex64,
        torch.complex128,
        torch.float8_e8m0fnu,
    ],
]
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


KEYS = st.one_of(
    ANY_TEXT,
    st.sampled_from(["$tensor", "$dict", "$", "__metadata__", "a/b", "%2F", ""]),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.binary(max_size=4),
    st.tuples(st.integers(), ANY_TEXT),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**300), 2**300),
    st.floats(),
    st.complex_numbers(),
    ANY_TEXT,
    st.binary(max_size=20),
    tensors(),
    arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_dims=3, max_side=3)),
    arrays.from_dtype(np.dtype("float32")),
    arrays.from_dtype(np.dtype("int16")),
    st.sampled_from(DTYPES),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1)]),
    st.sampled_from([Path("runs/a"), Path("/tmp")]),
    st.lists(st.floats(), min_size=256, max_size=260),
    st.lists(st.integers(-(2**64), 2**64), min_size=256, max_size=258),
)
TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        st.lists(trees, max_size=4),
        st.lists(trees, max_size=4).map(tuple),
        st.dictionaries(KEYS, trees, max_size=4),
        st.dictionaries(KEYS, st.integers(), max_size=4).map(Counter),
    ),
    max_leaves=8,
)


def through_json(tree):
    structure, named = encode(tree)
    return decode(json.loads(json.dumps(structure, allow_nan=False)), named)


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_any_tree_comes_back_bit_for_bit(tree):
    assert same(through_json(tree), tree)


@given(st.dictionaries(KEYS, TREES, max_size=3))
@settings(max_examples=30, deadline=None)
def test_any_tree_comes_back_from_files_bit_for_bit(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("any") / "checkpoint"
    tree.pop("models", None)
    write_checkpoint(path, tree)
    assert same(read_checkpoint(path).tree, tree)


def test_keys_that_read_alike_get_names_of_their_own():
    tree = {0: torch.zeros(1), "0": torch.ones(1), "a/b": torch.ones(2), "a": {"b": torch.zeros(2)}}
    assert len(encode(tree)[1]) == 4
    assert same(through_json(tree), tree)


def test_nan_keeps_its_payload():
    odd = torch.tensor([0xFFF8000000000001], dtype=torch.uint64).view(torch.float64).item()
    assert same(through_json([odd, math.nan]), [odd, math.nan])


def test_a_transposed_tensor_comes_back_with_its_values(tmp_path):
    tensor = torch.arange(6.0).reshape(2, 3).t()
    write_checkpoint(tmp_path / "a", {"x": tensor, "y": torch.ones(1).expand(4)})
    tree = read_checkpoint(tmp_path / "a").tree
    assert torch.equal(tree["x"], tensor)
    assert torch.equal(tree["y"], torch.ones(4))


def test_conjugated_and_negated_views_come_back_with_their_values(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    write_checkpoint(tmp_path / "a", {"x": tensor.conj(), "y": tensor.conj().imag})
    tree = read_checkpoint(tmp_path / "a").tree
    assert raw(tree["x"]) == raw(tensor.conj())
    assert torch.equal(tree["y"], torch.tensor([-2.0, 4.0]))


Point = namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        (Point(1), "Point"),
        (lambda: None, "function"),
        (np.array([object()]), "numpy.ndarray"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.nn.UninitializedParameter(), "lazy module"),
    ],
)
def test_anything_else_is_refused_with_its_place_and_type(value, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        encode({"callbacks": {"mine": [0, value]}})
    assert "callbacks/mine/1" in str(caught.value)


def test_a_tree_that_contains_itself_is_refused():
    tree: dict = {}
    tree["again"] = tree
    with raises("state-too-deep"):
        encode(tree)


@pytest.mark.parametrize(
    "structure",
    [
        {"$unknown": 1},
        {"$tuple": 5},
        {"$tuple": [], "$dict": []},
        {"$tensor": "absent"},
        {"$tensor": ["t"]},
        {"$tensor": "t", "as": "load"},
        {"$tensor": "t", "as": "complex64"},
        {"$tensor": "t", "as": "int64"},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$dict": [1]},
        {"$int": 5},
        {"$int": "zz"},
        {"$float": "2"},
        {"$float": "nan:00"},
        {"$complex": [1]},
        {"$complex": ["1", "2"]},
        {"$bytes": "%%%"},
        {"$array": "t", "dtype": "O", "shape": [1]},
        {"$array": "t", "dtype": "|V4", "shape": [1]},
        {"$array": "t", "dtype": "<f4", "shape": [-1]},
        {"$array": "t", "dtype": "<f4", "shape": [99999999999999999999]},
        {"$array": "t", "dtype": "<f4"},
        {"$scalar": "00", "dtype": "<f8"},
        {"$dtype": "nn"},
        {"$device": "nowhere"},
        {"$state_dict": [1, 2], "metadata": {}},
        {"$state_dict": {}},
        {"$counter": {"a": 1}},
        {"$path": 3},
        {"$numbers": 3},
    ],
)
def test_a_malformed_structure_is_refused(structure):
    with pytest.raises(CheckpointError):
        decode(structure, {"t": torch.zeros(3, dtype=torch.uint8)})


def test_the_versions_in_a_state_dict_are_kept():
    model = torch.nn.BatchNorm1d(2)
    assert through_json(model.state_dict())._metadata == {"": {"version": 2}}


def test_a_dictionary_that_looks_like_a_marker_stays_a_dictionary():
    tree = {"$tensor": "optimizers/default", "nested": {"$tuple": [1, 2]}}
    assert through_json(tree) == tree

"""Looking at checkpoints and comparing them, from Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from loopwright import CheckpointError
from loopwright.checkpoint import (
    describe_checkpoint,
    diff_checkpoints,
    find_checkpoint,
    read_checkpoint,
    read_header,
    save_weights,
)
from loopwright.checkpoint.compare import compare_trees
from tests.cli.helpers import flip

NEWEST = "checkpoints/update-00000015"


def test_of_a_run_the_newest_sound_resume_point_is_found(own_run, caplog):
    flip(own_run / NEWEST / "model.safetensors")
    assert find_checkpoint(own_run) == own_run / "checkpoints/update-00000010"
    assert "update-00000015 is skipped: model.safetensors does not match its hash" in caplog.text


def test_headers_describe_the_tensors_that_are_loaded(finished):
    path = finished / "first" / NEWEST
    described = {
        tensor.name: tensor for tensor in describe_checkpoint(path).tensors["model.safetensors"]
    }
    model = read_checkpoint(path).tree["models"]["model"]
    assert {name: (t.shape, t.size) for name, t in described.items()} == {
        name: (tuple(tensor.shape), tensor.nbytes) for name, tensor in model.items()
    }
    assert described["1.num_batches_tracked"].dtype == "I64"


def test_headers_name_tied_tensors_and_count_as_people_do(tmp_path):
    weight = torch.zeros(2, 3)
    save_weights(
        tmp_path / "w.safetensors", {"10.w": torch.ones(1), "2.w": weight, "head.w": weight}
    )
    tensors = read_header(tmp_path / "w.safetensors")
    assert [(t.name, t.size, t.tied_to) for t in tensors] == [
        ("2.w", 24, None),
        ("10.w", 4, None),
        ("head.w", 0, "2.w"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        b"\x02" + b"\0" * 7 + b"[]",
        b"\x07" + b"\0" * 7 + b'{"a":1}',
        b'\x31\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[-1],"data_offsets":1}}',
    ],
)
def test_a_malformed_header_is_refused(tmp_path, data):
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"w\.safetensors"):
        read_header(tmp_path / "w.safetensors")


def test_a_checkpoint_equals_the_file_its_weights_were_exported_to(finished, tmp_path):
    path = finished / "first" / NEWEST
    model = dict(read_checkpoint(path).tree["models"]["model"])
    save_weights(tmp_path / "w.pt", model)
    assert diff_checkpoints(tmp_path / "w.pt", path) == ()
    model["3.bias"] = model["3.bias"] + torch.tensor([0.0, 0.5, 0.0])
    save_weights(tmp_path / "changed.safetensors", model)
    (difference,) = diff_checkpoints(path, tmp_path / "changed.safetensors")
    assert difference.path == "3.bias"
    assert difference.what == "float32 [3]: 1 of 3 values differ, max abs difference 0.5"


ZEROS = torch.zeros(4)
CASES = {
    "numbers": (1.0, 1.5, "1.0 / 1.5"),
    "types": (1, True, "1 / True"),
    "signs of zero": (0.0, -0.0, "0.0 / -0.0"),
    "missing": ({"a": 1, "b": 2}, {"b": 2}, "1 / nothing"),
    "added": ({"b": 2}, {"a": ZEROS, "b": 2}, "nothing / float32 [4]"),
    "shapes": (ZEROS, torch.zeros(2, 2), "float32 [4] / float32 [2, 2]"),
    "dtypes": (ZEROS, ZEROS.double(), "float32 [4] / float64 [4]"),
    "tensor and number": (ZEROS, 0.0, "float32 [4] / 0.0"),
    "one nan": (
        ZEROS,
        torch.tensor([0, 0, 0, math.nan]),
        "float32 [4]: 1 of 4 values differ, max abs difference nan",
    ),
    "bits alone": (ZEROS, -ZEROS, "float32 [4]: 4 of 4 values differ, max abs difference 0"),
    "bools": (ZEROS.bool(), ~ZEROS.bool(), "bool [4]: 4 of 4 values differ, max abs difference 1"),
    "complex": (
        torch.tensor([3j]),
        torch.tensor([4 + 0j]),
        "complex64 [1]: 1 of 1 values differ, max abs difference 5",
    ),
    "arrays": (
        np.arange(3),
        np.array([0, 1, 9]),
        "int64 [3]: 1 of 3 values differ, max abs difference 7",
    ),
    "texts in arrays": (np.array(["a"]), np.array(["b"]), "<U1 [1] / <U1 [1]"),
    "curves": ([1.0, 2.0], [1.0, 5.0], "[1.0, 2.0] / [1.0, 5.0]"),
    "longer lists": ([ZEROS], [ZEROS, ZEROS], "nothing / float32 [4]"),
}


@pytest.mark.parametrize(("first", "second", "what"), CASES.values(), ids=CASES.keys())
def test_each_kind_of_difference_is_found_and_named(first, second, what):
    assert [difference.what for difference in compare_trees({"x": first}, {"x": second})] == [what]


SAME = {
    "nan": math.nan,
    "tensor with nan": torch.tensor([math.nan, math.inf]),
    "empty tensor": torch.zeros(0, 3),
    "scalar": torch.tensor(2.0),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "transposed": torch.randn(3, 4).T,
    "array": np.float64(0.1),
    "nested": {"a": [(1, None, b"x"), {"b": torch.ones(2)}]},
}


@pytest.mark.parametrize("value", SAME.values(), ids=SAME.keys())
def test_what_is_the_same_does_not_differ(value):
    assert compare_trees({"x": value}, {"x": value}) == ()

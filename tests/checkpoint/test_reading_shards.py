"""A checkpoint that several processes wrote is one checkpoint: whole when read, absent when a part
is."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.checkpoint import (
    CheckpointStore,
    Group,
    StoredTensor,
    load_stored,
    load_weights,
    new_token,
    read_checkpoint,
    sharded,
    verify_checkpoint,
    write_checkpoint,
)
from loopwright.checkpoint.layout import Box, StoredShard, TensorLayout
from loopwright.errors import CheckpointError
from tests.checkpoint.helpers import resign, same
from tests.checkpoint.shards import (
    NOTHING,
    one_tensor,
    part_of,
    rows,
    whole_state,
    write_parts,
    write_together,
)
from tests.mistakes import raises


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
def test_shards_of_any_number_of_processes_are_read_as_whole_tensors(tmp_path, world):
    state = write_parts(tmp_path / "point", world, {"update": 4})
    read = read_checkpoint(tmp_path / "point")
    assert same(read.tree, state)
    assert read.meta == {"update": 4}
    assert verify_checkpoint(tmp_path / "point") == []


def test_tied_tensors_are_written_once_and_read_as_one(tmp_path):
    write_parts(tmp_path / "point", 2)
    weights = read_checkpoint(tmp_path / "point").tree["models"]["default"]
    assert weights["weight"].data_ptr() == weights["head"].data_ptr()


def test_a_checkpoint_that_lacks_parts_does_not_exist_and_the_error_names_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sharded, "PATIENCE_SECONDS", 0.0)
    states = [part_of(whole_state(), rank, 4) for rank in range(4)]
    token = new_token()
    write_checkpoint(tmp_path / "point", states[2], group=Group(2, 4), token=token)
    with raises("rank-wrote-nothing", "ranks 1, 3", "4", "in 0 s"):
        write_checkpoint(tmp_path / "point", states[0], group=Group(0, 4), token=token)
    assert list(tmp_path.iterdir()) == []


def test_a_second_attempt_does_not_take_the_parts_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded, "PATIENCE_SECONDS", 0.0)
    token, tensor = new_token(), torch.zeros(4, 2)
    write_checkpoint(
        tmp_path / "point", {"weight": rows(tensor, 1, 2)}, group=Group(1, 2), token=token
    )
    with raises("rank-wrote-nothing", "rank 2"):
        write_checkpoint(
            tmp_path / "point", {"weight": rows(tensor, 0, 3)}, group=Group(0, 3), token=token
        )
    with raises("rank-wrote-nothing", "rank 1", "2"):
        write_checkpoint(
            tmp_path / "point", {"weight": rows(tensor, 0, 2)}, group=Group(0, 2), token=token
        )


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        ([Box((0, 0), (3, 2)), Box((2, 0), (2, 2))], "overlaps another"),
        ([Box((0, 0), (2, 2)), Box((0, 0), (2, 2))], "overlaps another"),
        ([Box((0, 0), (2, 2)), Box((3, 0), (1, 2))], "hold 6 values instead of 8"),
        ([Box((0, 0), (4, 2)), NOTHING, NOTHING], None),
    ],
)
def test_shards_must_cover_the_tensor_exactly_once_to_be_committed(tmp_path, boxes, problem):
    states = one_tensor(len(boxes), boxes)
    if problem is None:
        write_together(tmp_path / "point", states)
        assert verify_checkpoint(tmp_path / "point") == []
        return
    with raises("shards-incomplete", problem):
        write_together(tmp_path / "point", states)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_save_different_states_are_refused(tmp_path):
    states = [{"weight": rows(torch.zeros(4, 2), 0, 2)}, {"weight": rows(torch.zeros(6, 2), 1, 2)}]
    with raises("ranks-save-differently", "1", "'weight'", "F32", "[6, 2]", "F32 [4, 2]"):
        write_together(tmp_path / "point", states)
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_byte_in_a_part_is_found_and_the_part_named(tmp_path):
    write_parts(tmp_path / "point", 3)
    part = tmp_path / "point" / "shard-1.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with raises("damaged-checkpoint", "shard-1.safetensors does not match its hash"):
        read_checkpoint(tmp_path / "point")
    assert [
        "shard-1.safetensors" in problem for problem in verify_checkpoint(tmp_path / "point")
    ] == [True]
    with raises("damaged-checkpoint", "shard-1.safetensors does not match its hash"):
        load_weights(tmp_path / "point")


@pytest.mark.parametrize("name", ["shard-2.safetensors", "pieces.json"])
def test_a_missing_part_is_named_and_the_checkpoint_passed_over(tmp_path, name, caplog):
    write_parts(tmp_path / "first", 3, {"update": 1})
    write_parts(tmp_path / "second", 3, {"update": 2})
    (tmp_path / "second" / name).unlink()
    with raises("damaged-checkpoint", name):
        read_checkpoint(tmp_path / "second")
    assert CheckpointStore(tmp_path).newest().meta == {"update": 1}
    assert f"{name} is missing" in caplog.text


def changed_table(path, change) -> None:
    table = json.loads((path / "pieces.json").read_text())
    change(table["tensors"]["weight"])
    resign(path, files={"pieces.json": json.dumps(table).encode()})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda entry: entry["pieces"][1]["box"].update(offsets=[1, 0]), "overlaps another"),
        (lambda entry: entry["pieces"].pop(), "hold 4 values instead of 8"),
        (lambda entry: entry["pieces"].append(entry["pieces"][0]), "overlaps another"),
        (lambda entry: entry["pieces"][1]["box"].update(offsets=[3, 0]), "lies outside its shape"),
        (
            lambda entry: entry["pieces"][1]["box"].update(offsets=[2, 0, 0]),
            "lies outside its shape",
        ),
        (lambda entry: entry["pieces"][1]["box"].update(offsets=[-2, 0]), "malformed"),
        (
            lambda entry: entry["pieces"][1].update(file="../other.safetensors"),
            "not part of the checkpoint",
        ),
        (lambda entry: entry["pieces"][1].update(name="other"), "not part of the checkpoint"),
        (lambda entry: entry.update(dtype="F64"), "holds F32"),
        (lambda entry: entry.update(shape=[1 << 70, 2]), "instead of"),
        (lambda entry: entry.pop("shape"), "malformed"),
    ],
)
def test_a_table_of_shards_that_does_not_add_up_is_refused(tmp_path, change, problem):
    write_together(tmp_path / "point", one_tensor(2, [Box((0, 0), (2, 2)), Box((2, 0), (2, 2))]))
    changed_table(tmp_path / "point", change)
    with pytest.raises(CheckpointError, match=problem):
        read_checkpoint(tmp_path / "point")
    assert [problem in found for found in verify_checkpoint(tmp_path / "point")] == [True]


@given(data=st.data())
def test_a_grid_of_boxes_covers_a_tensor_and_no_fewer_or_more_of_them_do(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [Box((), ())]
    for size in shape:
        cuts = sorted({0, size, *data.draw(st.sets(st.integers(0, size), max_size=3))})
        spans = list(pairwise(cuts))
        boxes = [
            Box((*b.offsets, start), (*b.shape, end - start)) for b in boxes for start, end in spans
        ]
    boxes = data.draw(st.permutations(boxes))

    def problem(chosen):
        return TensorLayout(
            "F32", shape, tuple(StoredShard("a", "b", box) for box in chosen)
        ).find_problem()

    assert problem(boxes) is None
    assert problem(boxes[1:]) is not None
    assert problem([*boxes, boxes[0]]) is not None


def test_weights_are_loaded_from_shards_under_their_own_names(tmp_path):
    tensor = torch.randn(4, 3)
    states = [
        {"models": {"shard-0": {"a/b.weight": rows(tensor, rank, 2), "count": torch.tensor(3)}}}
        for rank in range(2)
    ]
    write_together(tmp_path / "point", states)
    assert same(load_weights(tmp_path / "point"), {"count": torch.tensor(3), "a/b.weight": tensor})


@pytest.mark.parametrize("world", [None, 1, 3])
def test_a_lazy_checkpoint_holds_descriptions_that_read_what_was_saved(tmp_path, world):
    state = whole_state()
    if world is None:
        write_checkpoint(tmp_path / "point", state)
    else:
        write_parts(tmp_path / "point", world)
    lazy = read_checkpoint(tmp_path / "point", lazy=True).tree
    stored = lazy["others"]["complex"]
    assert isinstance(stored, StoredTensor)
    assert (stored.shape, stored.dtype) == (torch.Size([5, 2]), torch.complex64)
    assert lazy["history"] == state["history"]
    assert same(load_stored(lazy), state)


def test_a_box_is_read_without_the_parts_it_does_not_touch(tmp_path):
    write_together(tmp_path / "point", one_tensor(2, [Box((0, 0), (2, 2)), Box((2, 0), (2, 2))]))
    stored = read_checkpoint(tmp_path / "point", lazy=True, verify=False).tree["weight"]
    (tmp_path / "point" / "shard-1.safetensors").unlink()
    assert stored.read_box((1, 0), (1, 2)).tolist() == [[2.0, 3.0]]
    with raises("not-safetensors", "shard-1.safetensors"):
        stored.read()


def test_what_a_lazy_checkpoint_reads_does_not_change_with_the_file(tmp_path):
    write_checkpoint(tmp_path / "point", {"a": torch.ones(3)})
    values = read_checkpoint(tmp_path / "point", lazy=True).tree["a"].read()
    file = tmp_path / "point" / "state.safetensors"
    with file.open("r+b") as content:
        content.seek(-12, 2)
        content.write(b"\0" * 12)
    assert values.tolist() == [1.0, 1.0, 1.0]

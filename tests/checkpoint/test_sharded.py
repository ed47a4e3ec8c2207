"""Processes that write a checkpoint together: each its own part, whoever comes first, and whoever
never comes."""

import subprocess
import sys
import threading

import torch

from loopwright.checkpoint import (
    AsyncWriter,
    CheckpointStore,
    Group,
    KeepPolicy,
    KeptModels,
    SnapshotBuffers,
    TensorShard,
    new_token,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from loopwright.checkpoint import sharded as gathering
from loopwright.checkpoint.atomic import clean_leftovers
from loopwright.checkpoint.layout import Box, read_layouts, whole
from tests.checkpoint.helpers import same
from tests.checkpoint.shards import part_of, rows, shard, whole_state, write_parts
from tests.forked import call_forked
from tests.mistakes import raises


def test_a_process_copies_only_what_it_writes_of_a_checkpoint():
    tensor = torch.randn(4, 2)
    tree = {
        "own": rows(tensor, 1, 2),
        "copy": shard(tensor, whole((4, 2)), is_primary=False),
        "plain": tensor,
    }
    taken = SnapshotBuffers(Group(1, 2)).take(tree)
    assert torch.equal(taken["own"].local, tensor[2:])
    assert taken["copy"].local.numel() == 0
    assert taken["plain"].numel() == 0
    kept = SnapshotBuffers().take(tree)
    assert torch.equal(kept["copy"].local, tensor)
    assert torch.equal(kept["plain"], tensor)


def test_giving_up_ends_the_waiting_for_other_processes(tmp_path):
    writer = AsyncWriter(group=Group(0, 2))
    writer.hold(tmp_path / "point", {"weight": rows(torch.ones(2, 2), 0, 2)}, token=new_token())
    writer.start()
    writer.abandon()
    with raises("rank-wrote-nothing", "rank 1", "2", "before the save was abandoned"):
        writer.wait()
    assert list(tmp_path.iterdir()) == []


def test_leaving_the_program_does_not_wait_long_for_processes_that_never_come(tmp_path):
    def program() -> None:
        gathering.LEAVING_SECONDS = 0.1
        own = TensorShard(torch.ones(1), Box((0,), (1,)), (2,), True)
        writer = AsyncWriter(group=Group(0, 2))
        writer.hold(tmp_path / "point", {"a": own}, token=new_token())
        writer.start()

    ended = call_forked(program, tmp_path)
    assert ended.code == 0
    assert "rank 1 of 2 did not write a part before the program ended" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_writers_of_a_group_meet_whoever_comes_first(tmp_path):
    token, state = new_token(), whole_state()
    writers = [AsyncWriter(group=Group(rank, 3)) for rank in range(3)]
    committed = threading.Event()
    for rank in (1, 0, 2):
        part = part_of(state, rank, 3)
        then = committed.set if rank == 0 else None
        writers[rank].hold(tmp_path / "point", part, token=token, then=then)
        writers[rank].start()
    for writer in writers:
        writer.wait()
    assert committed.is_set()
    assert same(read_checkpoint(tmp_path / "point").tree, state)


def test_only_the_first_process_removes_old_checkpoints(tmp_path):
    token, state = new_token(), whole_state()
    stores = [
        CheckpointStore(tmp_path, keep=1, writer=AsyncWriter(group=Group(rank, 2)))
        for rank in range(2)
    ]
    for update in (1, 2, 3):
        for rank in (1, 0):
            stores[rank].save(
                f"update-{update}",
                part_of(state, rank, 2),
                {"update": update},
                wait=True,
                token=token,
            )
            assert stores[1].prune() == []
            assert stores[1].discard(after_update=0) == []
    assert [path.name for path in tmp_path.iterdir()] == ["update-3"]


def test_a_group_keeps_the_best_models_that_the_first_process_chose(tmp_path):
    token, state = new_token(), whole_state()
    policy = KeepPolicy("loss", "min", 1)
    kept = [
        KeptModels(tmp_path, policy, writer=AsyncWriter(group=Group(rank, 2))) for rank in range(2)
    ]
    for name, loss in (("a", 2.0), ("b", 1.0), ("c", 3.0)):
        if kept[0].wants(name, loss, 0):
            for rank in (1, 0):
                kept[rank].hold(name, part_of(state, rank, 2), {}, value=loss, token=token)
                kept[rank].start()
                kept[rank].writer.wait()
    assert kept[1].discard(after_update=-1) == []
    assert [model.name for model in kept[1].models()] == ["b"]


def test_what_the_own_group_is_writing_is_not_cleaned_away(tmp_path):
    token = new_token()
    write_checkpoint(
        tmp_path / "point", {"a": rows(torch.ones(2, 2), 1, 2)}, group=Group(1, 2), token=token
    )
    assert clean_leftovers(tmp_path) == []
    write_checkpoint(
        tmp_path / "point", {"a": rows(torch.ones(2, 2), 0, 2)}, group=Group(0, 2), token=token
    )
    assert verify_checkpoint(tmp_path / "point") == []


def test_checkpoints_of_one_process_do_without_torchs_distributed_tensors(tmp_path):
    program = f"""
import sys, torch
from loopwright.checkpoint import *
store = CheckpointStore({str(tmp_path)!r})
store.save("one", {{"models": {{"default": torch.nn.Linear(2, 2).state_dict()}}}}, wait=True)
load_weights(store.newest(lazy=True).path)
assert "torch.distributed.tensor" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_the_table_of_shards_is_read_without_torch(tmp_path):
    write_parts(tmp_path / "point", 2)
    program = f"""
import sys
from pathlib import Path
from loopwright.checkpoint.manifest import read_manifest, verify_checkpoint
path = Path({str(tmp_path / "point")!r})
assert read_manifest(path).files and not verify_checkpoint(path)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
    files = [f"shard-{rank}.safetensors" for rank in range(2)]
    assert read_layouts(tmp_path / "point", files)["models/default/weight"].shape == (5, 3)


def test_a_snapshot_of_shards_does_not_change_with_the_original_and_uses_the_same_memory_again():
    buffers, tensor = SnapshotBuffers(), torch.ones(2, 2)
    own = TensorShard(tensor, whole((2, 2)), (2, 2), True)
    first = buffers.take({"a": own})["a"].local
    tensor.zero_()
    assert first.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert buffers.take({"a": own})["a"].local.data_ptr() == first.data_ptr()

"""Checkpoints of models that are spread over processes: the same on any number of them, or absent."""

import os

import pytest
import torch
from sharded_ranks import (
    LAYOUTS,
    Net,
    Ranks,
    part,
    restore_trained,
    rewind,
    run_ranks,
    save_trained,
    write_and_die,
    write_to_full_disk,
    write_until_killed,
)

from loopwright.checkpoint import (
    CheckpointStore,
    Group,
    load_weights,
    new_token,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory for each way of spreading a model, with the checkpoint and what torch says is the whole state."""
    root = tmp_path_factory.mktemp("sharded")
    for layout, world in LAYOUTS.items():
        (root / layout).mkdir()
        run_ranks(world, save_trained, layout, root / layout)
    return root


def differences(own, other, path="") -> list[str]:
    """Where two trees are not equal to the last bit."""
    if isinstance(own, torch.Tensor):
        is_same = own.dtype == other.dtype and own.shape == other.shape and torch.equal(own, other)
        return [] if is_same else [path]
    if isinstance(own, dict):
        assert own.keys() == other.keys(), path
        return [place for key in own for place in differences(own[key], other[key], f"{path}/{key}")]
    if isinstance(own, list):
        return [p for i, (a, b) in enumerate(zip(own, other, strict=True)) for p in differences(a, b, f"{path}/{i}")]
    return [] if own == other else [path]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_process_reads_the_whole_state_that_any_number_of_ranks_wrote(saved, layout):
    read = read_checkpoint(saved / layout / "update-00000001")
    assert differences(read.tree, torch.load(saved / layout / "expected.pt", weights_only=True)) == []
    assert verify_checkpoint(saved / layout / "update-00000001") == []
    assert read.meta == {"update": 1}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plain_model_loads_the_weights_of_a_sharded_one(saved, layout):
    model = Net()
    model.load_state_dict(load_weights(saved / layout / "update-00000001"))
    expected = torch.load(saved / layout / "expected.pt", weights_only=True)["models"]["default"]
    assert differences(dict(model.state_dict()), expected) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_restore_what_any_other_number_of_ranks_wrote(saved, layout):
    problems = run_ranks(LAYOUTS[layout], restore_trained, layout, [saved / source for source in LAYOUTS])
    assert problems == [[]] * LAYOUTS[layout]


def test_a_replica_writes_nothing_that_another_rank_writes(saved):
    def bytes_of_parts(layout):
        return sum(path.stat().st_size for path in (saved / layout / "update-00000001").glob("shard-*"))

    parts = sorted(path.name for path in (saved / "replicate x shard" / "update-00000001").glob("shard-*"))
    assert parts == ["shard-0.safetensors", "shard-1.safetensors", "shard-2.safetensors"]  # 2: half of the grid
    assert bytes_of_parts("replicate x shard") < 1.5 * bytes_of_parts("2")


def test_a_snapshot_of_a_sharded_model_is_restored_without_a_file():
    assert run_ranks(4, rewind, "replicate x shard") == [[]] * 4


def test_a_group_that_is_killed_leaves_the_checkpoint_before_and_litter_that_the_next_start_removes(tmp_path):
    ranks = Ranks(3, write_until_killed, tmp_path, token := f"{os.getpid()}-0", 2)
    assert [ranks.receive(rank) for rank in (0, 1)] == ["written"] * 2
    litter = f".update-2.group-{token}-1"
    assert sorted(os.listdir(tmp_path)) == [litter, "update-1"]
    for rank in range(3):
        ranks.kill(rank)
    store = CheckpointStore(tmp_path)
    newest = store.newest()
    assert newest.meta == {"update": 1}
    assert newest.tree["weight"].unique().tolist() == [1.0]
    assert os.listdir(tmp_path) == ["update-1"]

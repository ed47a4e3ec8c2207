"""Checkpoints of sharded models: the same on any number of processes, or absent."""

import os
import signal
from math import prod

import pytest
import torch

from loopwright.checkpoint import (
    CheckpointStore,
    load_weights,
    read_checkpoint,
    read_header,
    verify_checkpoint,
)
from tests.distributed.ranks import run_ranks, start_ranks
from tests.distributed.sharded_ranks import (
    LAYOUTS,
    Net,
    compare,
    die_together,
    die_while_writing,
    fail_while_writing,
    restore_all,
    rewind,
    save_all,
)

ALL = [layout for layouts in LAYOUTS.values() for layout in layouts]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory for each way of sharding a model, with the checkpoint and the full state
    according to torch."""
    root = tmp_path_factory.mktemp("sharded")
    for world, layouts in LAYOUTS.items():
        for layout in layouts:
            (root / layout).mkdir()
        run_ranks(save_all, world, layouts, root)
    return root


@pytest.mark.parametrize("layout", ALL)
def test_one_process_reads_the_whole_state_that_any_number_of_ranks_wrote(saved, layout):
    read = read_checkpoint(saved / layout / "update-00000001")
    assert (
        compare(read.tree, torch.load(saved / layout / "expected.pt", weights_only=True), "state")
        == []
    )
    assert verify_checkpoint(saved / layout / "update-00000001") == []
    assert read.meta == {"update": 1}


@pytest.mark.parametrize("layout", ALL)
def test_a_plain_model_loads_the_weights_of_a_sharded_one(saved, layout):
    model = Net()
    model.load_state_dict(load_weights(saved / layout / "update-00000001"))
    expected = torch.load(saved / layout / "expected.pt", weights_only=True)["models"]["default"]
    assert compare(dict(model.state_dict()), expected, "model") == []


@pytest.mark.parametrize("world", LAYOUTS)
def test_ranks_restore_what_any_other_number_of_ranks_wrote(saved, world, tmp_path):
    sources = [saved / "3", saved / "replicate x shard", saved / "shard x tensor"]
    assert run_ranks(restore_all, world, LAYOUTS[world], sources) == [[]] * world


@pytest.mark.parametrize("layout", ["replicate x shard", "shard x tensor"])
def test_a_weight_that_is_on_several_ranks_is_in_one_file(saved, layout):
    files = sorted((saved / layout / "update-00000001").glob("shard-*"))
    held = [{info.name: prod(info.shape) for info in read_header(file)} for file in files]
    names = {name for part in held for name in part if name.startswith("models/")}
    parameters = Net().named_parameters(remove_duplicate=False)
    sizes = {f"models/default/{name}": parameter.numel() for name, parameter in parameters}
    assert {name: sum(part.get(name, 0) for part in held) for name in names} == sizes


def test_a_snapshot_of_a_sharded_model_is_restored_without_a_file(tmp_path):
    assert run_ranks(rewind, 4, "replicate x shard") == [[]] * 4


def test_a_group_that_is_killed_leaves_the_checkpoint_before_and_litter_that_the_next_start_removes(
    tmp_path,
):
    ended = start_ranks(die_together, 3, tmp_path)
    assert [rank.code for rank in ended] == [-signal.SIGKILL, 0, -signal.SIGKILL], ended[1].error
    points = tmp_path / "points"
    assert sorted(os.listdir(points)) == [
        f".update-2.group-{(tmp_path / 'token').read_text()}-1",
        "update-1",
    ]
    newest = CheckpointStore(points).newest()
    assert newest.meta == {"update": 1}
    assert newest.tree["weight"].unique().tolist() == [1.0]
    assert os.listdir(points) == ["update-1"]


def test_what_a_living_group_is_writing_is_not_cleaned_away_by_others(tmp_path):
    ended = start_ranks(die_together, 3, tmp_path)
    assert ended[1].value == []


def test_a_rank_that_is_ended_in_the_middle_of_its_part_leaves_no_checkpoint_and_is_named(tmp_path):
    first, second = start_ranks(die_while_writing, 2, tmp_path)
    assert second.code == -signal.SIGXFSZ
    assert "rank 1 of 2 did not write a part in 0.5 s" in first.value
    assert os.listdir(tmp_path / "points") == ["update-1"]
    assert CheckpointStore(tmp_path / "points").newest().meta == {"update": 1}


def test_a_rank_that_cannot_write_is_named_by_the_first_and_the_next_save_succeeds(tmp_path):
    (first, first_again), (second, second_again) = run_ranks(fail_while_writing, 2, tmp_path)
    assert "Rank 1 could not write its part of the checkpoint: OSError" in first
    assert "part of rank 1 of checkpoint" in second
    assert (first_again, second_again) == ("", "")
    assert os.listdir(tmp_path / "points") == ["update-1"]
    assert verify_checkpoint(tmp_path / "points" / "update-1") == []

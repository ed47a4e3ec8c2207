"""Saving behind the training: what is saved is the state of that moment, and no failure is lost."""

import logging
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch

from loopwright.checkpoint import (
    AsyncWriter,
    CheckpointStore,
    SnapshotBuffers,
    read_checkpoint,
    snapshot,
    update_name,
    verify_checkpoint,
)
from tests.checkpoint.helpers import (
    numbered_state,
    same,
    save_under_size_limit,
    start,
    training_state,
)
from tests.forked import call_forked
from tests.mistakes import raises


def pointers(tree):
    return {name: tensor.data_ptr() for name, tensor in tree.items()}


def test_a_snapshot_equals_the_tree():
    assert same(snapshot(training_state()), training_state())


def test_a_snapshot_does_not_change_with_the_original():
    tree = {
        "t": torch.zeros(3),
        "a": np.zeros(3),
        "list": [1, [2]],
        "dict": {"x": {"y": 1}},
        "tuple": (torch.zeros(1), [0]),
    }
    copied = snapshot(tree)
    tree["t"].fill_(1)
    tree["a"][:] = 1
    tree["list"][1].append(3)
    tree["dict"]["x"]["y"] = 2
    tree["tuple"][0].fill_(1)
    tree["tuple"][1].append(1)
    expected = {
        "t": torch.zeros(3),
        "a": np.zeros(3),
        "list": [1, [2]],
        "dict": {"x": {"y": 1}},
        "tuple": (torch.zeros(1), [0]),
    }
    assert same(copied, expected)


def test_shared_tensors_are_copied_once_and_stay_shared():
    tensor = torch.ones(3)
    copied = snapshot({"a": tensor, "b": tensor[:], "c": tensor.clone()})
    assert copied["a"] is copied["b"]
    assert copied["a"] is not copied["c"]


def test_buffers_are_used_again_where_shapes_agree():
    buffers = SnapshotBuffers()
    tree = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros(3),
        "c": torch.zeros(2, 3),
        "d": torch.ones(3).double(),
    }
    first = pointers(buffers.take(tree))
    assert pointers(buffers.take(tree)) == first
    grown = pointers(buffers.take(tree | {"b": torch.zeros(4)}))
    assert {k for k in grown if grown[k] == first[k]} >= {"a", "c", "d"}


def test_what_cannot_be_saved_is_refused_at_the_call_with_its_place():
    with raises("cannot-be-saved", "callbacks/mine"):
        AsyncWriter().hold("anywhere", {"callbacks": {"mine": object()}})


def test_what_is_on_disk_is_the_state_at_the_call_whatever_happens_after(tmp_path):
    store = CheckpointStore(tmp_path, 4)
    state = numbered_state(1, 500_000)
    weight = state["models"]["default"]["weight"]
    average = state["optimizers"]["default"]["state"][0]["exp_avg"]
    for number in range(1, 5):
        state["update"] = number
        store.save(update_name(number), state, {"update": number})
        weight.add_(1)
        average.add_(1)
    store.writer.wait()
    for entry in store.entries():
        tree = read_checkpoint(entry.path).tree
        expected = float(tree["update"])
        assert tree["models"]["default"]["weight"].unique().tolist() == [expected]
        assert tree["optimizers"]["default"]["state"][0]["exp_avg"].unique().tolist() == [expected]


def test_a_failed_write_is_raised_at_the_next_check_once(tmp_path):
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 1)
    (tmp_path / "run").write_text("a file where the directory should be")
    store.save("a", numbered_state(1, 10))
    store.writer._thread.join()
    with raises("checkpoint-not-written"):
        store.writer.check()
    store.writer.check()


def test_a_failed_write_is_only_logged_where_asked_for(tmp_path, caplog):
    store = CheckpointStore(tmp_path / "run", 1, writer=AsyncWriter(on_error="warn"))
    (tmp_path / "run").write_text("a file where the directory should be")
    with caplog.at_level(logging.WARNING, "loopwright"):
        store.save("a", {}, wait=True)
    assert "could not be written" in caplog.text
    (tmp_path / "run").unlink()
    store.save("a", {}, wait=True)
    assert verify_checkpoint(tmp_path / "run" / "a") == []


def test_a_file_that_outgrows_its_limit_fails_the_save_and_the_one_before_stays(tmp_path):
    process, ours = start(save_under_size_limit, tmp_path)
    kind, message = ours.recv()
    process.join()
    assert kind == "CheckpointError"
    assert "could not be written" in message
    assert os.listdir(tmp_path) == [update_name(1)]
    assert CheckpointStore(tmp_path, 1).newest().tree["update"] == 1


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_fails_the_save_and_the_one_before_stays(small_disk):
    store = CheckpointStore(small_disk, 1)
    store.save(update_name(1), numbered_state(1), {"update": 1}, wait=True)
    store.save(update_name(2), numbered_state(2, 200_000), {"update": 2})
    with raises("checkpoint-not-written", "No space left"):
        store.writer.wait()
    assert os.listdir(small_disk) == [update_name(1)]
    assert store.newest().tree["update"] == 1


def test_leaving_the_program_waits_for_the_write(tmp_path):
    def program() -> None:
        CheckpointStore(tmp_path, 1).save("last", {"w": torch.ones(2_000_000)}, {"update": 1})

    assert call_forked(program, tmp_path).code == 0
    assert verify_checkpoint(tmp_path / "last") == []


def test_a_failed_write_is_raised_at_the_next_save(tmp_path):
    store = CheckpointStore(tmp_path / "run", 1)
    (tmp_path / "run").write_text("a file where the directory should be")
    store.save("a", {})
    with raises("checkpoint-not-written"):
        store.save("b", {})


def test_the_versions_in_a_state_dict_are_in_the_snapshot():
    assert snapshot(torch.nn.BatchNorm1d(1).state_dict())._metadata == {"": {"version": 2}}


def test_a_snapshot_of_parameters_needs_no_gradient_and_keeps_none():
    copied = snapshot({"p": torch.nn.Parameter(torch.ones(2))})
    assert type(copied["p"]) is torch.Tensor
    assert not copied["p"].requires_grad

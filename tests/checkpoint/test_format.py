"""A checkpoint on disk: its layout, its replacement, and every kind of damage."""

import json
import os
import random
import shutil
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file

from loopwright.checkpoint import (
    read_checkpoint,
    read_manifest,
    verify_checkpoint,
    write_checkpoint,
)
from loopwright.checkpoint.manifest import FORMAT
from loopwright.errors import CheckpointError
from tests.checkpoint.helpers import resign, same, training_state, write_numbered
from tests.mistakes import raises

FILES = ["manifest.json", "state.json", "state.safetensors", "default.safetensors"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "update-00000001"
    write_checkpoint(path, training_state(), {"update": 1, "loss": float("nan")})
    return path


@pytest.fixture
def checkpoint(original, tmp_path):
    return shutil.copytree(original, tmp_path / original.name)


def test_the_state_of_a_training_comes_back_bit_for_bit(checkpoint):
    read = read_checkpoint(checkpoint)
    assert same(read.tree, training_state())
    assert read.meta["update"] == 1
    assert read.meta["loss"] != read.meta["loss"]


def test_a_checkpoint_consists_of_the_files_it_documents(checkpoint):
    assert sorted(os.listdir(checkpoint)) == sorted(FILES)
    assert verify_checkpoint(checkpoint) == []


def test_all_json_is_strict(checkpoint):
    def refuse(constant):
        raise AssertionError(constant)

    for name in ("manifest.json", "state.json"):
        json.loads((checkpoint / name).read_text(), parse_constant=refuse)


def test_extra_state_of_a_model_is_kept(tmp_path):
    model = {
        "weight": torch.ones(2),
        "_extra_state": {"seen": torch.ones(3), "n": 4},
        "__metadata__": torch.ones(1),
    }
    write_checkpoint(tmp_path / "a", {"models": {"m": model}})
    assert same(read_checkpoint(tmp_path / "a").tree["models"]["m"], model)
    assert list(load_file(tmp_path / "a" / "m.safetensors")) == ["weight"]


@pytest.mark.parametrize(
    "name", ["state", "State", "../../etc", "a/b", "", ".hidden", "x" * 400, "ü", "a b"]
)
def test_any_model_name_becomes_a_safe_file_name(tmp_path, name):
    tree = {"models": {name: {"w": torch.ones(1)}, "b": {"w": torch.zeros(1)}}, "x": torch.ones(2)}
    write_checkpoint(tmp_path / "in" / "a", tree)
    assert same(read_checkpoint(tmp_path / "in" / "a").tree, tree)
    assert os.listdir(tmp_path) == ["in"]


def test_a_replacement_that_fails_leaves_the_old_checkpoint(tmp_path):
    write_numbered(tmp_path / "a", 1)
    with raises("tensor-in-metadata"):
        write_checkpoint(tmp_path / "a", {"update": 2}, {"bad": torch.ones(1)})
    assert read_checkpoint(tmp_path / "a").tree["update"] == 1
    assert os.listdir(tmp_path) == ["a"]


def test_a_tensor_read_does_not_change_with_the_file(checkpoint):
    tree = read_checkpoint(checkpoint).tree
    for name in FILES[2:]:
        path = checkpoint / name
        path.write_bytes(bytes(path.stat().st_size))
    assert same(tree, training_state())


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_checkpoint(checkpoint)
    assert name in verify_checkpoint(checkpoint)[0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_anywhere_is_noticed(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    for end in range(0, len(data), max(len(data) // 40, 1)):
        (checkpoint / name).write_bytes(data[:end])
        assert verify_checkpoint(checkpoint)
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(checkpoint)
        read_or_refuse(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_noticed(checkpoint, name):
    data = (checkpoint / name).read_bytes()
    for position in range(0, len(data), max(len(data) // 150, 1)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        (checkpoint / name).write_bytes(damaged)
        if verify_checkpoint(checkpoint):
            with pytest.raises(CheckpointError):
                read_checkpoint(checkpoint)
        else:  # a space between two JSON tokens may become another one without any loss
            assert name == "manifest.json"
            assert json.loads(damaged) == json.loads(data)
        read_or_refuse(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_bytes_of_no_meaning_are_refused_and_never_crash(checkpoint, name):
    generator = random.Random(0)
    for size in [0, 1, 7, 8, 9, 100, 5000]:
        for start in [
            b"",
            b"\xff" * 8,
            (2**40).to_bytes(8, "little"),
            (16).to_bytes(8, "little") + b"{",
        ]:
            (checkpoint / name).write_bytes(start + generator.randbytes(size))
            assert verify_checkpoint(checkpoint)
            read_or_refuse(checkpoint)


@pytest.mark.parametrize("name", FILES[1:])
def test_damage_that_is_signed_is_still_refused_or_harmless(checkpoint, name):
    generator = random.Random(1)
    data = (checkpoint / name).read_bytes()
    for _ in range(150):
        damaged = bytearray(data)
        damaged[generator.randrange(min(len(data), 900))] = generator.randrange(256)
        resign(checkpoint, files={name: bytes(damaged)})
        read_or_refuse(checkpoint)


def read_or_refuse(path) -> None:
    """Nothing but a CheckpointError may come of reading what is damaged, hashes compared or not."""
    for verify in (False, True):
        with suppress(CheckpointError):
            read_checkpoint(path, verify=verify)


def test_a_checkpoint_of_a_later_version_asks_for_an_upgrade(checkpoint):
    resign(checkpoint, {"format": FORMAT + 1})
    with pytest.raises(CheckpointError, match=r"newer version.*upgrade Loopwright"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "..", "", "a\\b", "sub/state.json"]
)
def test_a_manifest_that_points_elsewhere_is_refused(checkpoint, name):
    (checkpoint.parent / "secret").write_text("secret")
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    resign(checkpoint, {"files": files | {name: {"size": 6, "sha256": "0"}}})
    with raises("unsafe-file-name"):
        read_manifest(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_a_symbolic_link_is_refused(checkpoint, name):
    (checkpoint / name).rename(checkpoint.parent / "elsewhere")
    (checkpoint / name).symlink_to(checkpoint.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_does_not_block(checkpoint, name):
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {}},
        {"files": {"state.json": 3}},
        {"files": {"state.json": {"size": "1", "sha256": "0"}}},
        {"meta": [1]},
        {"meta": {"$unknown": 1}},
        {"models": {"default": "absent.safetensors"}},
        {"models": []},
        {"format": "one"},
        {"format": None},
    ],
)
def test_a_malformed_manifest_is_refused(checkpoint, changes):
    resign(checkpoint, changes)
    with pytest.raises(CheckpointError):
        read_checkpoint(checkpoint)


def test_json_nested_beyond_reason_is_refused(checkpoint):
    resign(checkpoint, files={"state.json": b"[" * 200_000})
    with raises("invalid-json", "state.json"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize("text", [b"9" * 5000, b"\xff\xfe", b""])
def test_what_is_no_json_is_refused(checkpoint, text):
    resign(checkpoint, files={"state.json": text})
    with raises("invalid-json"):
        read_checkpoint(checkpoint)


def test_tied_weights_are_stored_once_and_tied_again(checkpoint):
    model = read_checkpoint(checkpoint).tree["models"]["default"]
    assert model["head.weight"] is model["embedding.weight"]


def test_saving_again_replaces_the_checkpoint_and_leaves_nothing_else(tmp_path):
    write_numbered(tmp_path / "a", 1)
    write_numbered(tmp_path / "a", 2)
    assert read_checkpoint(tmp_path / "a").tree["update"] == 2
    assert os.listdir(tmp_path) == ["a"]

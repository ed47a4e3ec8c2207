"""The resume points of a run: found, passed over, pruned, and never all lost."""

import logging
import os

from loopwright.checkpoint import CheckpointStore, atomic, update_name
from tests.checkpoint.helpers import die_while_writing, numbered_state, start, write_numbered


def save(store, *updates):
    for update in updates:
        store.save(update_name(update), numbered_state(update, 100), {"update": update})
    store.writer.wait()


def names(store):
    return [entry.name for entry in store.entries()]


def damage(path):
    data = bytearray((path / "state.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "state.safetensors").write_bytes(data)


def test_a_damaged_newest_is_named_and_passed_over(tmp_path, caplog):
    store = CheckpointStore(tmp_path, 2)
    save(store, 1, 2)
    damage(tmp_path / update_name(2))
    with caplog.at_level(logging.WARNING, "loopwright"):
        assert store.newest().tree["update"] == 1
    assert "update-00000002" in caplog.text
    assert "state.safetensors does not match its hash" in caplog.text


def test_a_directory_without_a_manifest_is_named_and_passed_over(tmp_path, caplog):
    store = CheckpointStore(tmp_path, 2)
    save(store, 1, 2)
    (tmp_path / update_name(2) / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING, "loopwright"):
        assert store.newest().tree["update"] == 1
    assert "manifest.json is missing" in caplog.text


def test_pruning_never_removes_the_only_sound_one(tmp_path):
    for update in (1, 2, 3):
        write_numbered(tmp_path / update_name(update), update)
    for update in (2, 3):
        damage(tmp_path / update_name(update))
    store = CheckpointStore(tmp_path, 1)
    assert store.prune() == []
    assert store.newest().tree["update"] == 1


def test_an_incomplete_one_is_removed_once_a_newer_one_is_there(tmp_path):
    store = CheckpointStore(tmp_path, 2)
    save(store, 1, 2)
    (tmp_path / update_name(2) / "state.safetensors").unlink()
    save(store, 3)
    assert sorted(os.listdir(tmp_path)) == [update_name(1), update_name(3)]


def test_directories_that_are_no_checkpoints_are_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    store = CheckpointStore(tmp_path, 1)
    save(store, 1, 2)
    assert sorted(os.listdir(tmp_path)) == ["notes", update_name(2)]


def test_a_future_that_is_not_taken_is_discarded(tmp_path):
    store = CheckpointStore(tmp_path, 5)
    save(store, 1, 2, 3)
    assert store.discard(after_update=1) == [update_name(2), update_name(3)]
    assert names(store) == [update_name(1)]


def test_what_a_dead_process_left_is_cleaned_up(tmp_path):
    process, ours = start(die_while_writing, tmp_path)
    staging = ours.recv()
    process.join()
    assert os.listdir(tmp_path) == [staging]
    CheckpointStore(tmp_path, 1).newest()
    assert os.listdir(tmp_path) == []


def test_what_a_living_process_is_writing_is_left_alone(tmp_path):
    staging = tmp_path / f".update-00000009.tmp-{os.getppid()}-0a1b2c3d"
    staging.mkdir()
    CheckpointStore(tmp_path, 1).newest()
    assert staging.is_dir()


def test_a_checkpoint_set_aside_by_a_killed_replacement_is_put_back(tmp_path):
    write_numbered(tmp_path / update_name(1), 1)
    (tmp_path / update_name(1)).rename(tmp_path / f".{update_name(1)}.old-{2**22 + 1}-0a1b2c3d")
    assert CheckpointStore(tmp_path, 1).newest().tree["update"] == 1


def test_where_directories_cannot_be_exchanged_the_old_one_is_set_aside(tmp_path, monkeypatch):
    # the kernel refuses what it does not know
    monkeypatch.setattr(atomic, "RENAME_EXCHANGE", 1 << 30)
    for update in (1, 2):
        write_numbered(tmp_path / "a", update)
    assert CheckpointStore(tmp_path, 1).newest().tree["update"] == 2
    assert os.listdir(tmp_path) == ["a"]

"""Resume points that share the parts of a history: complete in themselves, and no dearer for a
longer run."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from loopwright import History
from loopwright.checkpoint import (
    AsyncWriter,
    CheckpointStore,
    read_checkpoint,
    update_name,
    verify_checkpoint,
)
from tests.checkpoint.helpers import resign
from tests.metrics.step_rows import rows_from
from tests.mistakes import raises
from tests.waiting import wait_for


def add_epoch(history: History, *, num_steps: int = 1) -> None:
    epoch = len(history)
    history.add_steps(
        rows_from(
            epoch * num_steps + 1,
            [{"loss": 1 / (epoch * num_steps + at + 1)} for at in range(num_steps)],
        )
    )
    history.set_epoch(
        epoch, {"loss": 1 / (epoch + 1), "eval_loss": -0.0 if epoch % 3 else math.nan}
    )


def save(store: CheckpointStore, history: History, *, wait: bool = True) -> Path:
    name = update_name(len(history))
    meta = {"update": len(history)}
    store.save(name, {"models": {}, "history": None}, meta, wait=wait, history=history)
    return store.directory / name


def parts(path: Path) -> dict[int, int]:
    """The files of the history in a resume point: inode and size."""
    found = [file.stat() for file in path.glob("history-*")]
    return {entry.st_ino: entry.st_size for entry in found}


def assert_holds(path: Path, history: History) -> None:
    """Bit for bit, where NaN is NaN and zeros have signs."""
    assert verify_checkpoint(path) == []
    found = History()
    found.load_state_dict(read_checkpoint(path).tree["history"])
    assert repr([list(row.items()) for row in found.epochs]) == repr(
        [list(row.items()) for row in history.epochs]
    )
    assert found.steps.keys() == history.steps.keys()
    for name, series in history.steps.items():
        own = found.steps[name]
        assert (own.stride, own.num_seen, own.steps) == (
            series.stride,
            series.num_seen,
            series.steps,
        )
        assert own.values.tobytes() == series.values.tobytes()


def test_what_a_resume_point_writes_does_not_grow_with_the_run(tmp_path):
    """Counted in bytes of files that no resume point had before, and in files; both grow as the
    logarithm at most."""
    store, history = CheckpointStore(tmp_path), History()
    written, most = [], 0
    for _ in range(256):
        add_epoch(history)
        known = {inode for earlier in tmp_path.iterdir() for inode in parts(earlier)}
        path = save(store, history)
        found = parts(path)
        written.append(sum(size for inode, size in found.items() if inode not in known))
        most = max(most, len(found))
    assert_holds(path, history)
    assert most <= 10
    whole = sum(parts(path).values())
    # about 100 times as much, if each of them wrote all of it
    assert sum(written[128:]) < 16 * whole


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_every_resume_point_that_is_kept_has_all_of_the_history(tmp_path, keep):
    store, history = CheckpointStore(tmp_path, keep), History()
    copies = {}
    for _ in range(12):
        add_epoch(history)
        copies[save(store, history)] = len(history)
    for entry in store.entries():
        tree = read_checkpoint(entry.path).tree
        assert len(tree["history"]["epochs"]) == copies[entry.path]
    assert len(store.entries()) == keep


def test_the_last_two_share_nothing_that_could_be_damaged_for_both(tmp_path, caplog):
    store, history = CheckpointStore(tmp_path), History()
    for _ in range(9):
        add_epoch(history)
        save(store, history)
    older, newer = (entry.path for entry in store.entries())
    assert not parts(older).keys() & parts(newer).keys()
    for file in newer.glob("history-*"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING, "loopwright"):
        found = CheckpointStore(tmp_path).newest()
    assert found is not None
    assert found.path == older
    assert "history-" in caplog.text
    assert len(found.tree["history"]["epochs"]) == 8


def test_a_resume_point_that_is_saved_again_at_the_same_update_does_not_write_the_history_again(
    tmp_path,
):
    store, history = CheckpointStore(tmp_path), History()
    for _ in range(64):
        add_epoch(history)
        save(store, history)
    before = parts(save(store, history))
    after = parts(save(store, history))
    assert (
        sum(size for inode, size in after.items() if inode not in before) < sum(after.values()) / 4
    )
    assert_holds(store.entries()[-1].path, history)


def test_rows_and_whole_histories_that_are_replaced_are_saved_as_they_are(tmp_path):
    store, history = CheckpointStore(tmp_path), History()
    for _ in range(6):
        add_epoch(history)
        save(store, history)
    history.set_epoch(5, {"loss": 7.0})  # as an epoch that was cut short is replaced when it ends
    assert_holds(save(store, history), history)
    history.set_epoch(2, {"loss": 8.0})  # as after going back
    assert_holds(save(store, history), history)
    other = History()
    add_epoch(other)
    history.load_state_dict(other.state_dict())
    add_epoch(history)
    assert_holds(save(store, history), history)
    assert len(history) == 2


def test_on_a_filesystem_without_links_parts_are_copied(tmp_path, monkeypatch):
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    store, history = CheckpointStore(tmp_path), History()
    for _ in range(10):
        add_epoch(history)
        path = save(store, history)
        assert_holds(path, history)
    assert len(parts(path)) > 1


def test_after_a_write_that_failed_or_was_removed_the_next_has_everything(tmp_path):
    store, history = CheckpointStore(tmp_path, writer=AsyncWriter("warn")), History()
    for epoch in range(8):
        add_epoch(history)
        if epoch == 4:
            (tmp_path / update_name(5)).write_text("in the way")
        path = save(store, history)
        if epoch == 5:
            shutil.rmtree(path)
        elif epoch != 4:
            assert_holds(path, history)


def test_a_checkpoint_with_its_history_inside_is_still_what_an_older_version_reads_and_wrote(
    tmp_path,
):
    history = History()
    add_epoch(history)
    store = CheckpointStore(tmp_path)
    store.save(
        update_name(1), {"models": {}, "history": history.state_dict()}, {"update": 1}, wait=True
    )
    assert '"format": 1' in (tmp_path / update_name(1) / "manifest.json").read_text()
    assert_holds(tmp_path / update_name(1), history)
    assert '"format": 2' in (save(store, history) / "manifest.json").read_text()


def test_a_state_that_names_files_nobody_vouches_for_is_refused(tmp_path):
    history = History()
    add_epoch(history)
    path = save(CheckpointStore(tmp_path), history)
    state = (path / "state.json").read_bytes().replace(b"history-1.safetensors", b"../../other")
    resign(path, files={"state.json": state})
    with raises("damaged-checkpoint", "../../other"):
        read_checkpoint(path)


def test_a_resume_point_is_complete_only_after_what_it_relies_on(tmp_path):
    """The writer of a kept model is held up in its last moment: the resume point has to wait for
    it."""
    reached, release = threading.Event(), threading.Event()
    kept, store = AsyncWriter(), CheckpointStore(tmp_path / "checkpoints")

    def hold_up() -> None:
        reached.set()
        assert release.wait(60)

    kept.hold(tmp_path / "kept" / "best", {"models": {}}, then=hold_up)
    kept.start()
    assert reached.wait(60)
    store.save(update_name(1), {"weight": torch.ones(2)}, {"update": 1}, after=[kept])
    saved = tmp_path / "checkpoints" / update_name(1)
    # all of it is written
    wait_for(lambda: saved.exists() or list(saved.parent.glob(".*/manifest.json")))
    assert not saved.exists()
    release.set()
    store.writer.wait()
    assert verify_checkpoint(saved) == []


def test_a_resume_point_whose_kept_model_could_not_be_written_is_not_written_either(tmp_path):
    (tmp_path / "kept").write_text("a file")
    for on_error, is_saved in (("warn", True), ("raise", False)):
        kept, store = AsyncWriter(on_error), CheckpointStore(tmp_path / on_error)  # type: ignore[arg-type]
        kept.hold(tmp_path / "kept" / "best", {"models": {}})
        kept.start()
        store.save(update_name(1), {"models": {}}, {"update": 1}, after=[kept])
        if is_saved:
            store.writer.wait()
        else:
            with raises("earlier-save-failed"):
                store.writer.wait()
        assert (tmp_path / on_error / update_name(1)).is_dir() is is_saved

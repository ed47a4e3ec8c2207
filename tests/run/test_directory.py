"""The run directory: its layout, fresh ones, and the lock that keeps two writers apart."""

import os

import pytest

from loopwright.errors import ConfigurationError
from loopwright.run import RunDirectory, RunManifest
from tests.run.run_helpers import hold_lock, hold_lock_with_a_child, start, take_fresh, try_lock


def begin(path):
    RunManifest.collect().write(RunDirectory(path).manifest_path)


def test_a_run_directory_has_the_documented_layout(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "first")
    assert sorted(os.listdir(directory.path)) == ["artifacts", "checkpoints", "kept"]
    assert directory.manifest_path.name == "run.json"
    assert directory.metrics_path.name == "metrics.sqlite"
    assert {directory.checkpoints.name, directory.kept.name, directory.artifacts.name} == set(
        os.listdir(directory.path)
    )


def test_a_file_in_the_way_is_reported(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigurationError, match="choose another `run_dir`"):
        RunDirectory(tmp_path / "run")


def test_looking_at_a_run_creates_nothing(tmp_path):
    with pytest.raises(ConfigurationError, match="is not a run directory"):
        RunDirectory.open(tmp_path / "absent")
    assert os.listdir(tmp_path) == []
    begin(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").has_run


def test_a_fresh_directory_is_the_next_free_number_where_there_are_runs(tmp_path):
    for name in ("run", "run-2", "run-4"):
        begin(tmp_path / name)
    assert RunDirectory.fresh(tmp_path / "run").path.name == "run-3"


def test_processes_that_ask_for_a_fresh_directory_at_once_get_different_ones(tmp_path):
    started = [start(take_fresh, tmp_path / "run") for _ in range(4)]
    for _, connection in started:
        connection.recv()
    for _, connection in started:
        connection.send("go")
    names = [connection.recv() for _, connection in started]
    for process, connection in started:
        connection.send("stop")
        process.join()
    assert sorted(names) == ["run", "run-2", "run-3", "run-4"]


def test_a_run_that_another_process_writes_is_refused_with_its_id(tmp_path):
    process, connection = start(hold_lock, tmp_path)
    connection.recv()
    with pytest.raises(ConfigurationError, match=f"process {process.pid} "):
        RunDirectory(tmp_path).lock()
    connection.send("stop")
    process.join()
    RunDirectory(tmp_path).lock().unlock()


def test_children_that_outlive_a_killed_process_do_not_keep_its_lock(tmp_path):
    process, connection = start(hold_lock_with_a_child, tmp_path)
    child = connection.recv()
    process.kill()
    process.join()
    os.kill(child, 0)
    RunDirectory(tmp_path).lock().unlock()
    connection.close()


def test_asking_twice_within_a_process_does_not_drop_the_lock(tmp_path):
    with RunDirectory(tmp_path):
        with pytest.raises(ConfigurationError):
            RunDirectory(tmp_path).lock()
        process, connection = start(try_lock, tmp_path)
        assert f"process {os.getpid()} " in connection.recv()
        process.join()

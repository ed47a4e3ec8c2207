from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopwright.dashboard.answers import Refusal
from loopwright.dashboard.folder import RunsFolder, stamp_of
from loopwright.run import MetricsStore, update_manifest
from loopwright.run.directory import RunDirectory

from .serving import serving
from .small_runs import step_rows, write_run


def test_links_are_not_followed_in_circles_and_runs_are_listed_once(tmp_path: Path):
    write_run(tmp_path / "a", media=False)
    os.symlink(tmp_path, tmp_path / "circle")
    os.symlink(tmp_path / "a", tmp_path / "again")
    assert list(RunsFolder(tmp_path).find()) == ["a"]
    os.symlink(tmp_path / "nowhere", tmp_path / "broken")
    assert list(RunsFolder(tmp_path).find()) == ["a"]


def test_only_runs_that_changed_are_read_again(tmp_path: Path):
    for name in ("a", "b"):
        write_run(tmp_path / name, media=False)
    folder = RunsFolder(tmp_path)
    first = folder.scan()
    store = MetricsStore(tmp_path / "b" / "metrics.sqlite")
    store.add_steps(step_rows(51, 52))
    store.close()
    second = folder.scan()
    assert second["a"] is first["a"]
    assert second["b"].stamp == stamp_of(tmp_path / "b")


def test_the_state_is_that_of_the_lock_though_no_file_changed(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    update_manifest(run / "run.json", state="running")
    folder = RunsFolder(tmp_path)
    with RunDirectory(run):
        assert folder.scan()["a"].summary["state"] == "running"
    stamp = stamp_of(run)
    assert folder.scan()["a"].summary["state"] == "crashed"
    assert stamp_of(run) == stamp


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/..", "/etc", "a//b", "a\0", "../runs/a", ".hidden", "a/", "~", "a" * 9000],
)
def test_names_that_are_no_runs_are_refused(tmp_path: Path, name: str):
    write_run(tmp_path / "runs" / "a", media=False)
    with pytest.raises(Refusal, match="There is no run"):
        RunsFolder(tmp_path / "runs").path_of(name)


def test_a_name_that_is_no_text_is_listed(tmp_path: Path):
    write_run(tmp_path / "a", media=False)
    os.rename(os.fsencode(tmp_path / "a"), os.fsencode(tmp_path) + b"/caf\xe9")
    with serving(tmp_path) as served:
        assert [run["id"] for run in served.data("/api/runs")["runs"]] == ["caf\\xe9"]
        assert served.get("/api/run/caf%5Cxe9").status == 404


@pytest.mark.parametrize("name", ["50% off?#&", "ü ö/日本", "a+b=c;d", "a%2Fb", "<b>"])
def test_any_name_can_be_asked_for(tmp_path: Path, name: str):
    from urllib.parse import quote

    write_run(tmp_path / name, media=False)
    with serving(tmp_path) as served:
        (run,) = served.data("/api/runs")["runs"]
        assert run["id"] == name
        encoded = quote(name, safe="")
        assert served.data(f"/api/run/{encoded}")["summary"]["id"] == name
        assert served.data(f"/api/curves?run={encoded}&name=lr")["curves"][0]["run"] == name


def test_a_run_is_answered_while_all_runs_are_read_for_the_first_time(tmp_path: Path):
    write_run(tmp_path / "a", media=False)
    folder = RunsFolder(tmp_path)
    with folder._lock, ThreadPoolExecutor(1) as pool:  # of a scan that takes long
        assert pool.submit(folder.entry, "a").result(timeout=30).id == "a"

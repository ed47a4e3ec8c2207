from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from .serving import serving
from .small_runs import write_run

MARKUP = "<img src=x onerror=alert(1)></script>"


def garbage_metrics(run: Path) -> None:
    (run / "metrics.sqlite").write_bytes(os.urandom(5000))


def strange_tables(run: Path) -> None:
    with sqlite3.connect(run / "metrics.sqlite") as connection:
        connection.execute("UPDATE step_values SET value = 'text', step = step")
        connection.execute("UPDATE events SET detail = '{'")
        connection.execute("UPDATE media SET content = 'no json', file = '../../../etc/passwd'")
    connection.close()


def huge_manifest(run: Path) -> None:
    with (run / "run.json").open("r+b") as file:
        file.truncate(200_000_000)


def strange_manifest(run: Path) -> None:
    strange = {
        "id": 5,
        "state": "running",
        "created": [],
        "progress": [1],
        "tags": 7,
        "hardware": [{}],
        "packages": 3,
    }
    (run / "run.json").write_text(
        json.dumps({**strange, "command": {"a": 1}, "changes": [{"update": 1}], "data": 1})
    )


def deep_manifest(run: Path) -> None:
    (run / "run.json").write_text("[" * 100_000)


def bad_config(run: Path) -> None:
    (run / "config.yaml").write_text("a: [1, 2\nb: *c")


def bad_profile(run: Path) -> None:
    (run / "profile.json").write_text("{")


def folder_as_metrics(run: Path) -> None:
    (run / "metrics.sqlite").unlink()
    (run / "metrics.sqlite").mkdir()


def bad_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "update-1").mkdir(parents=True)
    (run / "checkpoints" / "update-1" / "manifest.json").write_text("{")


DAMAGES = [garbage_metrics, strange_tables, huge_manifest, strange_manifest, deep_manifest]
DAMAGES += [bad_config, bad_profile, folder_as_metrics, bad_checkpoint]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_listed_and_breaks_nothing(tmp_path: Path, damage: Callable[[Path], None]):
    write_run(tmp_path / "sound", media=False)
    damage(write_run(tmp_path / "bad"))
    with serving(tmp_path) as served:
        runs = {run["id"]: run for run in served.data("/api/runs")["runs"]}
        assert set(runs) == {"bad", "sound"}
        assert (runs["sound"]["problems"], runs["sound"]["state"]) == ([], "finished")
        reply = served.get("/api/run/bad")
        if damage in (strange_tables, folder_as_metrics):  # nothing of it can be read
            assert (reply.status, [reply.error]) == (403, runs["bad"]["problems"])
        else:
            said = [*runs["bad"]["problems"], *reply.data["problems"]]
            assert said or reply.data["checkpoints"][0]["problems"]
            assert set(reply.data) == set(served.data("/api/run/sound"))
        paths = (
            "curves?run=bad&run=sound&name=loss",
            "compare?run=sound&run=bad",
            "sweep",
            "log/bad",
            "contents/bad",
        )
        for path in (
            *paths,
            "checkpoints/bad?verify=1",
            "csv?run=bad",
            "events?run=bad",
            "media/bad/1",
        ):
            assert served.get(f"/api/{path}").status < 500, path
        curves = served.data("/api/curves?run=bad&run=sound&name=lr&level=step")["curves"]
        assert "sound" in [curve["run"] for curve in curves]


def test_a_checkpoint_that_is_damaged_is_found_by_its_hash_on_request(tmp_path: Path):
    from loopwright.checkpoint import write_checkpoint

    run = write_run(tmp_path / "a", media=False)
    write_checkpoint(
        run / "checkpoints" / "update-5", {"values": {"x": 1}}, {"update": 5, "epoch": 1}
    )
    state = run / "checkpoints" / "update-5" / "state.json"
    state.write_bytes(state.read_bytes().replace(b"1", b"2", 1))
    with serving(tmp_path) as served:
        (cheap,) = served.data("/api/run/a")["checkpoints"]
        (full,) = served.data("/api/checkpoints/a?verify=1")["checkpoints"]
    assert (cheap["is_sound"], cheap["is_verified"], cheap["update"], cheap["kind"]) == (
        True,
        False,
        5,
        "resume",
    )
    assert (full["is_sound"], full["is_verified"]) == (False, True)
    assert "state.json" in full["problems"][0]


def test_a_run_under_the_same_name_is_not_taken_for_the_old_one(tmp_path: Path):
    write_run(tmp_path / "a", steps=50, media=False)
    with serving(tmp_path) as served:
        old = served.data("/api/curves?run=a&name=loss&level=step")["curves"][0]
        shutil.rmtree(tmp_path / "a")
        write_run(tmp_path / "a", steps=60, media=False)
        new = served.data("/api/curves?run=a&name=loss&level=step")["curves"][0]
    assert (old["rows"], new["rows"]) == (50, 60)


def test_the_traceback_of_a_run_that_failed_is_shown(tmp_path: Path):
    run = write_run(tmp_path / "a", state="failed", media=False)
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no'
    (run / "log.txt").write_text("first\nsecond\n")
    with sqlite3.connect(run / "metrics.sqlite") as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM log_lines")
        detail = json.dumps({"traceback": trace})
        connection.execute("INSERT INTO events (kind, detail) VALUES ('failed', ?)", (detail,))
    connection.close()
    with serving(tmp_path) as served:
        answer = served.data("/api/run/a")
    assert answer["traceback"] == trace
    assert [line["text"] for line in answer["log"]["lines"]] == ["first", "second"]

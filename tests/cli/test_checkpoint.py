"""`loopwright checkpoint ...` as processes: with a terminal and without, on sound, damaged and
hostile checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from loopwright.checkpoint import load_weights, write_checkpoint
from loopwright.cli import main
from tests.cli.helpers import LOOPWRIGHT, cut, flip, remove, run, run_on_terminal

NEWEST = "checkpoints/update-00000015"
FILES = ("manifest.json", "state.json", "state.safetensors", "model.safetensors")
COMPLETE = ("--checkpoint", "newest")


def test_list_as_json_says_everything_that_the_table_does(finished):
    rows = json.loads(run("verify", finished / "first", "--json").stdout)
    first = rows[0]
    path = finished / "first/checkpoints/update-00000005"
    assert {
        name: first[name] for name in ("kind", "name", "path", "epoch", "step", "update", "metric")
    } == {
        "kind": "resume",
        "name": "update-00000005",
        "path": str(path),
        "epoch": 1,
        "step": 5,
        "update": 5,
        "metric": None,
    }
    assert first["size"] == sum(file.stat().st_size for file in path.iterdir())
    assert first["age_seconds"] > 0
    assert (first["is_sound"], first["is_verified"], first["problems"]) == (True, True, [])


def test_list_on_a_terminal_marks_what_is_damaged_in_red(own_run):
    cut(own_run / NEWEST / "state.safetensors")
    code, shown = run_on_terminal("list", own_run)
    assert code == 0
    assert shown.startswith("\x1b[1mTYPE")
    assert "\x1b[31mupdate-00000015: state.safetensors has" in shown


def test_verify_has_a_row_for_each_checkpoint_and_exits_with_0(finished):
    result = run("verify", finished / "first")
    assert result.returncode == 0
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == ["verified"] * 5


def test_verify_of_nothing_is_not_a_success(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert run("verify", tmp_path).returncode == 1


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("file", FILES)
def test_verify_names_the_damaged_file_and_exits_with_1(own_run, file, damage):
    damage(own_run / NEWEST / file)
    result = run("verify", own_run)
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (1, "")
    assert [line.split()[1] for line in lines if line.endswith("  damaged")] == [NEWEST[12:]]
    assert lines[-1].startswith("update-00000015: ")
    assert file in lines[-1]


@pytest.mark.parametrize(("file", "code"), list(zip(FILES, (2, 1, 1, 1), strict=True)))
def test_show_of_a_damaged_checkpoint_says_what_is_wrong(own_run, file, code):
    cut(own_run / NEWEST / file)
    result = run("show", own_run / NEWEST)
    assert result.returncode == code
    assert file in (result.stdout.splitlines()[-1] if code == 1 else result.stderr)
    assert "Traceback" not in result.stderr


def test_show_prints_metadata_files_and_totals(finished):
    result = run("show", finished / "first" / NEWEST)
    assert result.returncode == 0
    assert result.stdout.splitlines()[0].startswith(
        f"{finished / 'first' / NEWEST}: resume point, "
    )
    assert "  update: 15\n" in result.stdout
    assert {line.split()[0] for line in result.stdout.splitlines()} >= {"FILE", *FILES[1:]}
    assert "exp_avg" not in result.stdout


def test_show_as_json_has_the_tensors(finished):
    found = json.loads(run("show", finished / "first", "--checkpoint", "newest", "--json").stdout)
    assert found["meta"] == {"epoch": 3, "step": 15, "update": 15, "sample": 111}
    assert "0.weight" in {tensor["name"] for tensor in found["tensors"]["model.safetensors"]}


def test_diff_of_two_equal_runs_exits_with_0(finished, capsys):
    assert main(["checkpoint", "diff", str(finished / "first"), str(finished / "again")]) == 0
    assert capsys.readouterr().out.endswith("0 differences\n")


def test_diff_of_different_runs_names_each_tensor_and_exits_with_1(finished):
    result = run("diff", finished / "first", finished / "other", *COMPLETE)
    own, other = (load_weights(finished / name / NEWEST)["0.weight"] for name in ("first", "other"))
    largest = (own.double() - other.double()).abs().max().item()
    expected = (
        "models/model/0.weight: float32 [16, 6]: 96 of 96 values differ, max abs difference "
        f"{largest:.6g}"
    )
    assert result.returncode == 1
    assert f"  {expected}" in result.stdout.splitlines()


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("file", FILES)
def test_damaged_checkpoints_are_not_compared(own_run, finished, capsys, file, damage):
    damage(own_run / NEWEST / file)
    assert (
        main(["checkpoint", "diff", str(own_run / NEWEST), str(finished / "first" / NEWEST)]) == 2
    )
    assert file in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 3])
def test_debug_before_or_after_the_command_shows_the_traceback(tmp_path, capsys, place):
    arguments = ["checkpoint", "list", str(tmp_path / "nowhere")]
    assert main([*arguments[:place], "--debug", *arguments[place:]]) == 2
    assert capsys.readouterr().err.startswith("Traceback")


def test_a_reader_that_goes_away_is_no_error(finished):
    read, write = os.pipe()
    os.close(read)
    command = [*LOOPWRIGHT, "list", str(finished / "first")]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


def test_text_from_a_checkpoint_cannot_control_the_terminal(tmp_path):
    meta = {
        "update": 1,
        "note\x1b[2J": "\x1b]0;title\x07",
        "metric": {"name": "\x1b[31mloss", "value": 0.5},
    }
    write_checkpoint(
        tmp_path / "run/kept/hostile", {"models": {"\x1b[2J": {"\x1b[2Jw": torch.zeros(1)}}}, meta
    )
    for arguments in (
        ["list", tmp_path / "run"],
        ["show", tmp_path / "run/kept/hostile"],
    ):
        result = run(*arguments)
        assert result.returncode == 0
        assert "\x1b" not in result.stdout
        assert r"\x1b[31mloss" in result.stdout


def test_a_pickle_in_place_of_any_file_is_never_loaded(own_run, tmp_path, capsys):
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return Path.write_text, (tmp_path / "exploded", "boom")  # type: ignore[return-value]

    torch.save({"weight": Bomb()}, tmp_path / "bomb.pt")
    for file in FILES:
        (own_run / NEWEST / file).write_bytes((tmp_path / "bomb.pt").read_bytes())
    for arguments in (
        ["verify", own_run],
        ["show", own_run / NEWEST],
        ["diff", own_run / NEWEST, tmp_path / "bomb.pt"],
        ["diff", tmp_path / "bomb.pt", own_run],
    ):
        main(["checkpoint", *map(str, arguments)])
    assert "bomb.pt was refused" in capsys.readouterr().err
    assert not (tmp_path / "exploded").exists()


def test_the_command_loopwright_is_this_one():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert resolve_name(project["scripts"]["loopwright"]) is main

"""`loopwright scale`: the bytes of each strategy as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwright.cli import main
from tests.cli.sweep.projects import write_project


def test_bytes_are_those_of_the_model_and_optimizer_of_the_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_project(tmp_path))
    arguments = ["scale", "run.yaml", "model.width=16", "--devices", "2,4", "--per-node", "2"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["strategy"], row["devices"]) for row in found] == [
        ("one device", 1),
        ("DDP", 2),
        ("FSDP2", 2),
        ("DDP", 4),
        ("FSDP2", 4),
        ("HSDP", 4),
    ]
    one, ddp, fsdp = found[:3]
    assert one["sent"] == 0
    assert ddp["parameters"] == one["parameters"] > fsdp["parameters"]
    assert ddp["sent"] > ddp["gradients"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "HSDP" in printed
    assert list(Path().glob("runs*")) == []

"""`loopwright scale`: the comparison of strategies as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.scaling import Cluster, compare, transformer
from tests.cli.sweep.projects import write_project

MODEL = ["--params", "1.3B", "--layers", "24", "--width", "2048", "--batch", "512"]


def test_table_advice_and_lines_to_change_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *MODEL, "--devices", "8,64"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].startswith(
        "1.3B: 1,301,383,168 parameters on H100 SXM 80 GB, 8 in a node by NVLink 4"
    )
    rows = [line.split() for line in lines if line.strip().startswith(("8 ", "64 "))]
    assert [row[1] for row in rows] == [
        "DDP",
        "FSDP2",
        "TP",
        "FSDP2+TP",
        "DDP",
        "FSDP2",
        "HSDP",
        "TP",
        "FSDP2+TP",
    ]
    assert "DDP: 8 to 64 devices, the largest number requested." in printed
    assert "On 64 devices: " in printed
    assert lines[-2] == '  Trainer(..., runtime="ddp", precision="bf16")'
    assert lines[-1] == "  trainer.train(data, batch_size=512)"


def test_json_is_that_of_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--device",
        "a100",
        "--per-node",
        "4",
        "--between",
        "hdr",
        "--adapters",
        "1",
        "--no-overlap",
    ]
    assert (
        main(["scale", *MODEL, "--devices", "4,16", "--optimizer", "sgd", "--json", *options]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    model = transformer(24, 2048, sequence=2048, parameters=1.3e9)
    cluster = Cluster("a100", 4, between="hdr", adapters=1)
    expected = compare(
        model, devices=[4, 16], batch=512, cluster=cluster, optimizer="sgd", overlap=False
    )
    assert found == json.loads(json.dumps(expected.to_dict()))


def test_model_optimizer_and_batch_are_those_of_the_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write_project(tmp_path))
    # too small for two
    assert main(["scale", "run.yaml", "model.width=16", "--devices", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {one["strategy"] for one in found["estimates"]} == {"ddp", "fsdp"}
    assert {one["batch"] for one in found["estimates"]} == {8}
    ddp = next(one for one in found["estimates"] if one["strategy"] == "ddp")
    assert ddp["memory"]["parameters"] == 4 * found["parameters"]
    assert list(Path().glob("runs*")) == []


REFUSED: dict[str, tuple[list[str], str]] = {
    "`loopwright scale` without a model": ([], "Which model? Name a run file"),
    "`loopwright scale --device h10`": ([*MODEL, "--device", "h10"], "did you mean h100?"),
    "`loopwright scale --devices 0`": ([*MODEL, "--devices", "0"], "devices=0: use a whole number"),
    "`loopwright scale --batch -1`": (
        [*MODEL[:-1], "-1"],
        "batch=-1: use a whole number, 1 or more",
    ),
    "`loopwright scale run.yaml --width`": (
        ["run.yaml", "--width", "8"],
        "run.yaml has its own model",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = REFUSED[what]
    assert main(["scale", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said

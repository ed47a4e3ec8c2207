"""`loopwright doctor`: what it finds here, and what it makes of other machines."""

from __future__ import annotations

import json
import os

import pytest

from loopwright.cli import doctor, main
from loopwright.cli.doctor import advise
from loopwright.profiling.profile import num_cores

MACHINE = {
    "usable_cpus": 8,
    "threads": 8,
    "shared_memory": 8 << 30,
    "compiler": "/usr/bin/c++",
    "folder": "/here",
    "problem": None,
}


def test_text_names_what_is_missing_with_the_pip_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "installed_extras", lambda: {"onnx": {"onnx": "1.2", "onnxscript": None}}
    )
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "onnx: no onnxscript: pip install 'loopwright[onnx]'" in printed
    assert "torch.distributed with gloo" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_exit_code_1(tmp_path, capsys):
    assert main(["doctor", "--json", "--folder", "/proc"]) == 1
    assert "/proc is not writable" in json.loads(capsys.readouterr().out)["advice"][0]
    assert main(["doctor", "--folder", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize(
    ("text", "expected"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", None)]
)
def test_the_quota_of_a_container_counts(tmp_path, text, expected):
    (tmp_path / "cpu.max").write_text(text)
    allowed = len(os.sched_getaffinity(0))
    assert num_cores(str(tmp_path / "cpu.max")) == min(expected or allowed, allowed)


ADVICE = {
    "no compiler": ({"compiler": None}, "torch.compile needs a C++ compiler"),
    "little shared memory": ({"shared_memory": 64 << 20}, "Only 67.1 MB of shared memory is free"),
    "too many threads": ({"usable_cpus": 2, "threads": 64}, "set OMP_NUM_THREADS=2"),
}


@pytest.mark.parametrize(("changes", "line"), ADVICE.values(), ids=ADVICE.keys())
def test_advice_about(changes, line):
    assert list(advise(MACHINE)) == []
    assert any(line in advice for advice in advise(MACHINE | changes))

"""`loopwright doctor`: what it finds here, and what it makes of other machines."""

from __future__ import annotations

import json
import os

import pytest

from loopwright.cli import doctor, main
from loopwright.cli.doctor import advise

MACHINE = {"cpus": 8, "usable_cpus": 8, "threads": 8, "shared_memory": 8 << 30}
DISK = {"folder": "/here", "free": 1 << 40, "write_speed": 500e6, "problem": None}
COMPILATION = {"compiler": "/usr/bin/c++", "works": True, "problem": None}


def findings(**changes: object) -> dict:
    """A machine about which there is little to say."""
    found = {
        "machine": MACHINE,
        "devices": device("cpu", 10.0, None),
        "compilation": COMPILATION,
        "disk": DISK,
    }
    return found | changes


def device(name: str, bf16: float | None, fp16: float | None) -> list[dict]:
    return [{"name": name, "speeds": {"fp32": 100.0, "bf16": bf16, "fp16": fp16}}]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What a quick look at this machine says."""
    from contextlib import redirect_stdout
    from io import StringIO

    out = StringIO()
    folder = tmp_path_factory.mktemp("disk")
    with redirect_stdout(out):
        assert main(["doctor", "--quick", "--json", "--folder", str(folder)]) == 0
    assert list(folder.iterdir()) == []
    return json.loads(out.getvalue())


def test_text_names_what_is_missing_with_the_pip_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "installed_extras", lambda: {"onnx": {"onnx": "1.2", "onnxscript": None}}
    )
    assert main(["doctor", "--quick", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "onnx: no onnxscript: pip install 'loopwright[onnx]'" in printed
    assert "checkpoint of 100 M parameters with Adam (1.2 GB): training waits" in printed
    assert "\nadvice\n  - " in printed


def test_a_folder_that_cannot_be_written_is_exit_code_1(tmp_path, capsys):
    assert main(["doctor", "--quick", "--folder", "/proc"]) == 1
    assert "/proc is not writable" in capsys.readouterr().out
    assert main(["doctor", "--quick", "--folder", str(tmp_path / "nowhere")]) == 2


def test_compiling_is_tried_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(doctor, "COMPILE_PROBE", "import os; os.abort()")
    broken = doctor.probe_compilation(quick=False)
    assert broken["works"] is False
    assert broken["problem"]
    monkeypatch.setattr(doctor, "COMPILE_PROBE", "raise RuntimeError('no compiler at all')")
    assert doctor.probe_compilation(quick=False)["problem"] == "RuntimeError: no compiler at all"
    monkeypatch.setattr(doctor, "COMPILE_PROBE", "pass")
    assert doctor.probe_compilation(quick=False)["works"] is True


def test_compiling_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(
        doctor, "COMPILE_PROBE", "import sys; sys.stdin.read(); import signal; signal.pause()"
    )
    monkeypatch.setattr(doctor, "SECONDS_FOR_COMPILE", 0.5)
    assert doctor.probe_compilation(quick=False)["problem"] == "it took more than 0.5 s"


@pytest.mark.parametrize(
    ("text", "expected"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", None)]
)
def test_the_quota_of_a_container_counts(tmp_path, text, expected):
    (tmp_path / "cpu.max").write_text(text)
    allowed = len(os.sched_getaffinity(0))
    assert doctor.usable_cpus(str(tmp_path / "cpu.max")) == min(expected or allowed, allowed)


ADVICE = {
    "fp32 where nothing is faster": (
        {},
        "On cpu use precision='fp32': no other precision is faster",
    ),
    "bf16 where it is faster": (
        {"devices": device("cuda:0", 450.0, 500.0)},
        "On cuda:0 precision='bf16' makes large matrix products 4.5 times as fast.",
    ),
    "fp16 where bf16 is slow": ({"devices": device("cuda:0", 50.0, 500.0)}, "precision='fp16'"),
    "no compiler": (
        {"compilation": COMPILATION | {"compiler": None}},
        "torch.compile needs a C++ compiler",
    ),
    "compile fails": (
        {"compilation": COMPILATION | {"works": False, "problem": "boom"}},
        "torch.compile does not work here (b",
    ),
    "little shared memory": (
        {"machine": MACHINE | {"shared_memory": 64 << 20}},
        "Only 67.1 MB of shared memory is free",
    ),
    "slow disk": ({"disk": DISK | {"write_speed": 10e6}}, "writing 100 M parameters takes 2 min"),
    "too many threads": (
        {"machine": MACHINE | {"usable_cpus": 2, "threads": 64}},
        "set OMP_NUM_THREADS=2",
    ),
    "one processor": ({"machine": MACHINE | {"usable_cpus": 1}}, "leave num_workers at 0"),
}


@pytest.mark.parametrize(("changes", "line"), ADVICE.values(), ids=ADVICE.keys())
def test_advice_about(changes, line):
    assert any(line in advice for advice in advise(findings(**changes)))

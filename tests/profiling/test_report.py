"""The table, the verdicts and the stored form of a profile."""

from __future__ import annotations

import json

import pytest

from loopwright.cli import main
from loopwright.profiling import Report
from loopwright.run import Run, RunManifest

S = 1_000_000_000
HEALTHY = {"forward": 30 * S, "backward": 50 * S, "optimizer": 13 * S, "other": 7 * S}


def verdict(nanoseconds, **options) -> str:
    return Report(nanoseconds, **{"num_steps": 100, "num_cores": 8, **options}).verdict


@pytest.mark.parametrize(
    ("nanoseconds", "options", "said"),
    [
        (HEALTHY, {}, "Healthy: 93 % of the time is forward, backward and optimizer."),
        (
            {"data": 62 * S, "forward": 38 * S},
            {"num_workers": 0},
            "62 % of the time is waiting for data: try num_workers=2.",
        ),
        (
            {"data": 62 * S, "forward": 38 * S},
            {"num_workers": 2},
            "62 % of the time is waiting for data: try num_workers=6.",
        ),
        (
            {"data": 62 * S, "forward": 38 * S},
            {"num_workers": 0, "num_cores": 1},
            "62 % of the time is waiting for data: this process on 1 core cannot go faster: make "
            "the data set's __getitem__ cheaper (decode once, cache, smaller files).",
        ),
        (
            {"data": 62 * S, "forward": 38 * S},
            {},
            "62 % of the time is waiting for data: pass a DataLoader with num_workers=2.",
        ),
        (
            {**{f"callbacks/C{number}/on_log": 10 * S for number in range(4)}, "forward": 60 * S},
            {},
            "40 % of the time is callbacks, most of it C0: call them less often (every n updates, "
            "or in `on_log` or `on_epoch_end`), or remove some.",
        ),
        (
            {"evaluation": 10 * S, "evaluation/data": 60 * S, "forward": 30 * S},
            {},
            "70 % of the time is evaluation, most of it data: evaluate less often (longer "
            "epochs), on fewer samples, or in larger batches.",
        ),
        (
            {"forward": 60 * S, "evaluation": 25 * S, "other": 15 * S},
            {},
            "Nothing stands out: 60 % of the time is forward, backward and optimizer; the largest "
            "other part is evaluation, 25 %.",
        ),
        ({}, {}, "Nothing was measured."),
    ],
)
def test_the_verdict_says_what_stands_out_and_what_to_do(nanoseconds, options, said):
    assert verdict(nanoseconds, **options) == said


def test_the_largest_finding_comes_first():
    report = Report({"data": 3 * S, "callbacks/A/on_log": 2 * S, "forward": 5 * S}, num_steps=10)
    assert [text.split(" ")[0] for text in report.findings] == ["30", "20"]


def test_the_table_is_aligned():
    report = Report(
        {"data": 1 * S, "forward": 1 * S, "callbacks/EMA/on_update_end": 1 * S},
        num_steps=1000,
        warmup_steps=3,
        memory={"process": 512_000_000},
    )
    assert str(report).splitlines()[:8] == [
        "Where the time went: 1,000 steps in 3 s, after 3 of warm-up",
        "  part         share  total  per step",
        "  data        33.3 %    1 s      1 ms",
        "  forward     33.3 %    1 s      1 ms",
        "  callbacks   33.3 %    1 s      1 ms",
        "    EMA       33.3 %    1 s      1 ms",
        "  all        100.0 %    3 s      3 ms",
        "Peak memory: 512 MB (the process)",
    ]


@pytest.fixture
def run_dir(tmp_path):
    RunManifest.collect(seed=0, name="first").changed(state="finished").write(tmp_path / "run.json")
    return tmp_path


def store(run_dir, **changes):
    content = Report(HEALTHY, num_steps=10).as_dict() | changes
    (run_dir / "profile.json").write_text(json.dumps(content))


def test_show_prints_the_profile_of_a_run(run_dir, capsys):
    store(run_dir)
    assert main(["show", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert str(Report(HEALTHY, num_steps=10)) in out
    assert main(["show", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"] == Run(run_dir).profile


def test_a_profile_of_another_version_is_a_problem_of_the_run(run_dir, capsys):
    problem = "has version 2, but this release reads 1."
    store(run_dir, version=2)
    view = Run(run_dir)
    assert view.profile is None
    assert [problem in text for text in view.problems] == [True]
    assert main(["show", str(run_dir)]) == 1
    assert problem in capsys.readouterr().out

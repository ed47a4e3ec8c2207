"""`loopwright diff`."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from loopwright import ConfigurationError
from loopwright.cli import main
from loopwright.run import MetricsStore, Run, find_runs
from loopwright.run.changes import flatten
from loopwright.run.compare import compare_runs
from tests.cli.gallery import train_run
from tests.runs import steps_of


def test_two_runs_of_one_seed_are_the_same(in_gallery, capsys):
    assert main(["diff", "finished", "twin"]) == 0
    printed = capsys.readouterr().out
    assert "metrics per step: 12 steps identical\n" in printed
    assert "metrics per epoch: 3 epochs identical\n" in printed
    assert printed.endswith("The runs are identical.\n")


def test_two_seeds_part_where_their_metrics_first_differ(in_gallery, capsys):
    assert main(["diff", "finished", "stopped", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    ours, theirs = (
        Run(Path("runs") / name).metrics.steps("loss") for name in ("finished", "stopped")
    )
    first = next(
        mine for mine, other in zip(ours, theirs, strict=False) if mine.value != other.value
    )
    assert found["seed"] == [{"key": "seed", "first": 0, "second": 1}]
    assert found["metrics"]["steps"]["at"] == first.at
    assert found["metrics"]["steps"]["changes"][0]["first"] == first.value


def test_one_changed_bit_is_found(gallery, tmp_path):
    path = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    store = MetricsStore(path / "metrics.sqlite")
    (value,) = (row[3] for row in steps_of(store, "loss") if row[1] == 7)
    bits = struct.unpack(">q", struct.pack(">d", value))[0] ^ 1
    changed = struct.unpack(">d", struct.pack(">q", bits))[0]
    query = (
        "UPDATE step_values SET value = ? WHERE step = 7 AND name = (SELECT id FROM names "
        "WHERE name = 'loss')"
    )
    store._open().connection.execute(query, (changed,))
    store.close()
    steps, epochs = compare_runs(Run(gallery / "runs/finished"), Run(path)).metrics
    assert (steps.at, steps.num_same, epochs.at) == (7, 6, None)
    assert (steps.changes[0].first, steps.changes[0].second) == (value, changed)


def test_configs_are_compared_by_their_keys(configured, capsys):
    first, second = sorted(
        find_runs(configured / "runs"), key=lambda path: Run(path).config["model"]["width"]
    )
    assert main(["diff", str(first), str(second)]) == 1
    printed = capsys.readouterr().out
    assert "config: 1 difference\n  model.width: 8 -> 16\n" in printed
    for part in ("code", "packages", "seed", "data"):
        assert f"{part}: same\n" in printed


def test_code_differs_if_a_module_of_the_run_does(configured, tmp_path):
    path = find_runs(configured / "runs")[0]
    copy = Path(shutil.copytree(path, tmp_path / "run"))
    with (copy / "cli_project.py").open("a") as file:
        file.write("# changed\n")
    diff = compare_runs(Run(path), Run(copy))
    assert [change.key for change in diff.parts["code"]] == ["cli_project.py"]


@pytest.mark.parametrize(
    ("options", "code"), [((), 0), (("--strict",), 1), (("--strict", "--ignore", "s*"), 0)]
)
def test_measured_times_are_compared_only_if_asked_for(gallery, tmp_path, options, code):
    for name, speed in (("a", 1.0), ("b", 2.0)):
        shutil.copytree(gallery / "runs/finished", tmp_path / name)
        store = MetricsStore(tmp_path / name / "metrics.sqlite")
        store.add_epoch(4, 16, {"loss": 0.5, "samples_per_second": speed})
        store.close()
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), *options]) == code


def test_a_config_that_unfolds_without_end_is_refused():
    tree: object = "x"
    for _ in range(30):
        tree = [tree, tree]
    with pytest.raises(ConfigurationError, match="more than 100000 values"):
        flatten(tree)


def test_a_resumed_run_is_the_same_as_one_that_was_not_interrupted(tmp_path):
    train_run(tmp_path / "whole", seed=5)
    train_run(tmp_path / "broken", seed=5, how="failed")
    train_run(tmp_path / "broken", seed=5)
    diff = compare_runs(Run(tmp_path / "whole"), Run(tmp_path / "broken"))
    assert all(divergence.is_same for divergence in diff.metrics)

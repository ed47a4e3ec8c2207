"""`loopwright predict`: outputs for every sample, in its order, in the format that the name of the
file says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from loopwright.cli.evaluate import joined, write_predictions
from loopwright.errors import ConfigurationError
from loopwright.interfaces.configured import Experiment
from tests.cli.projects import CONFIG, Project, Shell


@pytest.fixture(scope="module")
def expected(trained_once: Project) -> torch.Tensor:
    return torch.cat(Experiment.from_run(trained_once.runs()[0], progress="silent").predict("test"))


def read(path: Path) -> torch.Tensor:
    if path.suffix == ".safetensors":
        return load_file(path)["output"]
    return (
        torch.from_numpy(np.load(path))
        if path.suffix == ".npy"
        else torch.tensor(json.loads(path.read_text()))
    )


@pytest.mark.parametrize("suffix", [".safetensors", ".npy", ".json"])
def test_every_format_holds_the_outputs_of_all_samples(
    trained: Project, shell: Shell, tmp_path: Path, expected: torch.Tensor, suffix: str
):
    file = tmp_path / f"out{suffix}"
    assert shell("predict", "last", "--data", "test", "--output", file) == 0
    assert torch.equal(read(file), expected)
    assert f"output 10 x 1, written to {file}" in shell.out


def test_several_outputs_go_by_their_names(project: Project, shell: Shell):
    project.write("run.yaml", CONFIG.replace("cli_project.Net", "cli_project.TwoHeads"))
    assert shell("train", "run.yaml", "--progress", "silent") == 0
    assert shell("predict", "last", "--data", "test", "-o", "out.safetensors") == 0
    found = load_file("out.safetensors")
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "mean": (10, 1),
        "heads.0": (10, 1),
        "heads.1": (10, 1),
    }
    assert torch.equal(found["heads.0"], found["mean"] + 1)
    assert shell("predict", "last", "--data", "test", "-o", "out.npy") == 2
    assert "use .safetensors" in shell.err


def test_outputs_of_different_sizes_are_a_list_that_only_json_takes(tmp_path: Path):
    outputs = joined([torch.ones(2, 3), torch.ones(2, 4)])
    with pytest.raises(ConfigurationError, match=r"Use \.json"):
        write_predictions(tmp_path / "out.npy", outputs)
    write_predictions(tmp_path / "out.json", outputs)
    assert [
        len(row) for batch in json.loads((tmp_path / "out.json").read_text()) for row in batch
    ] == [3, 3, 4, 4]


def test_numbers_that_are_not_finite_are_text_in_json(tmp_path: Path):
    write_predictions(
        tmp_path / "out.json", joined([torch.tensor([1.0, float("nan"), float("inf")])])
    )
    assert json.loads((tmp_path / "out.json").read_text()) == [1.0, "nan", "inf"]

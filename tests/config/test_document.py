"""Every block of docs/config.md does what the text says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import nn

import loopwright
from loopwright.config import (
    ConfigError,
    Place,
    build,
    check,
    expand_sweep,
    load_config,
)
from loopwright.interfaces.configured import Experiment
from loopwright.interfaces.configured.schema import schema

DOCUMENT = Path(loopwright.__file__).parents[2] / "docs" / "config.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
FILES = {
    match[1]: text for _, text in BLOCKS if (match := re.match(r"# (\w+\.(?:yaml|py))\n", text))
}
TEXTS = [text for language, text in BLOCKS if language == "text"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All files of the document in one folder, as a reader would have them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_used_here_or_run_as_a_script():
    others = [
        text for language, text in BLOCKS if text not in FILES.values() and language != "python"
    ]
    assert others == TEXTS
    yamls = {"run", "layers", "variables", "bigger", "sgd", "grid", "random", "wrong"}
    assert set(FILES) == {"mine.py", *(f"{name}.yaml" for name in yamls)}


def test_the_run_file_trains(folder):
    experiment = Experiment.from_config(load_config("run.yaml"), progress="silent")
    history = experiment.train()
    assert history
    assert (folder / "out").is_dir()


def test_a_sequential_can_be_written_down(folder):
    net = build(load_config("layers.yaml").at("model"), Place("model", nn.Module))
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear]


def test_variables_are_what_the_text_says(folder):
    tree = load_config("variables.yaml", environ={"NUM_WORKERS": "4"}).tree
    assert tree == {
        "vars": {"width": 16},
        "name": "net-16",
        "widths": [16, 32],
        "copy": [16, 32],
        "workers": 4,
        "price": "${5}",
    }


def test_a_file_over_another(folder):
    config = load_config("bigger.yaml")
    assert check(config, schema()) == []
    assert config.tree["model"] == {
        "kind": "mine.Net",
        "width": 64,
        "optimizer": {"kind": "SGD", "lr": 0.01, "momentum": 0.9},
    }


def test_the_overrides_can_be_used_together(folder):
    config = load_config("run.yaml", TEXTS[0].splitlines())
    assert check(config, schema()) == []
    assert config.tree["trainer"]["callbacks"][1] == {"kind": "EMA", "decay": 0.99}
    assert "activation" not in config.tree["model"]


def test_the_sweeps(folder):
    assert len(expand_sweep("run.yaml", TEXTS[1].splitlines())) == 12
    grid = expand_sweep("grid.yaml")
    assert (len(grid), grid[0].name) == (8, "lr=0.1_width=8")
    assert len(expand_sweep("random.yaml")) == 20
    assert all(
        check(variant.config, schema()) == []
        for variant in [grid[0], *expand_sweep("random.yaml")[:3]]
    )


def test_the_report_is_the_one_shown(folder):
    error = ConfigError(check(load_config("wrong.yaml"), schema()))
    assert str(error) == TEXTS[2].rstrip("\n")

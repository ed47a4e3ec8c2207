"""What is written loads to the same tree, whatever is in it."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwright.config import build, check, load_config
from loopwright.config.tree import Config, to_node

from .projects import MODEL, SCHEMA

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    [
        "no",
        "on",
        "1e3",
        "12:30",
        "${a}",
        "$${a}",
        "$$",
        "~",
        "null",
        "<<",
        "=",
        "1_000",
        "0x1",
        "- a",
        "a: b",
        "#",
        " x ",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
keys = texts.filter(lambda key: not key.startswith("~")) | st.integers()
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
files = st.dictionaries(keys.filter(lambda key: key not in ("defaults", "modules")), trees, max_size=5)


def same(left, right):
    """Equal, with the types equal too, and NaN equal to itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


@settings(max_examples=150, deadline=None)
@given(files)
@example({"a": "${", "b": "x${y}z", "c": "$${", "d": "\x85\u2028\ufeff\x00\ud7ff"})
@example({"a": [[], {}, [[1]], [{}]], "b": -0.0, "c": 1e300, "d": "a\n\n b\n"})
def test_what_is_written_loads_to_the_same_tree(tree):
    text = Config(to_node(tree, "made", None), Path()).to_yaml()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(text, newline="")
        assert same(load_config(path, environ={}).tree, tree)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(texts, st.booleans() | st.integers() | texts, max_size=5))
def test_older_readers_of_yaml_see_the_same_values(tree):
    tree = {key: value for key, value in tree.items() if "${" not in str(value)}
    text = Config(to_node(tree, "made", None), Path()).to_yaml()
    assert yaml.safe_load(text) == tree


def test_the_resolved_config_is_a_config_that_runs(project):
    config = load_config(project.file, ["vars.width=4", "trainer.max_updates=5"])
    written = project.write("out/run/config.yaml", config.to_yaml(project.folder / "out/run/config.yaml"))
    again = load_config(written)
    assert again.tree == {**config.tree, "modules": "../.."}
    assert check(again, SCHEMA) == []
    assert build(again.at("model"), MODEL).given["width"] == 4


def test_a_config_written_in_place_needs_no_modules_key(project):
    config = load_config(project.file)
    assert config.to_yaml(project.folder / "copy.yaml") == config.to_yaml()
    assert "modules" not in config.to_yaml()


def test_what_came_from_the_environment_is_not_written(project):
    environ = {"TOKEN": "hunter2", "RATE": "0.5"}
    project.write("run.yaml", "token: ${env:TOKEN}\nalso: ${token}\nurl: 'a/${env:TOKEN}/$${b}'\nrate: ${env:RATE}\n")
    config = load_config(project.file, environ=environ)
    text = config.to_yaml()
    assert "hunter2" not in text
    assert config.tree == {"token": "hunter2", "also": "hunter2", "url": "a/hunter2/${b}", "rate": 0.5}
    written = project.write("again.yaml", text)
    assert load_config(written, environ=environ).tree == config.tree


def test_what_came_from_the_environment_is_not_shown_in_a_report(project):
    project.write("run.yaml", project.file.read_text().replace("n: 64", "n: ${env:TOKEN}"))
    problems = check(load_config(project.file, environ={"TOKEN": "hunter2"}), SCHEMA)
    assert [problem.key for problem in problems] == ["datasets.train.n"]
    assert "hunter2" not in str(problems[0])


@pytest.mark.parametrize("path", ["../..", "/", "."])
def test_modules_may_name_a_folder_above_the_file(project, path):
    written = project.write("a/b/run.yaml", f"modules: {path}\n")
    assert load_config(written).folder == (project.folder / "a/b" / path).resolve()


@pytest.mark.parametrize("path", ["sub", "../other", "/elsewhere", "3"])
def test_modules_may_not_name_any_other_folder(project, path):
    project.write("run.yaml", f"seed: 0\nmodules: {path}\n")
    with pytest.raises(ValueError, match=r"run.yaml:2: modules\n.*a folder that the file lies in"):
        load_config(project.file)

"""YAML as it is read and written: values with lines, mistakes, and text that reads as the same
tree."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwright.config import Config, ConfigError, check, load_config
from loopwright.config.tree import to_node
from loopwright.config.yaml import read_text
from tests.config.projects import SCHEMA


def problems(text):
    with pytest.raises(ConfigError) as caught:
        read_text(text, "run.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0x1f", 31),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ("!!str 1", "1"),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text, value):
    found = read_text(f"key: {text}", "run.yaml").plain()["key"]
    assert found == value
    assert type(found) is type(value)


def test_all_mistakes_of_a_file_are_reported_at_once():
    assert [problem.line for problem in problems("a: 1\na: 2\nb: !!set {x}\n? [1]\n: 2\n")] == [
        2,
        3,
        4,
    ]


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system [ls]",
        "!mine x",
        "!!set {a}",
    ],
)
def test_tags_are_refused(tag):
    (problem,) = problems(f"key: {tag}")
    assert "only data" in problem.message


def test_anchors_and_merge_keys_work_and_own_keys_win():
    text = (
        "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nboth:\n  <<: [*base, "
        "*other]\n  a: 9\n"
    )
    assert read_text(text, "run.yaml").plain()["both"] == {"a": 9, "b": 2, "c": 4}


def test_aliases_that_expand_without_end_are_refused():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (problem,) = problems("\n".join(lines))
    assert "expand" in problem.message


def test_a_node_inside_itself_is_refused():
    (problem,) = problems("a: &a\n  b: *a\n")
    assert "contains itself" in problem.message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\n", 3, "is not YAML"),
        ("a:\n\tb: 1\n", 2, "cannot start any token"),
        ("a: 1\nb: *gone\n", 2, "undefined alias"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: {b: ${c}}\n", 1, 'quoted: "${name}"'),
        ("a: 1\n---\nb: 2\n", 2, "single document"),
        ("a: 1\nb: \x07\n", 2, "does not allow"),
        ("true: 1\n", 1, "put it in quotes"),
        ("a: 1\n1.5: 2\n", 2, "put it in quotes"),
        ("a: " + "9" * 5000, 1, "more digits"),
        ('a: "\\ud800"', 1, "half of a character"),
        ("a: !!int x", 1, "!!int"),
        ("[" * 800, None, "nested too deeply"),
        ("{a: " * 60 + "1" + "}" * 60, 1, "nested too deeply"),
    ],
)
def test_what_is_not_yaml_is_reported_with_its_line(text, line, words):
    (problem,) = problems(text)
    assert problem.line == line
    assert words in problem.message


def test_a_file_that_is_not_utf_8_says_so(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"run.yaml:2\n    is not UTF-8"):
        load_config(path)


@pytest.mark.parametrize("text", ["[1, 2]", "3"])
def test_a_file_must_be_a_mapping(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="a config is a mapping"):
        load_config(path)


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"#" * 4_000_001)
    with pytest.raises(ConfigError, match="too large"):
        load_config(path)


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
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
files = st.dictionaries(
    keys.filter(lambda key: key not in ("defaults", "modules")), trees, max_size=5
)


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


def test_what_came_from_the_environment_is_not_written(project):
    environ = {"TOKEN": "hunter2", "RATE": "0.5"}
    project.write(
        "run.yaml",
        "token: ${env:TOKEN}\nalso: ${token}\nurl: 'a/${env:TOKEN}/$${b}'\nrate: ${env:RATE}\n",
    )
    config = load_config(project.file, environ=environ)
    text = config.to_yaml()
    assert "hunter2" not in text
    assert config.tree == {
        "token": "hunter2",
        "also": "hunter2",
        "url": "a/hunter2/${b}",
        "rate": 0.5,
    }
    written = project.write("again.yaml", text)
    assert load_config(written, environ=environ).tree == config.tree


def test_what_came_from_the_environment_is_not_shown_in_a_report(project):
    project.write("run.yaml", project.file.read_text().replace("n: 64", "n: ${env:TOKEN}"))
    problems = check(load_config(project.file, environ={"TOKEN": "hunter2"}), SCHEMA)
    assert [problem.key for problem in problems] == ["datasets.train.n"]
    assert "hunter2" not in str(problems[0])


@pytest.mark.parametrize("path", ["../..", "."])
def test_modules_may_name_a_folder_above_the_file(project, path):
    written = project.write("a/b/run.yaml", f"modules: {path}\n")
    assert load_config(written).folder == (project.folder / "a/b" / path).resolve()


@pytest.mark.parametrize("path", ["sub", "../other"])
def test_modules_may_not_name_any_other_folder(project, path):
    project.write("run.yaml", f"seed: 0\nmodules: {path}\n")
    with pytest.raises(ValueError, match=r"run.yaml:2: modules\n.*a folder that contains the file"):
        load_config(project.file)

"""Scalars as YAML 1.2 reads them, lines for every node, and data only."""

from __future__ import annotations

import math

import pytest

from loopwright.config import ConfigError, load_config
from loopwright.config.yaml import read_text


def problems(text):
    with pytest.raises(ConfigError) as caught:
        read_text(text, "run.yaml")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("12", 12),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0x1f", 31),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("1.2.3", "1.2.3"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!float 1.0", 1.0),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text, value):
    found = read_text(f"key: {text}", "run.yaml").plain()["key"]
    assert found == value
    assert type(found) is type(value)


def test_every_node_knows_its_line():
    root = read_text("a:\n  b:\n    - 1\n    - c: 2\n", "run.yaml")
    inner = root.value["a"].value["b"]
    assert (root.value["a"].line, inner.line, inner.value[0].line, inner.value[1].value["c"].line) == (1, 2, 3, 4)


def test_a_key_that_is_there_twice_is_reported_with_both_lines():
    (problem,) = problems("a: 1\nb: 2\na: 3\n")
    assert (problem.line, problem.key) == (3, "a")
    assert "twice (first in line 1)" in problem.message


def test_all_mistakes_of_a_file_are_reported_at_once():
    assert [problem.line for problem in problems("a: 1\na: 2\nb: !!set {x}\n? [1]\n: 2\n")] == [2, 3, 4]


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system [ls]", "!!python/name:os.system x", "!mine x", "!!binary aGk=", "!!set {a}"],
)
def test_tags_are_refused(tag):
    (problem,) = problems(f"key: {tag}")
    assert "data only" in problem.message


def test_anchors_and_merge_keys_work_and_own_keys_win():
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nboth:\n  <<: [*base, *other]\n  a: 9\n"
    assert read_text(text, "run.yaml").plain()["both"] == {"a": 9, "b": 2, "c": 4}


def test_a_quoted_merge_key_is_a_plain_key():
    assert read_text('"<<": 1', "run.yaml").plain() == {"<<": 1}


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
        ("a:\n\tb: 1\n", 2, "spaces, not tabs"),
        ("a: 1\nb: *gone\n", 2, "anchor"),
        ("a: b: c\n", 1, "quoted"),
        ("a: {b: ${c}}\n", 1, 'quoted: "${name}"'),
        ("a: 1\n---\nb: 2\n", 2, "one document"),
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


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_config(path).tree == {"a": 1}


def test_an_empty_file_is_an_empty_mapping(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("")
    assert load_config(path).tree == {}


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "3"])
def test_a_file_must_be_a_mapping(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="a config is a mapping"):
        load_config(path)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "run.yaml")


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"#" * 4_000_001)
    with pytest.raises(ConfigError, match="too large"):
        load_config(path)

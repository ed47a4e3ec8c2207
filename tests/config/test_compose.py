"""Files that include others, and variables: the tree that a file and its includes make."""

from __future__ import annotations

import pytest

from loopwright.config import ConfigError, load_config


def load(project, overrides=()):
    return load_config(project.file, overrides)


def test_included_files_are_merged_in_order_and_the_file_wins(project):
    project.write("one.yaml", "a: {x: 1, y: 1, z: 1}\nlist: [1, 2]\n")
    project.write("two.yaml", "a: {y: 2, z: 2}\n")
    project.write("run.yaml", "defaults: [one.yaml, two.yaml]\na: {z: 3}\nlist: [9]\n")
    assert load(project).tree == {"a": {"x": 1, "y": 2, "z": 3}, "list": [9]}


def test_an_included_file_may_include_others_relative_to_itself(project):
    project.write("parts/net.yaml", "defaults: [deep.yaml]\nwidth: 3\n")
    project.write("parts/deep.yaml", "depth: 4\n")
    project.write("run.yaml", "defaults: [parts/net.yaml]\n")
    assert load(project).tree == {"depth": 4, "width": 3}


def test_a_file_can_be_included_under_a_key(project):
    project.write("nets/big.yaml", "width: 512\n")
    project.write(
        "run.yaml",
        "defaults:\n  - model: nets/big.yaml\n  - {trainer.inner: nets/big.yaml}\nmodel: {depth: "
        "2}\n",
    )
    assert load(project).tree == {
        "model": {"width": 512, "depth": 2},
        "trainer": {"inner": {"width": 512}},
    }


def test_a_value_keeps_the_file_and_line_it_came_from(project):
    one = project.write("one.yaml", "# first\na: {x: 1}\n")
    project.write("run.yaml", "defaults: [one.yaml]\na: {y: 1}\n")
    config = load(project)
    assert config.place("a.x") == (str(one), 2)
    assert config.place("a.y") == (str(project.file), 2)
    assert config.place("a.gone") == (str(project.file), 2)


def test_a_key_with_a_tilde_drops_an_included_one(project):
    project.write("one.yaml", "a: {x: 1, y: 2}\n")
    project.write("run.yaml", "defaults: [one.yaml]\na: {~x: }\n")
    assert load(project).tree == {"a": {"y": 2}}


def test_dropping_what_is_not_there_is_a_mistake(project):
    project.write("one.yaml", "a: {width: 1}\n")
    project.write("run.yaml", "defaults: [one.yaml]\na: {~widht: }\nb: {~c: }\n")
    with pytest.raises(ConfigError) as caught:
        load(project)
    first, second = caught.value.problems
    assert (first.line, first.key) == (2, "a.~widht")
    assert "did you mean width?" in first.message
    assert second.key == "b.~c"


def test_files_that_include_each_other_are_refused(project):
    project.write("one.yaml", "defaults: [two.yaml]\n")
    project.write("two.yaml", "\ndefaults: [one.yaml]\n")
    project.write("run.yaml", "defaults: [one.yaml]\n")
    with pytest.raises(
        ConfigError, match=r"two.yaml:2: defaults\n.*one.yaml -> two.yaml -> one.yaml"
    ):
        load(project)


def test_a_missing_include_is_named_with_its_line(project):
    project.write("base.yaml", "a: 1\n")
    project.write("run.yaml", "seed: 0\ndefaults: [bsae.yaml]\n")
    with pytest.raises(
        ConfigError,
        match=r"run.yaml:2: defaults\n    there is no file bsae.yaml; the name is relative to the file",
    ):
        load(project)


def test_mistakes_in_all_included_files_are_reported_together(project):
    project.write("one.yaml", "a: 1\na: 2\n")
    project.write("two.yaml", "b: [1\n")
    project.write("run.yaml", "defaults: [one.yaml, two.yaml, three.yaml, 4]\n")
    with pytest.raises(ConfigError) as caught:
        load(project)
    assert len(caught.value.problems) == 4


def load_text(project, text, **environ):
    return load_config(project.write("run.yaml", text), environ=environ).tree


def problem_in(project, text, **environ):
    with pytest.raises(ConfigError) as caught:
        load_text(project, text, **environ)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("value", [1.5, None, "text", [1, {"a": 2}]])
def test_a_variable_that_is_the_whole_value_keeps_its_type(project, value):
    import json

    assert (
        load_text(project, f"vars: {{v: {json.dumps(value)}}}\nkey: ${{vars.v}}\n")["key"] == value
    )


def test_a_variable_inside_text_becomes_text(project):
    text = "width: 16\nrate: 0.1\non: true\nname: 'net-${width}-${ rate }-${on}'\n"
    assert load_text(project, text)["name"] == "net-16-0.1-true"


def test_variables_may_refer_to_variables_in_any_order(project):
    assert load_text(project, "a: ${b}\nb: ${c.d}\nc: {d: 'x${e}'}\ne: 5\n")["a"] == "x5"


def test_a_variable_may_lead_through_another(project):
    assert load_text(project, "a: ${b.width}\nb: ${c}\nc: {width: 3}\n")["a"] == 3


def test_two_dollars_are_an_escape(project):
    text = "a: '$${b}'\nc: '$${b}-${d}'\nd: 1\ne: ${a}\nf: {g: '$${b}'}\nh: ${f}\ni: ${h.g}\n"
    found = load_text(project, text)
    assert found == {
        "a": "${b}",
        "c": "${b}-1",
        "d": 1,
        "e": "${b}",
        "f": {"g": "${b}"},
        "h": {"g": "${b}"},
        "i": "${b}",
    }


def test_the_environment_gives_numbers_as_numbers(project):
    text = "a: ${env:A}\nb: ${env:B,0.5}\nc: '${env:C, none}'\nd: 'x-${env:A}'\n"
    assert load_text(project, text, A="1e3") == {
        "a": 1000.0,
        "b": 0.5,
        "c": "none",
        "d": "x-1e3",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vars: {width: 1}\na: ${vars.widht}\n", "vars has no widht; did you mean width?"),
        ("width: 1\na: ${wdith}\n", "the config has no key wdith; did you mean width?"),
        ("b: {c: 1}\na: 'x${b}'\n", "cannot be part of a string"),
        ("b: 1\na: ${a}\n", "refers to itself"),
        ("b: 1\na: 'x${b'\n", "not closed"),
        ("b: 1\na: 'x${c${b}}'\n", "one variable inside another"),
        ("b: 1\na: ${file:x}\n", "expected ${key}"),
        ("b: [1]\na: ${b.1}\n", "b has no 1"),
    ],
)
def test_a_variable_without_a_value_is_a_mistake(project, text, words):
    found = problem_in(project, text)
    assert found.line == 2
    assert words in found.message


def test_variables_that_refer_to_each_other_in_a_circle_are_refused(project):
    with pytest.raises(ConfigError, match=r"refers to itself: a -> .*b -> .*a"):
        load_text(project, "a: ${b}\nb: ${a}\n")


def test_lists_that_double_without_end_are_refused(project):
    lines = ["v0: [1, 1]", *(f"v{i}: ['${{v{i - 1}}}', '${{v{i - 1}}}']" for i in range(1, 40))]
    with pytest.raises(ConfigError, match="expand to more values"):
        load_text(project, "\n".join(lines))


def test_text_that_doubles_without_end_is_refused(project):
    lines = ["v0: xxxxxxxx", *(f"v{i}: ${{v{i - 1}}}${{v{i - 1}}}" for i in range(1, 60))]
    with pytest.raises(ConfigError, match="more than a million characters"):
        load_text(project, "\n".join(lines))


def test_a_part_that_is_not_there_is_named_with_the_nearest_key(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {kind: Linear}\n")
    config = load_config(tmp_path / "run.yaml")
    with pytest.raises(
        ConfigError,
        match=r"run\.yaml:1: model\.knid\n    there is no such key; did you mean kind\?",
    ):
        config.at("model.knid")

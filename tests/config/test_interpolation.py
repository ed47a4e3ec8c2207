"""Variables: other keys, and the environment."""

from __future__ import annotations

import pytest

from loopwright.config import ConfigError, load_config


def load(project, text, **environ):
    return load_config(project.write("run.yaml", text), environ=environ).tree


def problem(project, text, **environ):
    with pytest.raises(ConfigError) as caught:
        load(project, text, **environ)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("value", [16, 1.5, True, None, "text", [1, {"a": 2}], {"a": [1]}])
def test_a_variable_that_is_the_whole_value_keeps_its_type(project, value):
    import json

    assert load(project, f"vars: {{v: {json.dumps(value)}}}\nkey: ${{vars.v}}\n")["key"] == value


def test_a_variable_inside_text_becomes_text(project):
    text = "width: 16\nrate: 0.1\non: true\nname: 'net-${width}-${ rate }-${on}'\n"
    assert load(project, text)["name"] == "net-16-0.1-true"


def test_any_key_can_be_a_variable_also_an_item_of_a_list(project):
    text = "model: {widths: [8, {last: 4}]}\na: ${model.widths.0}\nb: ${model.widths.1.last}\nc: ${model.widths.-1}\n"
    found = load(project, text)
    assert (found["a"], found["b"], found["c"]) == (8, 4, {"last": 4})


def test_variables_may_refer_to_variables_in_any_order(project):
    assert load(project, "a: ${b}\nb: ${c.d}\nc: {d: 'x${e}'}\ne: 5\n")["a"] == "x5"


def test_a_variable_may_lead_through_another(project):
    assert load(project, "a: ${b.width}\nb: ${c}\nc: {width: 3}\n")["a"] == 3


def test_copies_of_a_mapping_are_independent(project):
    path = project.write("run.yaml", "a: {x: 1}\nb: ${a}\n")
    tree = load_config(path).tree
    tree["b"]["x"] = 2
    assert tree["a"]["x"] == 1


def test_two_dollars_are_an_escape(project):
    text = "a: '$${b}'\nc: '$${b}-${d}'\nd: 1\ne: ${a}\nf: {g: '$${b}'}\nh: ${f}\ni: ${h.g}\n"
    found = load(project, text)
    assert found == {
        "a": "${b}",
        "c": "${b}-1",
        "d": 1,
        "e": "${b}",
        "f": {"g": "${b}"},
        "h": {"g": "${b}"},
        "i": "${b}",
    }


def test_dollars_alone_are_text(project):
    assert load(project, "a: $5\nb: 'x$'\nc: $$\n") == {"a": "$5", "b": "x$", "c": "$$"}


def test_the_environment_gives_numbers_as_numbers(project):
    text = "a: ${env:A}\nb: ${env:B,0.5}\nc: '${env:C, none}'\nd: 'x-${env:A}'\ne: ${env_text:A}\n"
    assert load(project, text, A="1e3") == {"a": 1000.0, "b": 0.5, "c": "none", "d": "x-1e3", "e": "1e3"}


def test_an_empty_default_is_null(project):
    assert load(project, "a: '${env:A,}'\n") == {"a": None}


def test_a_variable_that_is_not_set_says_what_to_do(project):
    found = problem(project, "seed: 0\na: ${env:RATE}\n")
    assert (found.line, found.key) == (2, "a")
    assert "RATE is not set" in found.message
    assert "${env:RATE,...}" in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vars: {width: 1}\na: ${vars.widht}\n", "vars has no widht; did you mean width?"),
        ("width: 1\na: ${wdith}\n", "the config has no key wdith; did you mean width?"),
        ("b: {c: 1}\na: 'x${b}'\n", "cannot be part of a text"),
        ("b: 1\na: ${a}\n", "refers to itself"),
        ("b: 1\na: {c: '${a}'}\n", "refers to itself"),
        ("b: 1\na: 'x${b'\n", "not closed"),
        ("b: 1\na: 'x${c${b}}'\n", "one variable inside another"),
        ("b: 1\na: ${file:x}\n", "expected ${key}"),
        ("b: 1\na: '${env:A B}'\n", "expected ${env:NAME}"),
        ("b: 1\na: '${}'\n", "expected ${key}"),
        ("b: [1]\na: ${b.1}\n", "b has no 1"),
    ],
)
def test_a_variable_without_a_value_is_a_mistake(project, text, words):
    found = problem(project, text)
    assert found.line == 2
    assert words in found.message


def test_variables_that_refer_to_each_other_in_a_circle_are_refused(project):
    with pytest.raises(ConfigError, match=r"refers to itself: a -> .*b -> .*a"):
        load(project, "a: ${b}\nb: ${a}\n")


def test_every_variable_without_a_value_is_reported(project):
    with pytest.raises(ConfigError) as caught:
        load(project, "a: ${x}\nb: {c: '${y}'}\nd: ['${env:Z}']\n")
    assert [found.key for found in caught.value.problems] == ["a", "b.c", "d.0"]


def test_lists_that_double_without_end_are_refused(project):
    lines = ["v0: [1, 1]", *(f"v{i}: ['${{v{i - 1}}}', '${{v{i - 1}}}']" for i in range(1, 40))]
    with pytest.raises(ConfigError, match="expand to more values"):
        load(project, "\n".join(lines))


def test_text_that_doubles_without_end_is_refused(project):
    lines = ["v0: xxxxxxxx", *(f"v{i}: ${{v{i - 1}}}${{v{i - 1}}}" for i in range(1, 60))]
    with pytest.raises(ConfigError, match="more than a million characters"):
        load(project, "\n".join(lines))

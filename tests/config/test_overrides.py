"""Changes from the command line."""

from __future__ import annotations

import pytest

from loopwright.config import ConfigError, load_config

TEXT = (
    "lr: 0.1\nmodel: {width: 8, deep: {a: 1}}\ncallbacks: [{kind: EMA, decay: 0.9}, {kind: "
    "X}]\nempty:\na.b: {c: 1}\n"
)


@pytest.fixture
def load(project):
    path = project.write("run.yaml", TEXT)
    return lambda *overrides: load_config(path, overrides, environ={}).tree


def message(load, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    (problem,) = caught.value.problems
    assert problem.file == "command line"
    assert problem.key == overrides[-1]
    return problem.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=0.5", 0.5),
        ("lr=1e-4", 1e-4),
        ("lr=no", "no"),
        ("lr=", None),
        ("lr='1'", "1"),
        ("lr=[1, 2]", [1, 2]),
        ("lr={a: 1, b: [2]}", {"a": 1, "b": [2]}),
        ("lr=a=b", "a=b"),
        ("lr = 3", 3),
        ('lr="a,b"', "a,b"),
        ("lr=it's", "it's"),
    ],
)
def test_the_value_is_read_as_yaml(load, text, value):
    assert load(text)["lr"] == value


def test_keys_inside_mappings_and_lists_are_changed(load):
    found = load("model.deep.a=2", "callbacks.0.decay=0.5", "callbacks.-1.kind=Y")
    assert found["model"] == {"width": 8, "deep": {"a": 2}}
    assert found["callbacks"] == [{"kind": "EMA", "decay": 0.5}, {"kind": "Y"}]


def test_a_key_with_a_dot_in_it_is_found(load):
    assert load("a.b.c=2")["a.b"] == {"c": 2}


def test_a_plus_adds_a_key_and_the_mappings_above_it(load):
    found = load("+model.new=1", "+callbacks.2.kind=Z", "+fresh.one.two=3", "+empty.x=4")
    assert found["model"]["new"] == 1
    assert found["callbacks"][2] == {"kind": "Z"}
    assert found["fresh"] == {"one": {"two": 3}}
    assert found["empty"] == {"x": 4}


def test_a_tilde_removes(load):
    found = load("~lr", "~model.deep", "~callbacks.0")
    assert "lr" not in found
    assert found["model"] == {"width": 8}
    assert found["callbacks"] == [{"kind": "X"}]


def test_the_keys_of_a_run_may_be_set_without_a_plus(load):
    found = load("seed=3", "name=x", "output_path=out", "resume=false", "tags=[a]")
    assert (found["seed"], found["name"], found["resume"], found["tags"]) == (3, "x", False, ["a"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "model.widht=1",
            "the config has no key model.widht; did you mean width?\nTo add it: +model.widht=...",
        ),
        ("modle.width=1", "no key modle; did you mean model?"),
        ("sead=1", "did you mean seed?"),
        ("callbacks.5.kind=x", "callbacks is a list of 2, and has no 5"),
        ("lr.x=1", "lr is 0.1, and has no x"),
        ("+lr=1", "exists already: leave out the +"),
        ("lr=[1", "is not YAML"),
        ("lr=!!python/name:os.system", "only data"),
        ("lr=1,2", "is a sweep"),
        ("lr", "is not an override"),
        ("~lr=1", "is not an override"),
        ("--lr=1", "no key --lr"),
    ],
)
def test_an_override_that_cannot_be_applied_is_a_mistake(load, override, words):
    assert words in message(load, override)


def test_a_changed_value_says_that_it_came_from_the_command_line(project):
    config = load_config(project.file, ["model.width=3"])
    assert config.place("model.width") == ("command line", None)

"""One config for each run of a sweep."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.config import (
    ConfigError,
    ValueRange,
    expand_sweep,
    load_variant,
    read_sweep,
)
from loopwright.config.sweep import MAX_LENGTH, name_variants

TEXT = "lr: 0.1\nmodel: {width: 8, kind: A}\nhalf: ${model.width}\n"


def expand(project, text, *overrides):
    return expand_sweep(project.write("run.yaml", text), overrides)


def mistakes(project, text, *overrides):
    with pytest.raises(ConfigError) as caught:
        expand(project, text, *overrides)
    return caught.value.problems


def test_comma_lists_become_a_grid_in_order(project):
    variants = expand(project, TEXT, "lr=0.1,0.01", "model.width=4,8")
    assert [variant.name for variant in variants] == [
        "lr=0.1_width=4",
        "lr=0.1_width=8",
        "lr=0.01_width=4",
        "lr=0.01_width=8",
    ]
    assert [variant.config.tree["half"] for variant in variants] == [4, 8, 4, 8]
    assert variants[2].chosen == {"lr": 0.01, "model.width": 4}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("range(1,4)", [1, 2, 3]),
        ("range(0,0.3,0.1)", [0.0, 0.1, 0.2]),
        ("range(3,0,-1)", [3, 2, 1]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        ("a,'b,c'", ["a", "b,c"]),
        ("{kind: A},{kind: B, x: [1, 2]}", [{"kind": "A"}, {"kind": "B", "x": [1, 2]}]),
        ("1,2,", [1, 2]),
    ],
)
def test_values_may_be_ranges_lists_and_mappings(project, text, values):
    assert [variant.config.tree["lr"] for variant in expand(project, TEXT, f"lr={text}")] == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("range(1)", "two or three numbers"),
        ("range(5,1)", "has 0 values"),
        ("range(0,1e9)", "expected 1 to 10000"),
        ("range(0,.inf)", "two or three numbers"),
    ],
)
def test_a_range_that_is_none_is_a_mistake(project, text, words):
    (problem,) = mistakes(project, TEXT, f"lr={text}")
    assert words in problem.message


def test_a_block_in_the_file_is_a_grid(project):
    variants = expand(project, TEXT + "sweep:\n  lr: [1, 2]\n  model.width: range(1,3)\n")
    assert [variant.name for variant in variants] == [
        "lr=1_width=1",
        "lr=1_width=2",
        "lr=2_width=1",
        "lr=2_width=2",
    ]
    assert all("sweep" not in variant.config.tree for variant in variants)


def test_an_override_wins_over_the_block(project):
    variants = expand(project, TEXT + "sweep: {lr: [1, 2, 3], model.width: [1, 2]}\n", "lr=7,8")
    assert [tuple(variant.chosen.values()) for variant in variants] == [
        (7, 1),
        (7, 2),
        (8, 1),
        (8, 2),
    ]


def test_a_block_may_use_variables(project):
    variants = expand(project, TEXT + "sweep: {lr: ['${model.width}', 1]}\n")
    assert [variant.chosen["lr"] for variant in variants] == [8, 1]


RANDOM = (
    TEXT
    + """
sweep:
  method: random
  num: 20
  seed: 3
  space:
    lr: {low: 1e-4, high: 1e-1, log: true}
    model.width: {low: 4, high: 64, step: 4}
    model.kind: [A, B]
    +dropout: {low: 0.0, high: 0.5}
"""
)


def test_a_random_sweep_draws_from_its_space_the_same_every_time(project):
    variants = expand(project, RANDOM)
    assert [variant.chosen for variant in variants] == [
        variant.chosen for variant in expand(project, RANDOM)
    ]
    assert len({variant.name for variant in variants}) == 20
    for variant in variants:
        tree = variant.config.tree
        assert 1e-4 <= tree["lr"] <= 1e-1
        assert tree["model"]["width"] in range(4, 65, 4)
        assert type(tree["model"]["width"]) is int
        assert tree["model"]["kind"] in ("A", "B")
        assert 0.0 <= tree["dropout"] <= 0.5
    below = [variant for variant in variants if variant.config.tree["lr"] < 0.01]
    assert 8 <= len(below) <= 18  # two of three orders of magnitude


def test_an_interval_with_steps_is_a_grid_too(project):
    text = TEXT + "sweep: {method: grid, space: {lr: {low: 0.1, high: 0.5, step: 0.2}}}\n"
    assert [variant.chosen["lr"] for variant in expand(project, text)] == [0.1, 0.3, 0.5]


@pytest.mark.parametrize(
    ("block", "key", "words"),
    [
        ("[1]", "sweep", "expected keys with values"),
        ("{lr: 3}", "sweep.lr", "expected a list of values"),
        ("{lr: 'range(1)'}", "sweep.lr", "two or three numbers"),
        (
            "{method: rnadom, num: 1, space: {lr: [1]}}",
            "sweep.method",
            "expected grid, random or optuna.",
        ),
        ("{method: random, space: {lr: [1]}}", "sweep.num", "missing"),
        ("{method: random, num: 0, space: {lr: [1]}}", "sweep.num", "1 or more"),
        ("{method: random, num: 1}", "sweep.space", "missing"),
        ("{method: grid, nmu: 1, space: {lr: [1]}}", "sweep.nmu", "did you mean num?"),
        ("{lr: {low: 1}}", "sweep.lr.high", "is missing"),
        ("{lr: {low: 2, high: 1}}", "sweep.lr", "low < high"),
        ("{lr: {low: 0, high: 1, log: true}}", "sweep.lr", "above 0"),
        ("{lr: {low: 0, hgih: 1}}", "sweep.lr.hgih", "did you mean high?"),
        ("{lr: {kind: loopwright.config.ValueRange, low: 0, high: 1}}", "sweep.lr.kind", "unknown"),
        ("{lr: {low: 0.0, high: 1.0}}", "sweep", "without a step"),
        ("{lrr: [1, 2]}", "lrr", "did you mean lr?"),
        ("{method: optuna, space: {lr: [1]}}", "sweep", "while it runs"),
        ("{lr: 'range(0,1000)', half: 'range(0,1000)'}", "sweep", "more than 100000 runs"),
    ],
)
def test_a_block_that_makes_no_sense_is_a_mistake_with_its_line(project, block, key, words):
    found = mistakes(project, TEXT + f"sweep: {block}\n")
    assert any(problem.key == key and words in problem.message for problem in found), found
    assert all(problem.line == 4 for problem in found)


def test_the_space_can_be_read_for_a_search(project):
    text = (
        TEXT + "sweep: {method: optuna, num: 5, metric: loss, direction: minimize, space: {lr: "
        "{low: 0.1, high: 1.0}}}\n"
    )
    sweep = read_sweep(project.write("run.yaml", text), ["model.width=1,2"])
    assert sweep.space == {"lr": ValueRange(0.1, 1.0), "model.width": [1, 2]}
    assert (sweep.method, sweep.num, sweep.metric, sweep.direction) == (
        "optuna",
        5,
        "loss",
        "minimize",
    )
    variant = load_variant(project.file, [], {"lr": 0.7, "model.width": 2})
    assert (variant.name, variant.config.tree["half"]) == ("lr=0.7_width=2", 2)


def test_variables_in_values_are_resolved_once(project):
    variants = expand(project, TEXT, "lr=$${a},$${b},${model.width}")
    assert [variant.config.tree["lr"] for variant in variants] == ["${a}", "${b}", 8]


def test_keys_that_end_alike_are_named_in_full(project):
    text = "a: {x: {lr: 1}}\nb: {x: {lr: 1}}\n"
    assert [variant.name for variant in expand(project, text, "a.x.lr=1,2", "b.x.lr=3")] == [
        "lr=1",
        "lr=2",
    ]
    (name, *_) = [variant.name for variant in expand(project, text, "a.x.lr=1,2", "b.x.lr=3,4")]
    assert name == "a.x.lr=1_b.x.lr=3"


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.text(min_size=1), values, min_size=1, max_size=3), max_size=5))
def test_names_are_different_and_safe_as_directories(combinations):
    names = name_variants(combinations)
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_+=][A-Za-z0-9._+=-]*", name)
        assert len(name) <= MAX_LENGTH + 4
        assert not name.endswith(".")

"""`defaults:` includes files, and the file's own keys win."""

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


def test_a_single_include_needs_no_list(project):
    project.write("one.yaml", "a: 1\n")
    project.write("run.yaml", "defaults: one.yaml\n")
    assert load(project).tree == {"a": 1}


def test_an_included_file_may_include_others_relative_to_itself(project):
    project.write("parts/net.yaml", "defaults: [deep.yaml]\nwidth: 3\n")
    project.write("parts/deep.yaml", "depth: 4\n")
    project.write("run.yaml", "defaults: [parts/net.yaml]\n")
    assert load(project).tree == {"depth": 4, "width": 3}


def test_a_file_can_be_included_under_a_key(project):
    project.write("nets/big.yaml", "width: 512\n")
    project.write(
        "run.yaml", "defaults:\n  - model: nets/big.yaml\n  - {trainer.inner: nets/big.yaml}\nmodel: {depth: 2}\n"
    )
    assert load(project).tree == {"model": {"width": 512, "depth": 2}, "trainer": {"inner": {"width": 512}}}


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
    with pytest.raises(ConfigError, match=r"two.yaml:2: defaults\n.*one.yaml -> two.yaml -> one.yaml"):
        load(project)


def test_the_same_file_may_be_included_twice(project):
    project.write("one.yaml", "a: 1\n")
    project.write("run.yaml", "defaults: [one.yaml, {b: one.yaml}]\n")
    assert load(project).tree == {"a": 1, "b": {"a": 1}}


def test_a_missing_include_names_the_nearest_file(project):
    project.write("base.yaml", "a: 1\n")
    project.write("run.yaml", "seed: 0\ndefaults: [bsae.yaml]\n")
    with pytest.raises(
        ConfigError, match=r"run.yaml:2: defaults\n    there is no file bsae.yaml; did you mean base.yaml"
    ):
        load(project)


def test_mistakes_in_all_included_files_are_reported_together(project):
    project.write("one.yaml", "a: 1\na: 2\n")
    project.write("two.yaml", "b: [1\n")
    project.write("run.yaml", "defaults: [one.yaml, two.yaml, three.yaml, 4]\n")
    with pytest.raises(ConfigError) as caught:
        load(project)
    assert len(caught.value.problems) == 4


def test_an_override_can_change_what_was_included(project):
    project.write("one.yaml", "vars: {width: 1}\n")
    project.write("run.yaml", "defaults: [one.yaml]\nwidth: ${vars.width}\n")
    assert load(project, ["vars.width=7"]).tree["width"] == 7

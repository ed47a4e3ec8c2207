"""The JSON schema: what an editor completes and checks."""

from __future__ import annotations

import json

import pytest

from loopwright.config import json_schema, load_config
from loopwright.config.yaml import read_text
from tests.config.json_check import is_valid
from tests.config.projects import RUN, SCHEMA


@pytest.fixture(scope="module")
def plain():
    return json_schema(SCHEMA)


def described(project):
    return json_schema(SCHEMA, load_config(project.file))


def test_every_reference_leads_somewhere(plain):
    text = json.dumps(plain)
    names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert names <= set(plain["$defs"])
    assert all(plain["$defs"].values())


def test_every_key_of_a_run_file_is_described(plain):
    for name, entry in plain["properties"].items():
        assert entry["description"], name
    assert {
        "seed",
        "name",
        "output_path",
        "vars",
        "defaults",
        "model",
        "datasets",
        "trainer",
        "sweep",
        "tags",
    } <= set(plain["properties"])


def test_the_arguments_of_short_kinds_are_there_with_their_defaults(plain):
    properties = plain["$defs"]["kind.torch.optim.AdamW"]["properties"]
    assert properties["lr"]["default"] == 0.001
    assert "params" not in properties
    assert "betas" in properties
    assert "learning rate" in properties["lr"]["description"]


def test_the_good_file_is_valid_as_it_is_written(project):
    schema = described(project)
    assert is_valid(read_text(RUN, "run.yaml").plain(), schema, schema)


def test_a_pydantic_config_of_the_users_own_trainer_is_completed(project):
    schema = described(project)
    properties = schema["$defs"]["kind.mine.Custom"]["properties"]
    assert {"max_updates", "batch_size", "alpha", "callbacks"} <= set(properties)
    assert properties["max_updates"]["description"] == "When to stop."
    assert properties["batch_size"]["default"] == 8
    assert "trainer_config" not in properties


@pytest.mark.parametrize(
    ("change", "is_good"),
    [
        (lambda tree: tree.update(seed="${env:SEED}"), True),
        (lambda tree: tree["model"].update(optimizer="SGD"), True),
        (lambda tree: tree["model"].update(kind="torch.nn.Identity"), True),
        (lambda tree: tree["trainer"].update(callbacks=["EMA"]), True),
        (lambda tree: tree.update(seed="zero"), False),
        (lambda tree: tree.update(sed=1), False),
        (lambda tree: tree.pop("model"), False),
        (lambda tree: tree["model"].pop("kind"), False),
        (lambda tree: tree["model"].update(widht=1), False),
        (lambda tree: tree["model"].update(width=[1]), False),
        (lambda tree: tree["model"].update(activation="tanh"), False),
        (lambda tree: tree["model"]["optimizer"].update(lrr=1), False),
        (lambda tree: tree["model"]["optimizer"].update(kind="AdamX"), False),
        (lambda tree: tree["model"]["optimizer"].update(betas=[1, 2, 3]), False),
        (lambda tree: tree["datasets"]["train"].pop("n"), False),
        (lambda tree: tree["trainer"].update(max_updates="many"), False),
        (lambda tree: tree["trainer"]["callbacks"][0].update(patience="x"), False),
        (lambda tree: tree["trainer"]["callbacks"][0].update(patince=1), False),
    ],
)
def test_the_schema_agrees_with_the_check(project, change, is_good):
    tree = read_text(RUN, "run.yaml").plain()
    change(tree)
    schema = described(project)
    assert is_valid(tree, schema, schema) is is_good


def test_a_file_that_includes_others_may_leave_keys_to_them(plain):
    assert is_valid({"defaults": ["base.yaml"]}, plain, plain)
    assert not is_valid({"seed": 0}, plain, plain)

"""The tables of docs/configured.md: every method, event and setting is there, as it is in the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import yaml

from loopwright import Callback
from loopwright.callback import hook_names
from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig, TrainerResult

PAGE = Path(__file__).parents[3] / "docs" / "configured.md"
TEXT = PAGE.read_text(encoding="utf-8")


def plain(function) -> str:
    """A signature as the page has it: without annotations."""
    signature = inspect.signature(function)
    parameters = [item.replace(annotation=inspect.Parameter.empty) for item in signature.parameters.values()]
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{function.__name__}{bare}"


def signatures(after: str) -> list[str]:
    section = TEXT[TEXT.index(after) :].partition("\n## ")[0] if after else TEXT
    return re.findall(r"^\| `(\w+\(self.*?\))` \|", section, re.M)


def test_every_method_is_listed_with_its_signature():
    methods = [
        function
        for name, function in vars(BaseTrainer).items()
        if inspect.isfunction(function) and (not name.startswith("_") or name == "_split_batch") and name != "overrides"
    ]
    assert sorted(signatures("## Methods")) == sorted(map(plain, methods))


def test_everything_that_can_be_read_is_listed():
    listed = TEXT[TEXT.index("and these to be read:") :].partition(".")[0]
    properties = {name for name, value in vars(BaseTrainer).items() if isinstance(value, property)}
    assert set(re.findall(r"`(\w+)`", listed)) == (properties - {"engine", "_core"}) | {"config"}


def test_every_event_is_listed_with_its_signature():
    assert signatures("## Callbacks") == [plain(getattr(Callback, name)) for name in hook_names(Callback)]


def test_every_setting_is_listed_with_its_default():
    table = TEXT[TEXT.index("| setting | default | |") :].partition("\n\n")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \|(?: `(.+?)`)? \|", table, re.M))
    settings = BaseTrainerConfig(max_epochs=1)
    defaults = {name: getattr(settings, name) for name in BaseTrainerConfig.model_fields} | {"max_epochs": None}
    assert {name: yaml.safe_load(text or "null") for name, text in listed.items()} == defaults
    assert list(listed) == list(defaults)


def test_the_result_of_a_step_is_shown_as_it_is():
    bare = plain(TrainerResult).replace(" -> None", "")
    assert f"`{bare}`" in TEXT

"""The door's page has every method, event and setting that there is, with the signature or default that it has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from loopwright.doors.modular import Callback, DreamTrainer, DreamTrainerConfig

PAGE = (Path(__file__).parents[3] / "docs" / "modular.md").read_text(encoding="utf-8")


def table(section: str) -> list[list[str]]:
    """The cells of all tables in a section, without heads."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [re.findall(r"(?<=\| ).*?(?= \|)", line) for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip("`") for cell in row] for row in rows]


def written(function: Callable[..., Any]) -> str:
    """A signature as the page has it: names and defaults, without types."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    shown = inspect.Signature([p for p in parameters if p.name != "self"])
    return f"{function.__name__}{shown}"


def test_the_page_has_every_method_with_its_signature() -> None:
    expected = set()
    for name in (name for name in dir(DreamTrainer) if not name.startswith(("_", "on_"))):
        is_property = isinstance(inspect.getattr_static(DreamTrainer, name), property)
        expected.add(name if is_property else written(getattr(DreamTrainer, name)))
    assert {row[0] for row in table("Methods")} == expected


def test_the_page_has_every_event_with_its_signature() -> None:
    assert [row[0] for row in table("Events")] == [
        written(getattr(Callback, name)) for name in vars(Callback) if name.startswith("on_")
    ]


def test_the_page_has_every_setting_with_its_default() -> None:
    assert [row[:2] for row in table("Settings and presets")] == [
        [field.name, repr(field.default)] for field in fields(DreamTrainerConfig)
    ]


def test_the_events_of_a_callback_are_those_of_the_trainer_without_the_trainer() -> None:
    for name in (name for name in vars(Callback) if name.startswith("on_")):
        ours = list(inspect.signature(getattr(DreamTrainer, name)).parameters)
        theirs = list(inspect.signature(getattr(Callback, name)).parameters)
        assert ours == [parameter for parameter in theirs if parameter != "trainer"], name

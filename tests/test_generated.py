"""The generated parts of the pages are what the code gives today; `python -m tests.generated`
writes them anew."""

import inspect
import re

import pytest

from loopwright.interfaces import adversarial, configured, lifecycle, modular, simple

from .generated import PARTS, current, expected

TRAINERS = {
    "simple.md": simple.Trainer,
    "lifecycle.md": lifecycle.Trainer,
    "configured.md": configured.BaseTrainer,
    "modular.md": modular.DreamTrainer,
    "adversarial.md": adversarial.Pix2pixTrainer,
}
ELSEWHERE = {  # what the text of a page has, and a name for the library itself
    "lifecycle.md": {"device"},
    "configured.md": {"overrides"},
    "adversarial.md": {
        f"log_{kind}" for kind in ("image", "images", "histogram", "text", "table", "figure")
    },
}


@pytest.mark.parametrize(("page", "name"), PARTS)
def test_a_generated_part_is_what_the_code_gives(page: str, name: str) -> None:
    assert current(page, name) == expected(page, name)


@pytest.mark.parametrize("page", TRAINERS)
def test_the_tables_of_an_interface_leave_out_nothing_that_its_trainer_has(page: str) -> None:
    tables = "\n".join(expected(page, name) for place, name in PARTS if place == page)
    shown = set(re.findall(r"^\| `(\w+)", tables, re.M))
    members = inspect.getmembers(
        TRAINERS[page], lambda value: inspect.isfunction(value) or isinstance(value, property)
    )
    public = {name for name, _ in members if not name.startswith("_")}
    assert public - shown == ELSEWHERE.get(page, set())

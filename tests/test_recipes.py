"""The programs of the recipes run from an empty folder, in a short form, and leave curves and a
result."""

import re
from pathlib import Path

import pytest

from .forked import run_forked

RECIPES = Path(__file__).parent.parent / "examples" / "recipes"
DOCS = Path(__file__).parent.parent / "docs" / "recipes"
SHORT = {"text": ("--updates", "2"), "reinforce": ("--updates", "2")}


@pytest.mark.parametrize("name", [path.stem for path in sorted(RECIPES.glob("*.py"))])
def test_a_recipe_runs_in_short_form_draws_its_curves_and_prints_its_result(
    name: str, tmp_path: Path
) -> None:
    said = run_forked(RECIPES / f"{name}.py", tmp_path, *SHORT.get(name, ("--epochs", "2")))
    assert [*tmp_path.glob("runs/*/curves.png")]
    assert re.search(r"\d", said.splitlines()[-1] + said.splitlines()[-2])


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.py")), ids=lambda path: path.stem)
def test_a_recipe_has_a_page_that_shows_it(path: Path) -> None:
    assert f'--8<-- "examples/recipes/{path.name}"' in (DOCS / f"{path.stem}.md").read_text()

"""The programs of the pages about moving: each runs, and those whose library is installed here
agree with ours."""

import importlib.util
from pathlib import Path

import pytest

from .forked import run_forked

MOVING = Path(__file__).parent.parent / "examples" / "moving"
PAGES = Path(__file__).parent.parent / "docs" / "moving"
LIBRARIES = sorted(path.parent.name for path in MOVING.glob("*/before.py"))
INSTALLED = [name for name in LIBRARIES if name == "plain" or importlib.util.find_spec(name)]


def printed_loss(program: Path, folder: Path) -> float:
    folder.mkdir()
    (line,) = (
        line for line in run_forked(program, folder).splitlines() if line.startswith("eval loss")
    )
    return float(line.split()[-1])


@pytest.mark.parametrize("name", INSTALLED)
def test_the_program_before_and_the_one_after_print_the_same_loss(
    name: str, tmp_path: Path
) -> None:
    before, after = (
        printed_loss(MOVING / name / f"{part}.py", tmp_path / part) for part in ("before", "after")
    )
    assert before == pytest.approx(after, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name not in INSTALLED])
def test_the_program_after_runs_where_its_library_is_not_installed(
    name: str, tmp_path: Path
) -> None:
    """`make moving` runs both, in environments of their own."""
    assert printed_loss(MOVING / name / "after.py", tmp_path / "after") < 0.5


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_page_shows_both_programs(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert all(f'--8<-- "examples/moving/{name}/{part}.py"' in page for part in ("before", "after"))

"""The examples: short, for any device, and run from an empty folder by the tests."""

import re
from pathlib import Path

import pytest

from .forked import run_forked

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_an_example_has_at_most_160_lines_and_names_no_folder_of_its_authors(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 160
    assert ".venv" not in text


@pytest.mark.parametrize(
    ("name", "said"), [("simple", r"accuracy (\d+)"), ("lifecycle", r"accuracy (\d+)")]
)
def test_the_example_of_an_interface_trains_draws_and_continues_when_it_is_started_again(
    name: str, said: str, tmp_path: Path
) -> None:
    first, second = (
        run_forked(EXAMPLES / f"{name}.py", tmp_path, "--epochs", epochs) for epochs in ("2", "4")
    )
    for text in (first, second):
        assert int(re.findall(said, text)[-1]) > 60
    assert "epoch 1" in first.lower()
    assert not re.search(r"epoch +1\b", second)
    assert next(tmp_path.glob("runs/*/*.png")).read_bytes().startswith(b"\x89PNG")

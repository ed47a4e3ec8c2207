"""The architecture page names files that exist, and the code keeps to the measures that the page
names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import loopwright
from loopwright import Trainer

ROOT = Path(__file__).parent.parent
SOURCE = Path(loopwright.__file__).parent
DOCUMENT = ROOT / "docs" / "architecture.md"
PAGE = DOCUMENT.read_text()
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))

# The page


def section(title: str) -> str:
    """The text below a heading of the page, to the next heading of its level."""
    level = title.split(" ")[0]
    return re.split(rf"^{level} ", PAGE.split(f"\n{title}\n")[1], flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without the heads of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {number - 1 for number, row in enumerate(cells) if set("".join(row)) == {"-"}}
    return [
        row for number, row in enumerate(cells) if number not in heads and number - 1 not in heads
    ]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def is_there(name: str) -> bool:
    return (SOURCE / name).exists() or (ROOT / name).exists()


def named_files(text: str) -> set[str]:
    """The Python files and the folders that a text names, between backticks or in the picture of
    the rooms."""
    return set(
        re.findall(r"(?<![\w./<>-])[\w/]+(?:\.py|/)(?![\w/])", re.sub(r"\[.*?\]\(.*?\)", "", text))
    )


def test_every_file_and_folder_on_the_page_exists() -> None:
    named = named_files(PAGE)
    assert {"training/run.py", "metrics/best.py", "runtime/"} <= named
    assert {name for name in named if not is_there(name)} == set()


def test_every_room_is_on_the_page() -> None:
    folders = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert folders <= named_files(section("## The rooms"))


def test_each_of_the_changes_names_one_file_that_exists() -> None:
    changes = rows(section("## Where a change goes"))
    files = [quoted(row[1]) for row in changes]
    assert len(changes) >= 20
    assert [row for row, found in zip(changes, files, strict=True) if len(found) != 1] == []
    assert [name for (name,) in files if not (SOURCE / name).is_file()] == []


def linear_trainer() -> Trainer:
    model = nn.Linear(2, 1)
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.functional.mse_loss,
        progress="silent",
    )


# The decisions


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_four_parts_and_names_files_that_exist(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Why", "Consequences"]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.M))
    assert text.startswith(f"# {int(path.name[:4])}. ")
    now = text.split("## Decision")[1]  # the context may tell of files that are gone
    files = {name for name in named_files(now) if name.endswith(".py")}
    assert {name for name in files if "/" in name and not is_there(name)} == set()


def test_the_decisions_are_numbered_without_a_gap_and_listed_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert re.findall(r"\]\((.*?)\)", index) == [path.name for path in DECISIONS]


# The measures


def test_a_trainer_has_few_attributes_of_its_own() -> None:
    trainer = linear_trainer()
    trainer.train((torch.randn(8, 2), torch.randn(8, 1)))
    assert len(vars(trainer)) <= 16, list(vars(trainer))


def takes_trainer(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    hints = [
        ast.unparse(argument.annotation) for argument in given if argument.annotation is not None
    ]
    return any(re.search(r"\b(Trainer|Program)\b", hint) for hint in hints)


def functions_that_take_a_trainer() -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and takes_trainer(node)
    ]


CALLBACKS = ("interfaces/", "callbacks/", "callback.py", "trackers/", "profiling/")
USERS = (*CALLBACKS, "cli/", "tuning/", "debug/")


def test_few_functions_of_the_core_take_the_whole_trainer() -> None:
    """Callbacks are given the trainer, and commands, finders and interfaces use it as a user does;
    the core takes parts."""
    core = [name for name in functions_that_take_a_trainer() if not name.startswith(USERS)]
    assert len(core) <= 40, core


def test_the_package_has_few_modules_at_its_root() -> None:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    assert {name for name in modules if not name.startswith("_")} <= {
        "trainer",
        "callback",
        "errors",
        "text",
        "trees",
    }
    assert {name for name in modules if name.startswith("_")} <= {
        *(
            "__init__",
            "__main__",
            "_lazy",
            "_other_frameworks",
            "_overrides",
            "_torch_compat",
            "_version",
        ),
    }

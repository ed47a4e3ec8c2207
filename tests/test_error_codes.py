"""Every error has a code, and docs/mistakes.md explains every code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import loopwright
from loopwright import errors

SOURCE = Path(loopwright.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "mistakes.md").read_text()
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Reports of several mistakes, each with its place in a file; and what ends training without a mistake
WITHOUT = {"ConfigError", "StopTrainingError"}


@cache
def nodes() -> list[tuple[str, ast.ClassDef | ast.Call]]:
    """The classes and calls of the package, with the files that they are in."""
    return [
        (str(path.relative_to(SOURCE)), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.Call)
    ]


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def error_classes() -> set[str]:
    found = {name for name, kind in vars(errors).items() if is_error(kind)}
    classes = [node for _, node in nodes() if isinstance(node, ast.ClassDef)]
    for _ in range(2):  # subclasses, and theirs
        found |= {node.name for node in classes if found & {name_of(base) for base in node.bases}}
    return found - WITHOUT


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.LoopwrightError)


def first_arguments() -> list[tuple[str, ast.expr | None]]:
    """Where each of our errors is made, and its first argument."""
    classes = error_classes()
    return [
        (f"{path}:{node.lineno}", node.args[0] if node.args else None)
        for path, node in nodes()
        if isinstance(node, ast.Call) and name_of(node.func) in classes
    ]


def test_every_error_is_made_with_a_code() -> None:
    found = first_arguments()
    assert len(found) > 300
    assert [
        place
        for place, code in found
        if not (isinstance(code, ast.Name) and code.id == "code")
        and not (isinstance(code, ast.Constant) and CODE.fullmatch(str(code.value)))
    ] == []


def test_the_page_explains_every_code_and_no_other() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    inside = PAGE.partition("## Inside")[2]
    named = {code for row in (*rows, inside) for code in re.findall(r"`([a-z0-9-]+)`", row)}
    raised = {str(code.value) for _, code in first_arguments() if isinstance(code, ast.Constant)}
    assert raised - named == set()
    assert {code for code in named if f'"{code}"' not in text} == set()

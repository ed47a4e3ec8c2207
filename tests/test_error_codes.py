"""Every error has a code, and docs/mistakes.md explains every code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import loopwright
from loopwright import errors

SOURCE = Path(loopwright.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "mistakes.md").read_text()
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Reports of several mistakes, each with its place in a file; and what ends training without a mistake
WITHOUT = {"ConfigError", "StopTrainingError"}


def error_classes() -> set[str]:
    found = {name for name, kind in vars(errors).items() if is_error(kind)}
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    for _ in range(2):  # subclasses, and theirs
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.ClassDef) and found & {
                ast.unparse(base) for base in node.bases
            }:
                found.add(node.name)
    return found - WITHOUT


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.LoopwrightError)


def first_arguments() -> list[tuple[str, ast.expr | None]]:
    """Where each of our errors is made, and its first argument."""
    classes = error_classes()
    return [
        (f"{path.relative_to(SOURCE)}:{node.lineno}", node.args[0] if node.args else None)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in classes
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

"""The program that `make smoke` runs in fresh environments uses names that are there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

PROGRAM = Path(__file__).with_name("features.py")


def test_the_program_that_tries_the_wheel_imports_only_names_that_exist() -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    own = [(str(node.module), name.name) for node in imports for name in node.names]
    own = [(module, name) for module, name in own if module.partition(".")[0] == "loopwright"]
    assert len(own) > 5
    assert [
        (module, name) for module, name in own if not hasattr(import_module(module), name)
    ] == []

"""Private names of torch and torchmetrics are used in `_torch_compat` and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import loopwright

SOURCE = Path(loopwright.__file__).parent
COMPAT = SOURCE / "_torch_compat"
MODULES = sorted(COMPAT.glob("*.py"))
FILES = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if COMPAT not in path.parents and "templates" not in path.parts
)
FOREIGN = ("torch", "torchmetrics")
ELSEWHERE = {  # private only in spelling, or of packages other than torch
    "_fields",  # a named tuple's, documented
    "_asdict",  # a named tuple's, documented
    "_replace",  # a named tuple's, documented
    "_exit",  # os._exit, documented
    "_current_frames",  # sys._current_frames, documented
    "_getframe",  # sys._getframe, documented
    "_forkserver",
    "_forkserver_pid",
    "_forkserver_alive_fd",
    "_forkserver_address",  # multiprocessing
    "_is_protocol",  # typing
    "_actions",
    "_option_string_actions",
    "_choices_actions",
    "_SubParsersAction",  # argparse
    "_storage",
    "_trial_id",  # optuna
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(node: ast.expr) -> bool:
    """Whether an object is the one whose class the code is in."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_attributes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Each use of a private attribute of another object, also by `getattr` and its kin: the object,
    and the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.value, node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            name = node.args[1]
            is_access = node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            if is_access and isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield node.args[0], str(name.value)


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Each import from a foreign package: the module, the name taken from it, and what it is called
    here."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").split(".")[0] in FOREIGN
        ):
            yield from (
                (node.module or "", alias.name, alias.asname or alias.name) for alias in node.names
            )
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in FOREIGN:
                    yield alias.name, "", alias.asname or alias.name.split(".")[0]


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@cache
def own_names() -> frozenset[str]:
    """Private names that the package itself defines."""
    found: set[str] = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and is_own(node.value)
            ):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(name for name in found if is_private(name)) | {"_loopwright_first"}


@cache
def foreign_names() -> frozenset[str]:
    """Private attributes that are known to be torch's, since `_torch_compat` uses them."""
    return frozenset(name for path in MODULES for _, name in private_attributes(tree_of(path)))


def problems_in(tree: ast.AST) -> list[str]:
    imported = list(imported_names(tree))
    roots = {here for _, _, here in imported}
    found = [
        f"from {module} import {name}"
        for module, name, _ in imported
        if any(is_private(part) for part in (*module.split("."), name))
    ]
    for value, name in private_attributes(tree):
        is_foreign = root_of(value) in roots or name in foreign_names() or name not in own_names()
        if is_foreign and name not in ELSEWHERE:
            found.append(f"{ast.unparse(value)}.{name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_but_the_compatibility_module_uses_a_private_name_of_torch(path: Path) -> None:
    assert problems_in(tree_of(path)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree",
        "from torch._C import Generator",
        "import torch._dynamo",
        "import torch\ntorch._foreach_add_([], 1)",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "optimizer._opt_called = True",
        "getattr(optimizer, '_opt_called', None)",
        "loader._index_sampler",
        "metric._defaults",
    ],
)
def test_private_names_are_noticed(line: str) -> None:
    assert len(problems_in(ast.parse(line))) == 1


@pytest.mark.parametrize(
    "line", ["self._workers", "import torch\ntorch.nn.Linear", "from torch import nn", "x._fields"]
)
def test_own_and_public_names_are_not(line: str) -> None:
    assert problems_in(ast.parse(line)) == []


def definitions() -> dict[str, str]:
    """The public names of the compatibility package, each with its docstring."""
    found: dict[str, str] = {}
    for path in MODULES:
        found |= definitions_in(tree_of(path).body)
    return {name: text for name, text in found.items() if not is_private(name)}


def definitions_in(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[node.targets[0].id] = str(after.value.value) if is_told else ""
    return found


def test_every_name_of_the_compatibility_module_is_used() -> None:
    used = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and "_torch_compat" in (node.module or ""):
                used |= {alias.name for alias in node.names}
            if isinstance(node, ast.Attribute) and root_of(node) == "_torch_compat":
                used.add(node.attr)
    assert sorted(set(definitions()) - used) == []


def test_every_name_of_torch_says_what_it_is_for_and_since_when_torch_has_it() -> None:
    text = "".join(path.read_text() for path in reversed(MODULES))  # that with torchmetrics last
    of_torch = {
        name
        for name in definitions()
        if text.index(name) < text.index("# torchmetrics (1.4 and later)")
    }
    told = definitions()
    assert [name for name in sorted(of_torch) if not re.search(r"Since\s", told[name])] == []
    assert [name for name in told if not told[name]] == []

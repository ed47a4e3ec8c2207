"""The names that people import: sorted, complete, and there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import loopwright

SOURCE = Path(loopwright.__file__).parent
NAMES = ast.parse((SOURCE / "__init__.py").read_text())


def test_public_names_are_sorted_and_each_can_be_imported():
    assert loopwright.__all__ == sorted(loopwright.__all__)
    for name in loopwright.__all__:
        assert getattr(loopwright, name) is not None


def test_what_a_type_checker_sees_is_what_is_there():
    typed = {
        alias.name
        for node in ast.walk(NAMES)
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed | {"__version__"} == set(loopwright.__all__)
    assert set(loopwright._HOMES) | {"__version__"} == set(loopwright.__all__)


def test_the_interface_of_the_design_is_there():
    expected = {"Callback", "History", "Progress", "Runtime", "Schedule", "StepResult", "Trainer"}
    assert expected <= set(loopwright.__all__)
    trainer = {
        "train",
        "evaluate",
        "predict",
        "save",
        "load",
        "export",
        "stop",
        "update",
        "configure_models",
    }
    steps = {
        "configure_optimizers",
        "configure_data",
        "prepare_batch",
        "split_batch",
        "forward",
        "compute_loss",
    }
    assert trainer | steps | {"train_step", "eval_step"} <= set(dir(loopwright.Trainer))


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(AttributeError, match=r"no attribute 'Trianer'; available: .*Trainer"):
        loopwright.Trianer


def test_a_star_import_gives_exactly_the_public_names():
    scope: dict[str, object] = {}
    exec("from loopwright import *", scope)
    assert sorted(scope.keys() - {"__builtins__"}) == loopwright.__all__


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: path.parent.name
)
def test_every_package_keeps_its_promises(path):
    """Whatever a package lists in `__all__`, in sorted order, is there."""
    module = import_module(".".join(path.parent.relative_to(SOURCE.parent).parts))
    names = getattr(module, "__all__", [])
    assert list(names) == sorted(names, key=order)
    assert all(hasattr(module, name) for name in names)


PACKAGES = [
    ".".join(path.parent.relative_to(SOURCE.parent).parts)
    for path in sorted(SOURCE.rglob("__init__.py"))
]


def called_by_users(module: ModuleType) -> Iterator[tuple[str, inspect.Signature]]:
    """The public functions of a module, and the methods of its public classes, but no results,
    which are only read."""
    listed = getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    for name in listed:
        value = getattr(module, name)
        if not getattr(value, "__module__", "").startswith("loopwright") or is_dataclass(value):
            continue
        if inspect.isfunction(value):
            yield name, inspect.signature(value)
        elif inspect.isclass(value):
            for method, function in inspect.getmembers(value, inspect.isfunction):
                if method == "__init__" or not method.startswith("_"):
                    yield f"{name}.{method}", inspect.signature(function)


@pytest.mark.parametrize(
    "name",
    [*PACKAGES, "loopwright.checkpoint.onnx", "loopwright.debug", "loopwright.metrics.history"],
)
def test_every_path_may_be_a_text(name):
    """An annotation of a public function that names Path names str beside it; mypy sees that it is
    then converted."""
    module = import_module(name)
    only_paths = {
        f"{function}({parameter.name}: {parameter.annotation})"
        for function, signature in called_by_users(module)
        for parameter in signature.parameters.values()
        if re.search(r"\bPath\b", str(parameter.annotation))
        and not re.search(r"\bstr\b", str(parameter.annotation))
    }
    assert only_paths == set()


def test_types_are_shipped():
    assert (SOURCE / "py.typed").exists()


def test_errors_can_be_caught_as_ours_and_as_what_they_are():
    assert issubclass(loopwright.ConfigurationError, ValueError)
    assert issubclass(loopwright.DataError, ValueError)
    assert issubclass(loopwright.MissingExtraError, ImportError)
    assert issubclass(loopwright.NonFiniteLossError, FloatingPointError)
    for name in loopwright.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(loopwright, name), loopwright.LoopwrightError)

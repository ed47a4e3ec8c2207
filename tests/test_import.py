"""What an import costs, and which way imports point."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import loopwright

SOURCE = Path(loopwright.__file__).parent
UNUSED = (
    "rich",
    "sqlite3",
    "safetensors",
    "pandas",
    "matplotlib",
    "torchmetrics",
    "sklearn",
    "transformers",
    "yaml",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "numpy.random",
)


@cache
def modules_after(statement: str) -> frozenset[str]:
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout))


def added_to_torch(statement: str) -> set[str]:
    """Modules that come in addition to those of torch, without our own."""
    before = modules_after("import torch, torch.utils.data")
    return {name for name in modules_after(statement) - before if name.split(".")[0] != "loopwright"}


def test_importing_the_package_imports_nothing_of_it_yet():
    ours = {name for name in modules_after("import loopwright") if name.startswith("loopwright")}
    assert ours == {"loopwright", "loopwright._lazy", "loopwright._version"}
    assert "torch" not in modules_after("import loopwright")


@pytest.mark.parametrize("name", UNUSED)
def test_importing_the_trainer_imports_nothing_it_may_not_need(name):
    after = modules_after("from loopwright import Trainer")
    before = modules_after("import torch, torch.utils.data")
    assert name in before or name not in after


def test_importing_the_trainer_adds_a_handful_of_modules_to_torch():
    """A guard against creep: each of these takes part of the five percent that importing may cost."""
    added = added_to_torch("from loopwright import Trainer")
    assert len(added) <= 12, sorted(added)


def test_importing_the_trainer_needs_few_of_our_own_modules():
    ours = [name for name in modules_after("from loopwright import Trainer") if name.startswith("loopwright")]
    assert len(ours) <= 50, ours
    assert not [
        name for name in ours if name.startswith(("loopwright.doors", "loopwright.run.", "loopwright.checkpoint"))
    ]


# Direction


def imports_of(path: Path, *, lazy: bool) -> set[str]:
    """Modules of the package that a file imports, as dotted names below the package; type-checking ones left out."""
    found: set[str] = set()
    package = path.relative_to(SOURCE).parent.parts

    def visit(node: ast.AST, is_lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            inside = is_lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.ImportFrom) and (lazy or not inside):
                found.update(resolve(child))
            visit(child, inside)

    def resolve(node: ast.ImportFrom) -> list[str]:
        if node.level == 0:
            parts = (node.module or "").split(".")
            if parts[0] != "loopwright":
                return []
            base = tuple(parts[1:])
        else:
            base = package[: len(package) - node.level + 1] + tuple(
                (node.module or "").split(".") if node.module else ()
            )
        return [".".join((*base, alias.name)) for alias in node.names] + [".".join(base)]

    visit(ast.parse(path.read_text()), False)
    return {name for name in found if name}


def is_in(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def files(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py"))


def test_the_tests_below_see_imports_of_every_form():
    assert "training.resume.restore_run" in imports_of(SOURCE / "training" / "train_call.py", lazy=False)
    assert "training.train_call.run_training" in imports_of(SOURCE / "trainer.py", lazy=True)
    assert "training.train_call.run_training" not in imports_of(SOURCE / "trainer.py", lazy=False)
    assert "errors" in imports_of(SOURCE / "data" / "stream.py", lazy=False)


EXPERIMENT = SOURCE / "run" / "experiment.py"
LOOP = ("training.steps", "training.update", "training.train_call", "training.assembly")
FORBIDDEN = {
    "data": ("trainer", "training", "callback", "callbacks", "checkpoint", "run", "doors", "runtime", "metrics"),
    "checkpoint": ("trainer", *LOOP, "callbacks", "run", "doors"),
    "run": ("trainer", "training", "callback", "callbacks", "doors", "data", "metrics.history", "metrics.meter"),
    "metrics": ("trainer", *LOOP, "callback", "callbacks", "checkpoint", "run", "optim", "doors"),
    "runtime": ("trainer", "training", "callback", "callbacks", "doors", "metrics", "run"),
    "callbacks": ("doors", "trainer", "training.train_call", "training.steps"),
}


@pytest.mark.parametrize(("folder", "forbidden"), FORBIDDEN.items(), ids=FORBIDDEN.keys())
def test_a_part_does_not_know_what_it_must_not_know(folder, forbidden):
    known = {
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in files(folder)
        for module in imports_of(path, lazy=True)
        if is_in(module, *forbidden) and path != EXPERIMENT
    }
    assert known == set()


def test_the_layer_between_commands_and_doors_is_known_to_these_alone():
    """`run.experiment` imports config and trainer, which the rest of `run` must not."""
    assert not {module for module in imports_of(EXPERIMENT, lazy=True) if is_in(module, "doors", "cli")}
    inner = [path for path in files(".") if path.relative_to(SOURCE).parts[0] not in ("cli", "doors")]
    known = {path for path in inner for module in imports_of(path, lazy=True) if is_in(module, "run.experiment")}
    assert known == set()


def test_the_core_does_not_know_the_doors():
    inner = [path for path in files(".") if "doors" not in path.relative_to(SOURCE).parts]
    known = {
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in inner
        for module in imports_of(path, lazy=True)
        if is_in(module, "doors") and path.relative_to(SOURCE).parts[0] not in ("cli", "config")
    }
    assert known == set()


def test_doors_do_not_know_each_other():
    def door_of(name: str) -> str:
        return name.lstrip("_").split("_")[0]

    known = set()
    for path in files("doors"):
        parts = path.relative_to(SOURCE / "doors").parts
        own = door_of(Path(parts[0]).stem)
        for module in imports_of(path, lazy=True):
            others = module.split(".")
            if others[0] == "doors" and len(others) > 1 and door_of(others[1]) != own and own != "init":
                known.add(f"{path.relative_to(SOURCE)} imports {module}")
    assert known == set()


def test_the_loop_knows_no_devices_no_files_and_no_printing():
    tree = ast.parse((SOURCE / "training" / "steps.py").read_text())
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"print", "open"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"cuda", "device", "to", "item", "cpu", "write_text", "mkdir"}


def test_modules_do_not_import_each_other_in_circles():
    graph = {}
    for path in files("."):
        relative = path.relative_to(SOURCE)
        name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        graph[name] = imports_of(path, lazy=False)
    graph = {name: {m for m in targets if m in graph and m != name} for name, targets in graph.items()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in graph[name]:
                if not name.startswith(f"{target}."):  # a module may name its own package
                    walk(target, (*trail, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_no_file_is_longer_than_four_hundred_lines():
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in files(".")}
    assert {name: length for name, length in lengths.items() if length > 400} == {}

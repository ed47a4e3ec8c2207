"""The cycles of imports, and what the loop may not know; `make lint` checks the direction of
imports."""

from __future__ import annotations

import ast
from pathlib import Path

import loopwright

SOURCE = Path(loopwright.__file__).parent


# Cycles


def imports_of(path: Path, *, lazy: bool, types: bool = False) -> set[str]:
    """Modules of the package that a file imports, as dotted names below the package.

    With `lazy` those inside functions count too, with `types` those for type checking.
    """
    found: set[str] = set()
    package = path.relative_to(SOURCE).parent.parts

    def visit(node: ast.AST, is_lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.If)
                and ast.unparse(child.test) == "TYPE_CHECKING"
                and not types
            ):
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


def files(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).rglob("*.py"))


def test_the_tests_below_see_imports_of_every_form():
    assert "training.resume.restore_run" in imports_of(
        SOURCE / "training" / "train_call.py", lazy=False
    )
    assert "training.train_call.run_training" in imports_of(SOURCE / "trainer.py", lazy=True)
    assert "training.train_call.run_training" not in imports_of(SOURCE / "trainer.py", lazy=False)
    assert "errors" in imports_of(SOURCE / "data" / "stream.py", lazy=False)
    assert "trainer.Trainer" not in imports_of(SOURCE / "callback.py", lazy=True)
    assert "trainer.Trainer" in imports_of(SOURCE / "callback.py", lazy=True, types=True)


def test_the_loop_knows_no_devices_no_files_and_no_printing():
    tree = ast.parse((SOURCE / "training" / "steps.py").read_text())
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"print", "open"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"cuda", "device", "to", "item", "cpu", "write_text", "mkdir"}


def import_graph(*, lazy: bool, types: bool) -> dict[str, set[str]]:
    """The modules of the package, and those that each imports; a module may import its own
    package."""
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in files(".")}
    names = {
        path: name.removesuffix(".__init__")
        for path, name in names.items()
        if "templates" not in path.parts
    }
    modules = set(names.values())
    return {
        name: {
            module
            for module in imports_of(path, lazy=lazy, types=types) & modules
            if module != name and not name.startswith(f"{module}.")
        }
        for path, name in names.items()
    }


def cycles_in(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one module: every module of one imports every
    other in the end."""

    def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
        found, waiting = {start}, [start]
        while waiting:
            new = edges[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            importers[target].add(name)
    components = {frozenset(reached(name, graph) & reached(name, importers)) for name in graph}
    return [set(component) for component in components if len(component) > 1]


def test_modules_do_not_import_each_other_in_circles():
    assert cycles_in(import_graph(lazy=False, types=False)) == []


def test_imports_inside_functions_make_no_circle_in_an_interface():
    cycles = cycles_in(import_graph(lazy=True, types=False))
    assert [
        cycle for cycle in cycles if any(name.startswith("interfaces.") for name in cycle)
    ] == []


def test_no_cycle_has_more_than_two_modules_even_with_lazy_and_type_checking_imports():
    """But for the type of the trainer that callbacks are passed, and inside the interfaces, of
    which none may grow."""
    in_interfaces = {"lifecycle": 18, "modular": 10, "simple": 6, "configured": 4, "adversarial": 3}
    graph = import_graph(lazy=True, types=True)
    graph["callback"].remove("trainer")
    allowed = {f"interfaces.{interface}": size for interface, size in in_interfaces.items()}
    too_large = [
        sorted(cycle)
        for cycle in cycles_in(graph)
        if len(cycle) > allowed.get(".".join(min(cycle).split(".")[:2]), 2)
    ]
    assert too_large == []


def test_the_search_for_cycles_finds_them():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": set()}
    assert cycles_in(graph) == [{"a", "b", "c"}]

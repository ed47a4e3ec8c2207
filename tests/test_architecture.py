"""The architecture page shows the code that is there, and the code keeps to the measures that the page names.

`python -m tests.test_architecture` copies the functions of the loop from the code into the page, and prints how
`WRITERS` has to change.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import loopwright
from loopwright import Trainer
from loopwright.training import steps as loop

ROOT = Path(__file__).parent.parent
SOURCE = Path(loopwright.__file__).parent
DOCUMENT = ROOT / "docs" / "architecture.md"
PAGE = DOCUMENT.read_text()
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))

SHOWN = [
    loop.train,
    loop.train_epoch,
    loop.begin_epoch,
    loop.end_steps,
    loop.record_epoch,
    loop.train_steps,
    loop.compute_steps,
    loop.open_steps,
    loop.take_windows,
]


# The page


@pytest.mark.parametrize("function", SHOWN, ids=lambda function: function.__name__)
def test_the_loop_in_the_document_is_the_loop(function: object) -> None:
    assert inspect.getsource(function) in PAGE


def section(title: str) -> str:
    """The text below a heading of the page, to the next heading of its level."""
    level = title.split(" ")[0]
    return re.split(rf"^{level} ", PAGE.split(f"\n{title}\n")[1], flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without the heads of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {number - 1 for number, row in enumerate(cells) if set("".join(row)) == {"-"}}
    return [row for number, row in enumerate(cells) if number not in heads and number - 1 not in heads]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def is_there(name: str) -> bool:
    return (SOURCE / name).exists() or (ROOT / name).exists()


def named_files(text: str) -> set[str]:
    """The Python files and the folders that a text names, between backticks or in the picture of the rooms."""
    return set(re.findall(r"(?<![\w./<>-])[\w/]+(?:\.py|/)(?![\w/])", re.sub(r"\[.*?\]\(.*?\)", "", text)))


def test_every_file_and_folder_on_the_page_exists() -> None:
    named = named_files(PAGE)
    assert {"training/run.py", "metrics/best.py", "runtime/", "cli/check/"} <= named
    assert {name for name in named if not is_there(name)} == set()


def test_every_room_and_every_module_of_training_is_on_the_page() -> None:
    folders = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    modules = {f"training/{path.name}" for path in (SOURCE / "training").glob("*.py") if path.stem != "__init__"}
    assert folders | modules <= named_files(section("## The rooms"))


def test_each_of_the_changes_names_one_file_that_exists() -> None:
    changes = rows(section("## Where a change goes"))
    files = [quoted(row[1]) for row in changes]
    assert len(changes) >= 20
    assert [row for row, found in zip(changes, files, strict=True) if len(found) != 1] == []
    assert [name for (name,) in files if not (SOURCE / name).is_file()] == []


def written_by_class(name: str) -> dict[str, list[str]]:
    """The attributes that the page says a class owns, each with the files that write it."""
    owned = [row for row in rows(section("## Who owns what")) if row[1] == f"`{name}`"]
    return {attribute: quoted(row[2]) for row in owned for attribute in quoted(row[0])}


def linear_trainer() -> Trainer:
    model = nn.Linear(2, 1)
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, progress="silent")


def test_the_table_of_owners_names_every_attribute_of_a_run_and_of_its_components() -> None:
    trainer = linear_trainer()
    assert set(written_by_class("TrainingRun")) == set(vars(trainer.run)) - {"program", "runtime", "components"}
    assert set(written_by_class("Components")) == set(vars(trainer._components))
    assert set(written_by_class("Trainer")) == {name for name in vars(trainer) if not name.startswith("_")} - {
        "run",
        "runtime",
        "model",
    }


def test_the_table_of_owners_names_every_file_of_training_that_writes_an_attribute() -> None:
    said = written_by_class("TrainingRun") | written_by_class("Components")
    found = {
        (attribute, name)
        for path in (SOURCE / "training").glob("*.py")
        for owner, attribute in written(path)
        if owner.split(".")[-1] in ("run", "components", "_components")
        for name in [f"training/{path.name}"]
    }
    assert ("pending", "training/state.py") in found
    assert {(attribute, name) for attribute, name in found if name not in said[attribute]} == set()


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


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to or deletes, one by one."""
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        found = [node.target]
    elif isinstance(node, ast.With):
        found = [item.optional_vars for item in node.items if item.optional_vars is not None]
    else:
        return
    for target in found:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def written(path: Path) -> Iterator[tuple[str, str]]:
    """Every attribute that a file assigns or deletes, as (owner, name); `*` where `setattr` has a computed name."""
    for node in ast.walk(ast.parse(path.read_text())):
        for target in targets(node):
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target.value), target.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            yield ast.unparse(node.args[0]), ast.literal_eval(node.args[1]) if is_text(node.args[1]) else "*"


def is_of_trainer_or_run(owner: str, path: str) -> bool:
    """Whether an attribute of this owner is one of a trainer, of its run, or of a part of its run."""
    names = owner.split(".")
    is_engine = names[-1] in ("engine", "_engine") and not path.startswith("doors/")  # a door owns its own engine
    return names[-1] in ("trainer", "_trainer", "progress") or "run" in names or is_engine


# The places outside of `training` that write a trainer or its run today. Do not add to them: give the run a method in
# `training` instead. `run_dir`, `accumulate` and `callbacks` of a trainer are settings that a user may assign, too.
WRITERS: dict[str, set[str]] = {
    "callbacks/interval.py": {"trainer.run.directions.given"},
    "callbacks/recorder.py": {"trainer.run.accepted"},
    "callbacks/rewind.py": {"trainer.progress.seconds"},
    "cli/check/dry_run.py": {"trainer.run.callbacks", "trainer.run_dir"},
    "cli/check/probe.py": {"engine.accumulate", "engine.callbacks", "engine.run.progress_style", "engine.run_dir"},
    "cli/check/training.py": {"engine.run.window.size"},
    "cli/train.py": {"engine._words"},
    "debug/resume_check.py": {"trainer.run.progress_style", "trainer.run_dir"},
    "doors/adversarial/engine.py": {
        "self.progress.call",
        "self.run.directory",
        "self.run.fingerprint",
        "self.run.num_calls",
        "self.run.window.has_stepped",
    },
    "doors/lifecycle/callbacks/averaging.py": {"trainer.callback_handler", "trainer.model"},
    "doors/lifecycle/core.py": {"self.progress.is_exhausted", "self.run.eval_stream", "self.run.train_stream"},
    "doors/modular/trainer.py": {"self._engine.progress.update"},
    "doors/modular/validation.py": {"trainer.run.window.size"},
    "doors/simple/components.py": {"self.run.updates"},
    "doors/simple/trainer.py": {"engine.run.window.size", "self._engine.run.window.size"},
    "run/experiment.py": {"engine.run_dir"},
    "tuning/batch_size.py": {"trainer.accumulate"},
    "tuning/fresh_run.py": {"trainer.callbacks"},
}


def writers() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(("training/", "cli/templates/")) and name not in ("trainer.py", "metrics/progress.py"):
            for owner, attribute in written(path):
                if is_of_trainer_or_run(owner, name):
                    found.setdefault(name, set()).add(f"{owner}.{attribute}")
    return found


def without(first: dict[str, set[str]], second: dict[str, set[str]]) -> dict[str, set[str]]:
    """What the first has and the second has not."""
    rest = {name: values - second.get(name, set()) for name, values in first.items()}
    return {name: values for name, values in rest.items() if values}


def test_nothing_outside_of_training_writes_a_trainer_or_its_run_but_for_the_known_places() -> None:
    assert without(writers(), WRITERS) == {}


def test_a_place_that_no_longer_writes_a_trainer_or_its_run_is_taken_off_the_list() -> None:
    assert without(WRITERS, writers()) == {}


def takes_trainer(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    hints = [ast.unparse(argument.annotation) for argument in given if argument.annotation is not None]
    return any(re.search(r"\b(Trainer|Program)\b", hint) for hint in hints)


def functions_that_take_a_trainer() -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and takes_trainer(node)
    ]


CALLBACKS = ("doors/", "callbacks/", "callback.py", "trackers/", "profiling/")
USERS = (*CALLBACKS, "cli/", "tuning/", "debug/", "run/experiment.py")


def test_few_functions_of_the_core_take_the_whole_trainer() -> None:
    """Callbacks are given the trainer, and commands, finders and doors use it as a user does; the core takes parts."""
    core = [name for name in functions_that_take_a_trainer() if not name.startswith(USERS)]
    assert len(core) <= 40, core


def test_no_more_functions_take_the_whole_trainer_than_today() -> None:
    """Without the events of callbacks, which are given the trainer wherever they are."""
    found = functions_that_take_a_trainer()
    inner = [name for name in found if not name.startswith(CALLBACKS) and ": on_" not in name]
    assert "training/assembly.py: assemble_models" in inner
    assert len(inner) <= 51, inner


def test_the_package_has_few_modules_at_its_root() -> None:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    assert {name for name in modules if not name.startswith("_")} <= {"trainer", "callback", "errors", "testing"}
    assert {name for name in modules if name.startswith("_")} <= {
        *("__init__", "__main__", "_lazy", "_other_frameworks", "_overrides", "_torch_compat", "_version"),
    }


def renew_page() -> None:
    """Copy the functions of the loop into the page."""
    start = PAGE.index("```py\n") + len("```py\n")
    functions = "\n\n".join(inspect.getsource(function) for function in SHOWN)
    DOCUMENT.write_text(PAGE[:start] + functions + PAGE[PAGE.index("```", start) :])


if __name__ == "__main__":
    renew_page()
    for title, places in (("take off", without(WRITERS, writers())), ("not allowed", without(writers(), WRITERS))):
        for name, attributes in sorted(places.items()):
            print(f"{title}: {name}: {', '.join(sorted(attributes))}")

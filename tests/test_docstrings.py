"""Docstrings of the public names: a first sentence, the arguments, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest

import loopwright
from loopwright.training.program import MessageNames

PACKAGES = (
    "loopwright",
    *(
        f"loopwright.{name}"
        for name in ("callbacks", "checkpoint", "config", "debug", "initializers", "losses")
    ),
    *(f"loopwright.{name}" for name in ("metrics", "run", "schedules", "tuning")),
)
INTERFACES = (
    "loopwright.interfaces.simple.Trainer",
    "loopwright.interfaces.lifecycle.Trainer",
    "loopwright.interfaces.configured.BaseTrainer",
    "loopwright.interfaces.modular.DreamTrainer",
    "loopwright.interfaces.adversarial.Trainer",
    "loopwright.interfaces.adversarial.Pix2pixTrainer",
)
METHODS = (  # of classes that users subclass or whose methods they call all day
    *(
        f"loopwright.Trainer.{name}"
        for name in ("train", "evaluate", "predict", "update", "log", "log_step", "stop")
    ),
    *(f"loopwright.Trainer.{name}" for name in ("save", "load", "load_weights", "export")),
    *(
        f"loopwright.Trainer.log_{kind}"
        for kind in ("image", "images", "histogram", "text", "table", "figure")
    ),
    *(
        f"loopwright.Callback.{name}"
        for name in vars(loopwright.Callback)
        if name.startswith("on_")
    ),
)


def public_names() -> Iterator[str]:
    """The classes and functions in `__all__` of the documented packages, each once, and the
    trainers of the interfaces."""
    seen = set()
    for package in PACKAGES:
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if (
                (inspect.isclass(value) or inspect.isfunction(value))
                and value not in seen
                and is_ours(value)
            ):
                seen.add(value)
                yield f"{package}.{name}"
    yield from INTERFACES


def is_ours(value: Any) -> bool:
    return value.__module__.startswith("loopwright.")


@cache
def find(path: str) -> Any:
    """The object of a dotted path: a name of a package, or a method of a class."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            value: Any = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            value = getattr(value, name)
        return value
    raise ModuleNotFoundError(path)


def text_of(value: Any) -> str:
    """The docstring; of a class with that of its constructor, as `help` shows both."""
    text = inspect.cleandoc(value.__doc__ or "")
    if inspect.isclass(value) and "__init__" in vars(value):
        text += "\n\n" + inspect.cleandoc(value.__init__.__doc__ or "")
    return text


def parameters_of(value: Any) -> list[str]:
    """The parameters that a caller passes."""
    if inspect.isclass(value) and issubclass(value, BaseException | dict):
        return []
    return [name for name in inspect.signature(value).parameters if name != "self"]


NAMES = [*public_names(), *METHODS]
# a sentence each says when, and with which arguments
EVENTS = [name for name in NAMES if ".Callback.on_" in name]
RESULT = "a result, or a record on disk: users read its attributes and never make one"
RAISED = "an error: users catch it and never make one"
IMAGES = "trains on files of images: the examples of docs/adversarial.md are run instead"
READ = (
    *(
        "checkpoint.Candidate",
        "checkpoint.Checkpoint",
        "checkpoint.CheckpointContent",
    ),
    *(
        "checkpoint.CheckpointInfo",
        "checkpoint.Difference",
        "checkpoint.KeptModel",
    ),
    *("checkpoint.TensorInfo", "config.Problem", "config.Variant", "run.Runs"),
)
ERRORS = [
    f"loopwright.{name}" for name in loopwright.__all__ if name.endswith(("Error", "Interrupted"))
]
UNEXPLAINED = {  # names without "Args:", and why
    **{
        f"loopwright.{name}": RESULT
        for name in (*READ, "checkpoint.StoredTensor", "run.RunManifest")
    },
}
WITHOUT_EXAMPLE = {  # names without an example, and why
    **{
        f"loopwright.{name}": RESULT
        for name in (*READ, "checkpoint.Manifest", "checkpoint.TensorShard")
    },
    **dict.fromkeys(set(ERRORS) - {"loopwright.LoopwrightError"}, RAISED),
    "loopwright.checkpoint.decode": "the example of `encode` has it",
    "loopwright.interfaces.adversarial.Trainer": IMAGES,
    "loopwright.interfaces.adversarial.Pix2pixTrainer": IMAGES,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_first_paragraph_of_a_docstring_is_a_sentence(name):
    first = text_of(find(name)).split("\n\n")[0]  # which may take two lines
    assert first[:1].isupper() or first[:1] == "`"
    assert first.endswith((".", ":")), first
    assert first.count("\n") < 2, first


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EVENTS])
def test_a_function_of_several_arguments_explains_them(name):
    parameters = parameters_of(find(name))
    is_explained = len(parameters) < 2 or "Args:" in text_of(find(name))
    assert is_explained != (name in UNEXPLAINED), f"{name}({', '.join(parameters)})"


@pytest.mark.parametrize("name", list(public_names()))
def test_a_public_name_has_an_example(name):
    assert (">>>" in text_of(find(name))) != (name in WITHOUT_EXAMPLE)


@pytest.mark.parametrize(
    "name", ["", ".train", ".evaluate", ".predict", ".update", ".load_weights"]
)
def test_every_argument_of_the_trainer_is_explained(name):
    function = find(f"loopwright.Trainer{name}")
    described = text_of(function).split("Args:")[1].split("Returns:")[0]
    assert [name for name in parameters_of(function) if f"\n    {name}: " not in described] == []


def test_what_help_shows_of_the_trainer_is_documented():
    """Methods that are not for users have an underscore; the events are documented in
    `Callback`."""
    names = [name for name in dir(loopwright.Trainer) if not name.startswith(("_", "on_"))]
    # not those that only raise with advice
    shown = [name for name in names if hasattr(loopwright.Trainer, name)]
    methods = [
        name for name in shown if not isinstance(getattr(loopwright.Trainer, name), MessageNames)
    ]
    assert [name for name in methods if not inspect.getdoc(getattr(loopwright.Trainer, name))] == []


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in public_names()}))
def test_examples_run(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed: list[str] = []
    for name in (name for name in public_names() if name.rpartition(".")[0] == package):
        failed += failures_of(name, find(name))
    assert failed == []


def failures_of(name: str, value: Any) -> list[str]:
    """What the examples of a function or class print wrongly; those of methods continue the example
    of their class."""
    names = dict(vars(sys.modules[value.__module__]))
    printed: list[str] = []
    run_examples(name, text_of(value), names, printed)
    for method, function in vars(value).items() if inspect.isclass(value) else ():
        text = inspect.getdoc(function) if not method.startswith("_") else None
        run_examples(f"{name}.{method}", text or "", dict(names), printed)
    return printed


def run_examples(name: str, text: str, names: dict[str, Any], printed: list[str]) -> None:
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    test.globs = names
    doctest.DocTestRunner(verbose=False).run(test, out=printed.append, clear_globs=False)

"""A config from a stranger cannot run anything by naming it."""

from __future__ import annotations

import sys

import pytest
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from loopwright import Callback, Trainer
from loopwright.config import ConfigError, Place, build, check, load_config
from loopwright.config.kinds import _owners, beside, depends_on, shipped_names
from tests.config.projects import SCHEMA

PLACES = [
    Place("model", nn.Module),
    Place("dataset", Dataset),
    Place("optimizer", Optimizer),
    Place("callback", Callback),
    Place("trainer", Trainer),
]

TRAPS = '''
"""Things that would leave a trace if they were called."""
import functools
import os
import subprocess
from subprocess import Popen
from pathlib import Path

from torch import nn
from torch.utils.data import Dataset

HERE = Path(__file__).parent


def touch(*args, **kwargs):
    (HERE / "called").touch()


class Tricky(type):
    """Says that its classes are subclasses of everything."""

    def __subclasscheck__(cls, other):
        return True

    def __instancecheck__(cls, other):
        return True

    def mro(cls):
        return super().mro()

    @property
    def __bases__(cls):
        return (nn.Module,)

    def __getattribute__(cls, name):
        if name in ("__mro__", "__bases__"):
            return (cls, nn.Module, Dataset, object)
        return super().__getattribute__(name)

    def __call__(cls, *args, **kwargs):
        touch()


class Pretender(metaclass=Tricky):
    pass


class Liar:
    """An instance that says it is a class."""

    __class__ = type
    __mro__ = (nn.Module, object)
    __name__ = __qualname__ = "Liar"

    def __call__(self, *args, **kwargs):
        touch()


class Outer:
    def method(self):
        touch()

    @staticmethod
    def static():
        touch()

    @classmethod
    def made(cls):
        touch()

    @property
    def value(self):
        touch()

    run = functools.partial(touch)
    instance = nn.Linear(1, 1)


class Forged:
    """Not a module, although it is registered nowhere and has all its names."""

    def __init__(self, *args, **kwargs):
        touch()

    forward = train = eval = parameters = state_dict = touch


liar = Liar()
partial = functools.partial(touch)
bound = Outer().method
instance = nn.Linear(1, 1)
alias = Dataset[int]
'''

HOSTILE = [
    "os.system",
    "subprocess.Popen",
    "builtins.eval",
    "builtins.__import__",
    "eval",
    "__import__",
    "pickle.loads",
    "importlib.import_module",
    "functools.partial",
    "__main__.Net",
    "sys.modules",
    "torch.load",
    "torch.os.system",
    "torch.serialization.os.system",
    "torch.utils.data.dataloader.os.system",
    "torch.package.PackageImporter",
    "torch.nn.Module.__init__",
    "torch.nn.Module.forward.__globals__",
    "torch.nn.functional.relu",
    "torch.Tensor",
    "torch.nn",
    "torch",
    "torch..nn.Linear",
    "torch.nn.Linear; import os",
    "torch.nn.Linear\n",
    "",
    "pip.main",
    "sklearn.svm.SVC",
    "loopwright.cli.main",
    "loopwright.run.directory.shutil.rmtree",
    "loopwright.config.validate.build",
    "traps.touch",
    "traps.os.system",
    "traps.Pretender",
    "traps.liar",
    "traps.partial",
    "traps.bound",
    "traps.alias",
    "traps.Forged",
    "traps.Outer.method",
    "traps.Outer.static",
    "traps.Outer.value",
    "traps.Outer.run",
    "traps.Outer.instance",
    "traps.Outer.instance.forward",
    "traps.instance",
    "traps.Outer",
    "traps.__builtins__.eval",
    "traps.Outer.__init__.__globals__",
    "traps.HERE",
    3,
    None,
    True,
    ["os.system"],
    {"kind": "os.system"},
]


@pytest.fixture
def traps(project):
    project.write("traps.py", TRAPS)
    return project


@pytest.mark.parametrize("kind", HOSTILE, ids=repr)
def test_a_hostile_kind_is_refused_in_every_place_without_being_called(traps, kind, monkeypatch):
    events: list[str] = []
    monkeypatch.setattr(sys, "exit", lambda *args: events.append("exit"))
    for place in PLACES:
        with beside(traps.folder), pytest.raises(ConfigError) as caught:
            build({"kind": kind, "args": ["touch called"], "command": "touch called"}, place)
        problem = caught.value.problems[0]
        assert problem.key == "kind"
        assert problem.message
    assert events == []
    assert not (traps.folder / "called").exists()


@pytest.mark.parametrize("kind", ["traps.touch", "traps.Pretender", "os.system"])
@pytest.mark.parametrize("argument", ["inner", "layer", "ghost", "blocks", "options"])
def test_a_hostile_kind_is_refused_inside_arguments_too(traps, argument, kind):
    node = f'"{kind}"' if argument == "layer" else f'{{kind: "{kind}", args: [touch called]}}'
    value = f"[{node}]" if argument == "blocks" else node
    problems = check(
        load_config(
            traps.file,
            [f"+model.{argument}={value}" if argument != "inner" else f"model.inner={value}"],
        ),
        SCHEMA,
    )
    assert len(problems) == 1
    assert problems[0].key.startswith(f"model.{argument}")
    assert not (traps.folder / "called").exists()


def test_a_module_of_an_unrelated_distribution_is_not_even_imported(project):
    before = set(sys.modules)
    for kind in (
        "sklearn.dummy.DummyClassifier",
        "antigravity.fly",
        "turtledemo.clock.X",
        "hypothesis.extra.ghostwriter.X",
    ):
        with pytest.raises(ConfigError):
            build({"kind": kind}, Place("model", nn.Module))
    new = set(sys.modules) - before
    assert not new & {"sklearn.dummy", "antigravity", "turtledemo", "hypothesis.extra.ghostwriter"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Distributions that are installed for one test: a module each, with the metadata that an
    installer writes."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def install(name, *requirements):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
        )
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n{name}-1.0.dist-info/METADATA,,\n")
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(
            "from torch import nn\nclass Net(nn.Module):\n    size = 6\n"
        )
        _owners.cache_clear()
        depends_on.cache_clear()

    yield install
    _owners.cache_clear()
    depends_on.cache_clear()


@pytest.mark.parametrize(
    "requirements", [["torch>=2"], ["numpy", "Torch ; extra == 'nets'"], ["torchmetrics"]]
)
def test_a_class_of_such_a_distribution_is_built(installed, requirements):
    name = f"tinynets_{len(requirements[0])}"
    installed(name, *requirements)
    assert build({"kind": f"{name}.Net"}, Place("model", nn.Module)).size == 6


@pytest.mark.parametrize("requirements", [[], ["numpy"], ["numpy", "pytest ; extra == 'dev'"]])
def test_a_distribution_that_cannot_know_what_is_needed_is_not_imported(installed, requirements):
    installed("stranger", *requirements)
    with pytest.raises(
        ConfigError, match="stranger is not imported: stranger does not depend on torch"
    ):
        build({"kind": "stranger.Net"}, Place("model", nn.Module))
    assert "stranger" not in sys.modules


def test_a_package_beside_the_file_is_searched(project):
    project.write("pack/__init__.py", "")
    project.write(
        "pack/parts/net.py", "from torch import nn\nclass Net(nn.Module):\n    size = 4\n"
    )
    path = project.write("p.yaml", "model: {kind: pack.parts.net.Net}\n")
    assert build(load_config(path).at("model"), Place("model", nn.Module)).size == 4


def test_a_folder_beside_the_file_does_not_hide_a_package(project, installed):
    installed("hidden", "torch")
    project.write("hidden/data.txt", "")
    path = project.write("p.yaml", "model: {kind: hidden.Net}\n")
    assert build(load_config(path).at("model"), Place("model", nn.Module)).size == 6


def test_an_abstract_class_is_refused(project):
    project.write(
        "abstracts.py",
        """
        from abc import ABC, abstractmethod
        from torch import nn
        class Base(nn.Module, ABC):
            @abstractmethod
            def measure(self): ...
        """,
    )
    path = project.write("p.yaml", "model: {kind: abstracts.Base}\n")
    with pytest.raises(ConfigError, match="abstract: name a subclass that defines measure"):
        build(load_config(path).at("model"), Place("model", nn.Module))


@pytest.mark.parametrize("base", [Optimizer, nn.Module, Callback], ids=lambda base: base.__name__)
def test_short_names_lead_to_what_they_are_called(base):
    names = shipped_names((base,))
    for name, path in names.items():
        assert path.endswith(f".{name}")
    assert {"AdamW", "Linear", "EarlyStopping"} & set(names)

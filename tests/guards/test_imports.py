"""What importing and a first training load: modules, counted in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module

import pytest

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
    "tensorboard",
    "wandb",
    "mlflow",
    "trackio",
    "numpy.random",
)
STAGES = {
    "package": "import loopwright",
    "torch": "import torch, torch.utils.data",
    "trainer": "from loopwright import Trainer",
    "optimizer": "model = torch.nn.Linear(3, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)",
    "built": "trainer = Trainer(model, optimizer, torch.nn.MSELoss(), progress='silent')",
    "trained": "trainer.train((torch.zeros(8, 3), torch.zeros(8, 1)), num_epochs=2)",
    "recorded": "class Note(loopwright.Callback):\n"
    "    def on_train_step_start(self, trainer, batch): found.setdefault('first step', "
    "sorted(sys.modules))\n"
    "Trainer(model, optimizer, torch.nn.MSELoss(), callbacks=[Note()], "
    "run_dir=sys.argv[1], progress='silent').train((torch.zeros(8, 3), torch.zeros(8, "
    "1)), num_epochs=2)",
    "trackers": "from loopwright.trackers import CSV, JSONL, MLflow, TensorBoard, Track, Trackio, "
    "WandB",
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that are there after each of the stages, one after the other in one program."""
    lines = ["import sys, json", "found = {}"]
    for name, statement in STAGES.items():
        lines += [statement, f"found[{name!r}] = sorted(sys.modules)"]
    program = "\n".join([*lines, "print(json.dumps(found))"])
    folder = str(tmp_path_factory.mktemp("imports") / "run")
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=True
    )
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] == "loopwright")


def others(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] != "loopwright")


def test_importing_the_package_imports_nothing_of_it_yet(loaded: dict[str, set[str]]):
    assert ours(loaded["package"]) == ["loopwright", "loopwright._lazy", "loopwright._version"]
    assert "torch" not in loaded["package"]


@pytest.mark.parametrize("name", UNUSED)
def test_importing_the_trainer_imports_nothing_it_may_not_need(
    name: str, loaded: dict[str, set[str]]
):
    assert name in loaded["torch"] or name not in loaded["trainer"]


def test_importing_the_trackers_imports_none_of_their_packages(loaded: dict[str, set[str]]):
    added = {name.partition(".")[0] for name in loaded["trackers"] - loaded["recorded"]}
    assert not added & {"tensorboard", "wandb", "mlflow", "trackio", "PIL"}


def test_importing_the_trainer_adds_a_handful_of_modules_to_torch(loaded: dict[str, set[str]]):
    """A guard against creep: each of these takes part of the five percent that importing may
    cost."""
    added = others(loaded["trainer"] - loaded["torch"])
    assert len(added) <= 12, added


def test_importing_the_trainer_needs_few_of_our_own_modules(loaded: dict[str, set[str]]):
    own = ours(loaded["trainer"])
    assert len(own) <= 54, own
    later = (
        "loopwright.interfaces",
        "loopwright.run.",
        "loopwright.checkpoint",
        "loopwright.profiling",
    )
    assert not [name for name in own if name.startswith(later)]


# How many more a stage may load: ours and others', with the figures of the day on which they were
# counted
MORE = {"built": (7, 0), "trained": (19, 1), "recorded": (26, 3)}


@pytest.mark.parametrize("stage", MORE)
def test_a_first_training_loads_few_modules_more(stage: str, loaded: dict[str, set[str]]):
    """Without a run directory there are no files, hence none of the modules that read and write
    them."""
    before = loaded[list(STAGES)[list(STAGES).index(stage) - 1]]
    own, other = ours(loaded[stage] - before), others(loaded[stage] - before)
    assert len(own) <= MORE[stage][0], own
    assert len(other) <= MORE[stage][1], other


def test_the_first_step_of_a_recorded_run_waits_for_few_modules(loaded: dict[str, set[str]]):
    """Each takes a part of the 25 milliseconds from `train` to the first step, and a dataclass as
    much again."""
    own, other = (kind(loaded["first step"] - loaded["trained"]) for kind in (ours, others))
    assert len(own) <= 12, own
    assert not other
    classes = [
        c
        for name in own
        for c in vars(import_module(name)).values()
        if is_dataclass(c) and c.__module__ == name
    ]
    assert len(classes) <= 4, classes

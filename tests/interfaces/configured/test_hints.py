"""Whatever a message about a run file suggests is there: written instead, it is accepted."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopwright.config import ConfigError, load_config
from loopwright.config.kinds import RefusedError, resolve_kind, short_names
from loopwright.config.tree import Problem
from loopwright.interfaces.configured.config import CALLBACK, INITIALIZER
from loopwright.interfaces.configured.experiment import MODEL, OPTIMIZER, SCHEDULER, Experiment

FILE = """
seed: 0
name: a
model: {kind: mine.Net, width: 16, optimizer: {kind: AdamW, lr: 0.01, no_decay: true}, scheduler: {kind: WarmupCosine}}
datasets: {train: {kind: mine.Points, n: 64}, test: {kind: mine.Points, seed: 1}}
trainer: {kind: mine.CustomTrainer, max_updates: 37, max_batch_size: 4, weight: 0.25, precision: fp32,
          forward_properties: [coordinates], target_properties: [labels],
          callbacks: [{kind: OfflineLoss, dataset_key: test}, {kind: loopwright.callbacks.EarlyStopping, metric: loss}]}
"""
Path_ = tuple[str | int, ...]


def problems(tree: Any) -> list[Problem]:
    Path("run.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    try:
        Experiment.from_config(load_config("run.yaml"))
    except ConfigError as error:
        return list(error.problems)
    return []


def suggested(problem: Problem) -> list[str]:
    found = re.search(r"[dD]id you mean (.*?)\?", problem.message)
    return found[1].split(" or ") if found else []


def at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def keys_of(tree: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, child in items:
        if isinstance(tree, dict):
            yield path, key
        yield from keys_of(child, (*path, key))


def texts_of(tree: Any, path: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    if isinstance(tree, str):
        yield path, tree
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, child in items:
        yield from texts_of(child, (*path, key))


def typos(name: str) -> set[str]:
    return {name[:-1], name[: len(name) // 2 + 1] + "_size"} - {""}


def renamed(tree: Any, path: Path_, old: str, new: str) -> Any:
    tree = copy.deepcopy(tree)
    mapping = at(tree, path)
    items = [(new if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(items)
    return tree


def test_keys_that_are_suggested_are_accepted(project):
    tree, tried = yaml.safe_load(FILE), 0
    assert problems(tree) == []
    for path, key in keys_of(tree):
        for typo in typos(key) - at(tree, path).keys():
            wrong = renamed(tree, path, key, typo)
            where = ".".join(map(str, (*path, typo)))
            for problem in problems(wrong):
                for name in suggested(problem) if problem.key == where else ():
                    if name in at(wrong, path):  # which is there twice then
                        continue
                    again = problems(renamed(wrong, path, typo, name))
                    there = ".".join(map(str, (*path, name)))
                    refused = [
                        p
                        for p in again
                        if p.key == there and re.search("unknown|supplied", p.message)
                    ]
                    assert not refused, f"{where}: {problem.message}\n{refused}"
                    tried += 1
    assert tried > 30


def test_values_that_are_suggested_are_accepted(project):
    tree, tried = yaml.safe_load(FILE), 0
    for path, text in texts_of(tree):
        for typo in typos(text):
            wrong = copy.deepcopy(tree)
            at(wrong, path[:-1])[path[-1]] = typo
            for problem in problems(wrong):
                for name in suggested(problem):
                    module = typo.rpartition(".")[0]
                    at(wrong, path[:-1])[path[-1]] = f"{module}.{name}" if module else name
                    assert problem.key not in [other.key for other in problems(wrong)], (
                        problem.message
                    )
                    tried += 1
    assert tried > 8


@pytest.mark.parametrize("key", ["eval", "evl", "trian"])
def test_a_data_set_that_is_not_in_the_file_is_never_suggested(project, key):
    tree = yaml.safe_load(FILE)
    tree["trainer"]["callbacks"][0]["dataset_key"] = key
    (problem,) = problems(tree)
    assert set(suggested(problem)) <= {"train", "test"}
    del tree["trainer"]["callbacks"][0]["dataset_key"]  # which is "eval" then
    (problem,) = problems(tree)
    assert problem.message.startswith("there is no data set 'eval'")


@pytest.mark.parametrize(
    "place", [MODEL, OPTIMIZER, SCHEDULER, CALLBACK, INITIALIZER], ids=lambda place: place.name
)
def test_every_short_name_that_is_suggested_leads_to_a_kind(place):
    tried = 0
    for name in [
        name for name, path in short_names(place).items() if not path.startswith("torch.nn.")
    ]:
        with pytest.raises(RefusedError) as refused:
            resolve_kind(f"{name}x", place, None)
        for other in suggested(Problem("", None, "", str(refused.value))):
            assert callable(resolve_kind(other, place, None))
            tried += 1
    assert tried or place is MODEL


def test_a_module_without_a_fitting_class_suggests_none_of_another_kind(project):
    tree = yaml.safe_load(FILE)
    tree["model"]["optimizer"]["kind"] = "mine.Nett"
    (problem,) = problems(tree)
    assert problem.message == "the module mine has no Nett; it has no torch.optim.Optimizer."

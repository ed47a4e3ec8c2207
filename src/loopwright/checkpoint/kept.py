"""The models worth keeping: the best few by a metric, each with the metric in its metadata."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.checkpoint.atomic import clean_leftovers, remove_directory
from loopwright.checkpoint.files import Checkpoint, read_checkpoint
from loopwright.checkpoint.policy import Candidate, KeepPolicy
from loopwright.checkpoint.store import checked_path, list_own
from loopwright.checkpoint.tree import Tree
from loopwright.checkpoint.writer import AsyncWriter
from loopwright.errors import CheckpointError

logger = logging.getLogger("loopwright")

METRIC = "metric"  # in the metadata: {"name": ..., "value": ..., "mode": "min" or "max"}


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A kept model and the metric it is kept for."""

    name: str
    path: Path
    value: float
    update: int
    meta: dict[str, Any]


class KeptModels:
    """A directory of the best models; what is kept is read from the directory itself."""

    def __init__(
        self, directory: str | os.PathLike[str], policy: KeepPolicy, *, writer: AsyncWriter | None = None
    ) -> None:
        self.directory = Path(directory)
        self.policy = policy
        self.writer = writer or AsyncWriter()

    def wants(self, name: str, value: float, update: int) -> bool:
        """Whether a model with this metric would be kept; ask before putting its state together."""
        self.writer.wait()
        kept = [_candidate(model) for model in self.models()]
        return self.policy.is_worth_keeping(Candidate(name, value, update), kept)

    def offer(
        self,
        name: str,
        tree: Tree,
        meta: dict[str, Any],
        *,
        value: float,
        wait: bool = False,
    ) -> bool:
        """Save the model if it is among the best, then remove the one it displaces; whether it was."""
        checked_path(self.directory, name)
        if not self.wants(name, value, int(meta.get("update", 0))):
            return False
        self.save(name, tree, meta, value=value, wait=wait)
        return True

    def save(
        self,
        name: str,
        tree: Tree,
        meta: dict[str, Any],
        *,
        value: float,
        wait: bool = False,
        token: str = "",
    ) -> None:
        """Save a model that is known to be `wanted`; in a group that is for rank 0 to say, and for all to do."""
        noted = {**meta, METRIC: {"name": self.policy.metric, "value": float(value), "mode": self.policy.mode}}
        self.writer.save(checked_path(self.directory, name), tree, noted, then=self._prune, token=token)
        if wait:
            self.writer.wait()

    def models(self) -> list[KeptModel]:
        """What is kept, best first."""
        models = {}
        for entry in list_own(self.directory):
            value = _metric(entry.meta, self.policy.metric)
            if entry.problem is None and value is not None:
                update = int(entry.meta.get("update", 0))
                models[entry.name] = KeptModel(entry.name, entry.path, value, update, entry.meta)
        return [models[candidate.name] for candidate in self.policy.ranked(map(_candidate, models.values()))]

    def best(self) -> Checkpoint | None:
        """The best model that verifies; damaged ones are named in the log and passed over."""
        self.writer.wait()
        for model in self.models():
            try:
                return read_checkpoint(model.path)
            except CheckpointError as error:
                logger.warning("Kept model %s is passed over: %s", model.name, error)
        return None

    def clean(self) -> list[str]:
        """Remove what killed processes left half-written; the names of it."""
        return clean_leftovers(self.directory) if self.writer.group.is_main and self.directory.is_dir() else []

    def discard(self, *, after_update: int) -> list[str]:
        """Remove the models of a future that is not taken: those after this update."""
        if not self.writer.group.is_main:
            return []
        doomed = [model for model in self.models() if model.update > after_update]
        for model in doomed:
            remove_directory(model.path)
        return [model.name for model in doomed]

    def _prune(self) -> None:
        for model in self.models()[self.policy.keep :]:
            remove_directory(model.path)


def metric_label(metric: str) -> str:
    """A metric as part of a kept model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", metric)


def _candidate(model: KeptModel) -> Candidate:
    return Candidate(model.name, model.value, model.update)


def _metric(meta: dict[str, Any], name: str) -> float | None:
    """The value of the metric that a model was kept for, None where it was kept for another."""
    noted = meta.get(METRIC)
    if not isinstance(noted, dict) or noted.get("name") != name:
        return None
    value = noted.get("value")
    return float(value) if isinstance(value, int | float) else None

"""The models worth keeping: the best few by a metric, each with the metric in its metadata."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .atomic import clean_leftovers
from .format import Checkpoint, read_checkpoint
from .manifest import UPDATE_NAME
from .policy import Candidate, KeepPolicy
from .store import checked_path, list_own, remove_all
from .tree import Tree
from .writer import AsyncWriter

logger = logging.getLogger("loopwright")

METRIC = "metric"  # in the metadata: {"name": ..., "value": ..., "mode": "min" or "max"}


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A kept model and the metric it is kept for."""

    name: str
    path: Path
    value: float
    update: int
    meta: Mapping[str, Any]


class KeptModels:
    """A directory of the best models by a metric; which models are kept is read from the directory
    itself.

    A run that is killed goes on from the newest of its `resume_points`, where models of later
    updates do not count: the best models at that update stay until there is a newer resume point.
    So do the best models at a resume point that is still being written.

    Args:
        directory: Where the kept models are.
        policy: The metric, its direction, and the number of models to keep.
        writer: What writes them behind the training; by default one of its own.
        resume_points: The directory of the run's resume points, if it has any.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from torch import nn
        >>> from loopwright.checkpoint import KeepPolicy, KeptModels
        >>> with TemporaryDirectory() as folder:
        ...     kept = KeptModels(folder, KeepPolicy("eval_loss"))
        ...     for update, loss in enumerate([0.5, 0.3, 0.4], start=1):
        ...         tree = {"models": {"model": nn.Linear(2, 1).state_dict()}}
        ...         kept.offer(f"update-{update}", tree, {"update": update}, value=loss, wait=True)
        ...     [(model.name, model.value) for model in kept.models()]
        True
        True
        False
        [('update-2', 0.3)]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        policy: KeepPolicy,
        *,
        writer: AsyncWriter | None = None,
        resume_points: str | os.PathLike[str] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.policy = policy
        self.writer = writer or AsyncWriter()
        self.resume_points = None if resume_points is None else Path(resume_points)
        self._held: Candidate | None = None
        # the updates of resume points that may still be on their way to the disk
        self._unwritten: tuple[int, ...] = ()
        # what was there when the directory was last changed
        self._listed: tuple[int, list[KeptModel]] | None = None

    def wants(self, name: str, value: float, update: int) -> bool:
        """Whether a model with this metric would be kept; ask before putting its state together."""
        self.writer.wait()
        # the directory is read again only if something was written to it or removed from it
        changed = self.directory.stat().st_mtime_ns if self.directory.is_dir() else 0
        if self._listed is None or self._listed[0] != changed:
            self._listed = (changed, self.models())
        held = () if self._held is None else (self._held,)
        return self.policy.is_worth_keeping(
            Candidate(name, value, update), (*self._listed[1], *held)
        )

    def offer(
        self,
        name: str,
        tree: Tree,
        meta: dict[str, Any],
        *,
        value: float,
        wait: bool = False,
    ) -> bool:
        """Save the model if it is among the best, then remove the one it displaces; whether it
        was."""
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
        """Save a model that is known to be `wanted`; in a group that is for rank 0 to say, and for
        all to do."""
        self.hold(name, tree, meta, value=value, token=token)
        self.start()
        if wait:
            self.writer.wait()

    def hold(
        self, name: str, tree: Tree, meta: dict[str, Any], *, value: float, token: str = ""
    ) -> None:
        """Take a copy of a model that is known to be wanted, which `start` writes.

        Where one is kept, a better one that comes before that takes its place; of several, an
        earlier one is written.
        """
        if self.policy.keep > 1:
            self.start()
        noted = {
            **meta,
            METRIC: {"name": self.policy.metric, "value": float(value), "mode": self.policy.mode},
        }
        self.writer.hold(
            checked_path(self.directory, name), tree, noted, then=self.prune, token=token
        )
        self._held = Candidate(name, float(value), int(meta.get("update", 0)))

    @property
    def is_holding(self) -> bool:
        """Whether there is a model that nothing has been written of."""
        return self._held is not None

    def start(self) -> None:
        """Start writing the model that is held, if there is one."""
        self._held = None
        self._listed = None
        self.writer.start()

    def await_resume_point(self, update: int) -> None:
        """Keep the best models at this update until a resume point of it, or a later one, is on
        disk."""
        saved = self._saved_update()
        self._unwritten = (*(other for other in self._unwritten if other > saved), update)

    def models(self) -> list[KeptModel]:
        """What is kept, best first."""
        models = []
        for entry in list_own(self.directory):
            name, value = entry.metric or ("", 0.0)
            if entry.is_sound and entry.metric is not None and name == self.policy.metric:
                update = int(entry.meta.get("update", 0))
                model = KeptModel(entry.name, entry.path, float(value), update, entry.meta)
                models.append(model)
        return self.policy.ranked(models)

    def best(self) -> Checkpoint | None:
        """The best model that verifies; damaged ones are named in the log and passed over."""
        self.writer.wait()
        for model in self.models():
            try:
                return read_checkpoint(model.path)
            except CheckpointError as error:
                logger.warning("Kept model %s is skipped: %s", model.name, error)
        return None

    def clean(self) -> list[str]:
        """Remove what killed processes left half-written; the names of it."""
        is_due = self.writer.group.is_main and self.directory.is_dir()
        return clean_leftovers(self.directory) if is_due else []

    def discard(self, *, after_update: int) -> list[str]:
        """Remove the models of a future that is not taken: those after this update."""
        if not self.writer.group.is_main:
            return []
        self._listed = None
        self._unwritten = tuple(update for update in self._unwritten if update <= after_update)
        return remove_all(model.path for model in self.models() if model.update > after_update)

    def prune(self) -> None:
        """Remove all but the best few, and the best few at the newest resume point and at those
        still being written."""
        if not self.writer.group.is_main:
            return
        models = self.models()
        saved = self._saved_update()
        needed = models[: self.policy.keep]
        for update in (saved, *(update for update in self._unwritten if update > saved)):
            needed += [model for model in models if model.update <= update][: self.policy.keep]
        self._listed = None
        remove_all(model.path for model in models if model not in needed)

    def _saved_update(self) -> float:
        """The update of the newest resume point; where nothing is known of resume points,
        everything is saved."""
        if self.resume_points is None:
            return inf
        names = [
            path.name
            for path in self.resume_points.glob("update-*")
            if UPDATE_NAME.fullmatch(path.name)
        ]
        return max((int(name.removeprefix("update-")) for name in names), default=0)


def metric_label(metric: str) -> str:
    """A metric as part of a kept model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", metric)

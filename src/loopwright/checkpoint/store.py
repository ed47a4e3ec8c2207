"""The checkpoints of a run: its resume points, of which the last few are kept, and its best models
by a metric."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, check_number
from ..metrics.history import History
from .atomic import clean_leftovers, remove_directory
from .format import Checkpoint, read_checkpoint
from .history_parts import SharedHistory
from .inspect import CheckpointInfo, look_into
from .manifest import UPDATE_NAME, VersionError, foreign_names, verify_checkpoint
from .policy import Candidate, FiniteCheck, KeepPolicy
from .tensors import Tree
from .writer import AsyncWriter

logger = logging.getLogger("loopwright")

METRIC = "metric"  # in the metadata: {"name": ..., "value": ..., "mode": "min" or "max"}


def update_name(update: int) -> str:
    """The name of the checkpoint taken at an update; names sort as the updates do.

    Example:
        >>> from loopwright.checkpoint import update_name
        >>> update_name(120)
        'update-00000120'
    """
    return f"update-{update:08d}"


class CheckpointStore:
    """A directory of checkpoints: saves to it, keeps the last few, and finds the newest that
    verifies.

    In a group (that of the writer) every process has a store and saves to it; only that of rank 0
    removes anything.

    Args:
        directory: Where the checkpoints are; it is made when the first is saved.
        keep: The number of checkpoints to keep.
        writer: What writes them behind the training; by default one of its own.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import CheckpointStore, update_name
        >>> with TemporaryDirectory() as folder:
        ...     store = CheckpointStore(folder, keep=2)
        ...     for update in (10, 20, 30):
        ...         store.save(update_name(update), {"update": update}, {"update": update})
        ...     store.writer.wait()
        ...     [entry.name for entry in store.entries()], store.newest().tree
        (['update-00000020', 'update-00000030'], {'update': 30})
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 2, *, writer: AsyncWriter | None = None
    ) -> None:
        check_number("CheckpointStore(keep", keep, least=1)
        self.directory = Path(directory)
        self.keep = keep
        self.writer = writer or AsyncWriter()
        self._history = SharedHistory(keep)
        self._passed_over: list[Path] = []

    def save(
        self,
        name: str,
        tree: Tree,
        meta: dict[str, Any] | None = None,
        *,
        wait: bool = False,
        token: str = "",
        history: History | None = None,
        after: Sequence[AsyncWriter] = (),
    ) -> None:
        """Save the state as it is now; the writing goes on behind unless `wait`.

        In a group all processes save the same `name` under the same `token` (see `new_token`).
        Waiting is for what this process writes: in that of rank 0 for the whole checkpoint, in the
        others for their part. A `history` that is not in the tree is saved with it, in files that
        it shares with earlier checkpoints of this store. Whatever the writers `after` are writing
        is on disk before this checkpoint is complete.
        """
        path = self.directory / name
        # before the history is looked at, of which a failed write has saved nothing
        self.writer.wait()
        plan = None
        if history is not None and self.writer.group.is_main:
            plan = self._history.plan(history, path)
            tree = {**tree, "history": plan.note}

        def settle() -> None:
            if plan is not None:
                self._history.settle(plan)
            self._prune(committed=name)

        parts = () if plan is None else plan.parts
        self.writer.hold(path, tree, meta, then=settle, token=token, parts=parts, after=after)
        self.writer.start()
        if wait:
            self.writer.wait()

    def entries(self) -> list[CheckpointInfo]:
        """The checkpoints that look complete, oldest first; sizes are compared, hashes are not.

        A user's own copies in the directory are not among them, here and in what follows.
        """
        return [entry for entry in list_own(self.directory) if entry.is_sound]

    def newest(self, *, lazy: bool = False, check: FiniteCheck | None = None) -> Checkpoint | None:
        """The newest checkpoint that verifies and is finite; others are named in the log and passed
        over.

        One that a newer version wrote is not damaged: that is an error. In a group, let one process
        find it and the others read its `path`, so that all take the same.
        """
        _clean(self.directory, self.writer)
        self._passed_over = []
        found = look_into(self.directory)
        # one whose manifest cannot be read is tried first, to be named
        for path in [info.path for info in reversed(found) if not info.is_copy]:
            try:
                checkpoint = read_checkpoint(path, lazy=lazy)
                problem = None if check is None else check.problem(checkpoint.tree)
                if problem is None:
                    return checkpoint
            except VersionError:
                raise
            except CheckpointError as error:
                problem = str(error)
            logger.warning("Checkpoint %s is skipped: %s", path.name, problem)
            self._passed_over.append(path)
        for path in sorted(info.path for info in found if info.is_copy):
            logger.warning(
                "Checkpoint %s is not resumed automatically, because it was written under another "
                "name.",
                path,
            )
        return None

    def discard_damaged(self) -> list[str]:
        """Remove the resume points that `newest` passed over, now that a sound one has been taken;
        the names."""
        return remove_all(
            path
            for path in self._passed_over
            if UPDATE_NAME.fullmatch(path.name)
            and path.is_dir()
            and not path.is_symlink()
            and not foreign_names(path)
        )

    def prune(self) -> list[str]:
        """Remove all but the last `keep`, once the newest of them is known to be sound; the names
        removed."""
        entries = self.entries()
        if len(entries) <= self.keep or not self.writer.group.is_main:
            return []
        for entry in reversed(entries):
            if not verify_checkpoint(entry.path):
                return self._prune(committed=entry.name)
        return []

    def discard(self, *, after_update: int) -> list[str]:
        """Remove the checkpoints of a future that is not taken: those after this update."""
        if not self.writer.group.is_main:
            return []
        entries = list_own(self.directory)
        return remove_all(entry.path for entry in entries if entry.order[0] > after_update)

    def _prune(self, *, committed: str) -> list[str]:
        """Remove what is older than a sound checkpoint and no longer needed beside it, damaged ones
        too."""
        entries = list_own(self.directory)
        position = next((i for i, entry in enumerate(entries) if entry.name == committed), 0)
        sound = [entry for entry in entries[:position] if entry.is_sound]
        spared = sound[max(len(sound) - self.keep + 1, 0) :]
        return remove_all(entry.path for entry in entries[:position] if entry not in spared)


@dataclass(frozen=True)
class KeptModel(Candidate):
    """A kept model and the metric it is kept for."""

    path: Path
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
        ...         name = f"update-{update}"
        ...         if kept.wants(name, loss, update):
        ...             tree = {"models": {"model": nn.Linear(2, 1).state_dict()}}
        ...             kept.hold(name, tree, {"update": update}, value=loss)
        ...             kept.start()
        ...     [(model.name, model.value) for model in kept.models()]
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

    def wants(self, name: str, value: float, update: int) -> bool:
        """Whether a model with this metric would be kept; ask before putting its state together."""
        self.writer.wait()
        kept: list[Candidate] = [*self.models()]
        if self._held is not None:
            kept.append(self._held)
        return self.policy.is_worth_keeping(Candidate(name, value, update), kept)

    def hold(
        self, name: str, tree: Tree, meta: dict[str, Any], *, value: float, token: str = ""
    ) -> None:
        """Take a copy of a model that is known to be wanted, which `start` writes.

        Where one is kept, a better one that comes before that takes its place; of several, an
        earlier one is written.
        """
        if self.policy.keep > 1:
            self.start()
        policy = self.policy
        metric = {"name": policy.metric, "value": float(value), "mode": policy.mode}
        self.writer.hold(
            self.directory / name, tree, {**meta, METRIC: metric}, then=self.prune, token=token
        )
        self._held = Candidate(name, float(value), int(meta.get("update", 0)))

    @property
    def is_holding(self) -> bool:
        """Whether there is a model that nothing has been written of."""
        return self._held is not None

    def start(self) -> None:
        """Start writing the model that is held, if there is one."""
        self._held = None
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
                models.append(KeptModel(entry.name, float(value), update, entry.path, entry.meta))
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

    def discard(self, *, after_update: int) -> list[str]:
        """Remove the models of a future that is not taken, those after this update, and what killed
        processes left half-written."""
        if not self.writer.group.is_main:
            return []
        _clean(self.directory, self.writer)
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
        remove_all(model.path for model in models if model not in needed)

    def _saved_update(self) -> float:
        """The update of the newest resume point; where nothing is known of resume points,
        everything is saved."""
        if self.resume_points is None:
            return inf
        names = [path.name for path in self.resume_points.glob("update-*")]
        updates = [name.removeprefix("update-") for name in names if UPDATE_NAME.fullmatch(name)]
        return max(map(int, updates), default=0)


def remove_all(doomed: Iterable[Path]) -> list[str]:
    """Remove checkpoints; their names."""
    paths = list(doomed)
    for path in paths:
        remove_directory(path)
    return [path.name for path in paths]


def list_own(directory: Path) -> list[CheckpointInfo]:
    """The checkpoints that stand where they were written, oldest first: all that may be removed."""
    return [info for info in look_into(directory) if info.may_be_removed]


def _clean(directory: Path, writer: AsyncWriter) -> None:
    """Remove what killed processes left half-written."""
    if writer.group.is_main and directory.is_dir():
        clean_leftovers(directory)


def metric_label(metric: str) -> str:
    """A metric as part of a kept model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", metric)

"""The resume points of a run: the last few checkpoints in a directory, and the newest that can be
trusted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, check_number
from ..metrics.history import History
from .atomic import clean_leftovers, remove_directory
from .format import Checkpoint, read_checkpoint
from .history_parts import SharedHistory
from .inspect import CheckpointInfo, look_into
from .manifest import FILE_NAME, UPDATE_NAME, VersionError, foreign_names, verify_checkpoint
from .policy import FiniteCheck
from .tree import Tree
from .writer import AsyncWriter

logger = logging.getLogger("loopwright")


Entry = CheckpointInfo  # its name in earlier versions


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
        ...     store.wait()
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
        path = checked_path(self.directory, name)
        # before the history is looked at, of which a failed write has saved nothing
        self.writer.wait()
        plan = (
            None
            if history is None or not self.writer.group.is_main
            else self._history.plan(history, path)
        )

        def settle() -> None:
            if plan is not None:
                self._history.settle(plan)
            self._prune(committed=name)

        if plan is not None:
            tree = {**tree, "history": plan.note}
        parts = () if plan is None else plan.parts
        self.writer.save(path, tree, meta, then=settle, token=token, parts=parts, after=after)
        if wait:
            self.writer.wait()

    def check(self) -> None:
        """Raise the error of a save that failed behind the training."""
        self.writer.check()

    def wait(self) -> None:
        """Return when everything saved is on disk, or raise what went wrong."""
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
        self.clean()
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

    def clean(self) -> list[str]:
        """Remove what killed processes left half-written; the names of it."""
        is_due = self.writer.group.is_main and self.directory.is_dir()
        return clean_leftovers(self.directory) if is_due else []

    def prune(self) -> list[str]:
        """Remove all but the last `keep`, once the newest of them is known to be sound; the names
        removed."""
        entries = self.entries()
        if len(entries) <= self.keep or not self.writer.group.is_main:
            return []
        sound = next(
            (entry for entry in reversed(entries) if not verify_checkpoint(entry.path)), None
        )
        return [] if sound is None else self._prune(committed=sound.name)

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


def remove_all(doomed: Iterable[Path]) -> list[str]:
    """Remove checkpoints; their names."""
    paths = list(doomed)
    for path in paths:
        remove_directory(path)
    return [path.name for path in paths]


def checked_path(directory: Path, name: str) -> Path:
    """The place of a checkpoint, after refusing a name that is not one plain component."""
    if not FILE_NAME.fullmatch(name):
        raise CheckpointError(
            "checkpoint-name",
            f"{name!r} cannot be the name of a checkpoint: use letters, digits, '.', '_' and '-'.",
        )
    return directory / name


def list_own(directory: Path) -> list[CheckpointInfo]:
    """The checkpoints that stand where they were written, oldest first: all that may be removed."""
    return [info for info in look_into(directory) if info.may_be_removed]

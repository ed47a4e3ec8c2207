"""Saving behind the training: the caller pays for a snapshot, one thread writes, hashes and commits it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loopwright.checkpoint.files import write_checkpoint
from loopwright.checkpoint.gathering import check_token
from loopwright.checkpoint.history_parts import Part
from loopwright.checkpoint.pieces import SINGLE, Group
from loopwright.checkpoint.snapshots import SnapshotBuffers, snapshot
from loopwright.checkpoint.tree import Tree
from loopwright.errors import CheckpointError, ConfigurationError

logger = logging.getLogger("loopwright")

OnError = Literal["raise", "warn"]


@dataclass(eq=False, slots=True)
class Write:
    """One checkpoint to be written, behind the training."""

    path: Path
    state: Tree
    meta: dict[str, Any]
    then: Callable[[], object] | None
    token: str
    parts: Sequence[Part] = ()
    after: list[Write] = field(default_factory=list)  # those that have to be on disk before it
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def run(self, group: Group) -> None:
        for other in self.after:
            other.finish()
        self.after = []
        write_checkpoint(
            self.path, self.state, self.meta, group=group, token=self.token, stop=self.stop, parts=self.parts
        )
        if self.then is not None and group.is_main:
            self.then()

    def finish(self) -> None:
        """Return when it is on disk; an error, where it is not and that is no mere warning."""
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise CheckpointError(f"{self.path} has to be saved before, and was not: {self.error}") from self.error


class AsyncWriter:
    """Writes one checkpoint at a time in the background.

    Its memory is one copy of the state. The thread is not a daemon: leaving the program waits for it. In a `group`
    each process has a writer, and copies and writes only its part of what is spread over them; the rest is rank 0's.
    """

    def __init__(self, on_error: OnError = "raise", *, group: Group = SINGLE) -> None:
        if on_error not in ("raise", "warn"):
            raise ConfigurationError(f"on_error is {on_error!r}; it may be 'raise' or 'warn'.")
        self.on_error = on_error
        self.group = group
        self._buffers = SnapshotBuffers(group)
        self._held: Write | None = None
        self._current: Write | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        path: str | os.PathLike[str],
        tree: Tree,
        meta: dict[str, Any] | None = None,
        *,
        then: Callable[[], object] | None = None,
        token: str = "",
        parts: Sequence[Part] = (),
        after: Sequence[AsyncWriter] = (),
    ) -> None:
        """Take a snapshot and start writing it; `then` is called on the thread once it is committed.

        A write still going on is waited for first, since the snapshot uses its memory. All processes of a group save
        the same state under the same `token`; `then` is for the one that commits, that of rank 0. What the writers
        `after` have begun to write is on disk before this is, or this fails; what they hold is not waited for.
        """
        self.hold(path, tree, meta, then=then, token=token, parts=parts)
        assert self._held is not None
        self._held.after = [writer._current for writer in after if writer._current is not None]
        self.start()

    def hold(
        self,
        path: str | os.PathLike[str],
        tree: Tree,
        meta: dict[str, Any] | None = None,
        *,
        then: Callable[[], object] | None = None,
        token: str = "",
        parts: Sequence[Part] = (),
    ) -> None:
        """Take a snapshot that `start` will write; one that was held before is dropped."""
        check_token(self.group, token)
        self.wait()
        self._held = None
        self._held = Write(Path(path), self._buffers.take(tree), snapshot(meta or {}), then, token, parts)

    @property
    def is_holding(self) -> bool:
        """Whether there is a snapshot that nothing has been written of."""
        return self._held is not None

    def start(self) -> None:
        """Start writing what is held, if anything is."""
        if self._held is not None:
            self._current, self._held = self._held, None
            self._run(self._write, "loopwright-checkpoint", self._current)
            self._current.thread = self._thread

    def prepare(self, tree: Tree) -> None:
        """Have the memory for such a state ready before the first save, which is then as quick as the later ones."""
        self.wait()
        self._run(self._buffers.reserve(tree), "loopwright-memory")

    def check(self) -> None:
        """Raise the error of a write that failed since the last call; nearly free otherwise."""
        if self._error is not None:
            self._raise()

    def wait(self) -> None:
        """Return when nothing is being written by this process, or raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = self._current = None
        self.check()

    def abandon(self) -> None:
        """Stop waiting for the parts of other processes, which are known to be gone: that checkpoint fails at once."""
        if self._current is not None:
            self._current.stop.set()

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written now."""
        return self._thread is not None and self._thread.is_alive()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, action: Callable[..., object], name: str, *arguments: Any) -> None:
        self._thread = threading.Thread(target=action, args=arguments, name=name)
        self._thread.start()

    def _write(self, write: Write) -> None:
        try:
            write.run(self.group)
        except BaseException as error:
            if self.on_error == "raise" and threading.main_thread().is_alive():
                self._error = write.error = error
            else:  # nobody is left to raise it to
                logger.warning("Checkpoint %s was not saved: %s", write.path, error)

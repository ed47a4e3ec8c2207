"""Saving behind the training: the caller pays for a snapshot, one thread writes, hashes and commits it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from loopwright.checkpoint.files import write_checkpoint
from loopwright.checkpoint.gathering import check_token
from loopwright.checkpoint.pieces import SINGLE, Group
from loopwright.checkpoint.snapshots import SnapshotBuffers, snapshot
from loopwright.checkpoint.tree import Tree
from loopwright.errors import ConfigurationError

logger = logging.getLogger("loopwright")

OnError = Literal["raise", "warn"]


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
        self._stop = threading.Event()
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
    ) -> None:
        """Take a snapshot and start writing it; `then` is called on the thread once it is committed.

        A write still going on is waited for first, since the snapshot uses its memory. All processes of a group save
        the same state under the same `token`; `then` is for the one that commits, that of rank 0.
        """
        check_token(self.group, token)
        self.wait()
        state, noted = self._buffers.take(tree), snapshot(meta or {})
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._write, args=(Path(path), state, noted, then, token), name="loopwright-checkpoint"
        )
        self._thread.start()

    def prepare(self, tree: Tree) -> None:
        """Have the memory for such a state ready before the first save, which is then as quick as the later ones."""
        self.wait()
        self._thread = threading.Thread(target=self._buffers.reserve(tree), name="loopwright-memory")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a write that failed since the last call; nearly free otherwise."""
        if self._error is not None:
            self._raise()

    def wait(self) -> None:
        """Return when nothing is being written by this process, or raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def abandon(self) -> None:
        """Stop waiting for the parts of other processes, which are known to be gone: that checkpoint fails at once."""
        self._stop.set()

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written now."""
        return self._thread is not None and self._thread.is_alive()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(
        self, path: Path, state: Tree, meta: dict[str, Any], then: Callable[[], object] | None, token: str
    ) -> None:
        try:
            write_checkpoint(path, state, meta, group=self.group, token=token, stop=self._stop)
            if then is not None and self.group.is_main:
                then()
        except BaseException as error:
            if self.on_error == "raise" and threading.main_thread().is_alive():
                self._error = error
            else:  # nobody is left to raise it to
                logger.warning("Checkpoint %s was not saved: %s", path, error)

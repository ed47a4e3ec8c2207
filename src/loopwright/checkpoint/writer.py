"""Saving behind the training: the caller pays for a snapshot, one thread writes, hashes and commits
it."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .._torch_compat import foreach_copy_
from ..errors import CheckpointError, ConfigurationError
from .encoding import encode_with_shards
from .format import write_checkpoint
from .history_parts import HistoryPart
from .policy import FiniteCheck
from .sharded import SINGLE, Group, TensorShard, is_dtensor, shard_of
from .tensors import ATOMS, TensorKey, Tree, map_tree, plain_tensor, refusal, tensor_key

SHARED = (np.generic, PurePath, torch.dtype, torch.device)  # which nothing changes in place
BufferKey: TypeAlias = tuple[tuple[int, ...], torch.dtype, bool]


class SnapshotBuffers:
    """Memory for one snapshot; taking the next overwrites the one before.

    It holds one copy of the state, pinned where the state is on a CUDA device.

    Args:
        group: Copy only the tensors and shards that this process of the group writes to a
            checkpoint; without a group, all that this process has, of a sharded tensor its own
            shard.

    Example:
        >>> import torch
        >>> from loopwright.checkpoint import SnapshotBuffers
        >>> buffers, weight = SnapshotBuffers(), torch.ones(2)
        >>> copied = buffers.take({"weight": weight})
        >>> _ = weight.zero_()
        >>> copied
        {'weight': tensor([1., 1.])}
    """

    def __init__(self, group: Group | None = None) -> None:
        self._group = group
        self._buffers: dict[BufferKey, deque[Tensor]] = {}

    def take(self, tree: Tree) -> Tree:
        """The tree as it is now; what happens to the original afterwards does not show in it."""
        copier, copied = self._walk(tree)
        copier.finish()
        self._buffers = copier.used
        return copied

    def reserve(self, tree: Tree) -> Callable[[], None]:
        """Set memory aside for trees of this form; calling the result makes the system really
        provide it.

        The first snapshot costs several times as much as later ones without, since memory is given
        page by page when first written. That part may be done on another thread.
        """
        copier, _ = self._walk(tree)
        self._buffers = copier.used
        return copier.touch

    def _walk(self, tree: Tree) -> tuple[_Copier, Tree]:
        copier = _Copier(self._buffers, self._group)
        try:
            return copier, map_tree(copier.copy, tree)
        except (CheckpointError, RecursionError):
            encode_with_shards(tree)  # raises the error that names the place
            raise


def snapshot(tree: Tree, buffers: SnapshotBuffers | None = None) -> Tree:
    """Copy a tree to host memory; what happens to the original afterwards does not show in the
    copy.

    Args:
        tree: A state, as `write_checkpoint` takes it.
        buffers: Memory to use again, whose last snapshot is overwritten.

    Example:
        >>> import torch
        >>> from loopwright.checkpoint import snapshot
        >>> weight = torch.ones(2)
        >>> copied = snapshot({"weight": weight})
        >>> _ = weight.zero_()
        >>> copied
        {'weight': tensor([1., 1.])}
    """
    return (buffers or SnapshotBuffers()).take(tree)


class _Copier:
    def __init__(self, free: dict[BufferKey, deque[Tensor]], group: Group | None) -> None:
        self.is_written = group is None or group.is_main
        self.is_shared = group is not None
        self.free = {key: deque(buffers) for key, buffers in free.items()}
        self.used: dict[BufferKey, deque[Tensor]] = {}
        self.shared: dict[TensorKey, Tensor] = {}
        self.targets: list[Tensor] = []
        self.sources: list[Tensor] = []

    def copy(self, value: Tree) -> Tree:
        if type(value) in ATOMS or isinstance(value, SHARED):
            return value
        if is_dtensor(value):
            return self.copy_shard(shard_of(value, "snapshot"))
        if type(value) is TensorShard:
            return self.copy_shard(value)
        if isinstance(value, Tensor):
            return self.copy_tensor(value)
        if type(value) is np.ndarray:
            return value.copy()
        raise refusal("snapshot", value, "return plain values")

    def touch(self) -> None:
        """Write to every buffer, so that its memory is really there."""
        for target in self.targets:
            target.zero_()

    def finish(self) -> None:
        """Copy all tensors at once, and wait for devices that copy in the background."""
        if not self.targets:
            return
        with torch.no_grad():
            foreach_copy_(self.targets, self.sources, non_blocking=True)
        for device in {source.device for source in self.sources if source.device.type != "cpu"}:
            torch.accelerator.synchronize(device)

    def copy_tensor(self, value: Tensor) -> Tensor:
        source = plain_tensor(value, "snapshot")
        return self.copy_values(source) if self.is_written else torch.empty(0, dtype=source.dtype)

    def copy_shard(self, shard: TensorShard) -> TensorShard:
        source = plain_tensor(shard.local, "snapshot")
        if self.is_shared and not shard.is_written:
            return replace(
                shard, local=source.new_empty((0,) * source.dim(), device="cpu"), is_primary=False
            )
        return replace(shard, local=self.copy_values(source))

    def copy_values(self, source: Tensor) -> Tensor:
        key = tensor_key(source)
        if key is not None and key in self.shared:
            return self.shared[key]
        target = self.buffer(source)
        if key is not None:
            self.shared[key] = target
            self.targets.append(target)
            self.sources.append(source)
        return target

    def buffer(self, source: Tensor) -> Tensor:
        pinned = source.is_cuda
        key = (tuple(source.shape), source.dtype, pinned)
        free = self.free.get(key)
        target = (
            free.popleft() if free else torch.empty(key[0], dtype=source.dtype, pin_memory=pinned)
        )
        self.used.setdefault(key, deque()).append(target)
        return target


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
    parts: Sequence[HistoryPart]
    after: list[Write]  # the writes that have to be on disk before it
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def run(self, group: Group) -> None:
        write_checkpoint(
            *(self.path, self.state, self.meta),
            group=group,
            token=self.token,
            stop=self.stop,
            parts=self.parts,
            ready=self._finish_earlier,
        )
        self._finish_earlier()  # on a rank other than 0, which writes only its part
        if self.then is not None and group.is_main:
            self.then()

    def _finish_earlier(self) -> None:
        for other in self.after:
            other.finish()
        self.after = []

    def finish(self) -> None:
        """Return when it is on disk; an error, where it is not and that is no mere warning."""
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise CheckpointError(
                "earlier-save-failed", f"{self.path} must be saved first, but was not: {self.error}"
            ) from self.error


class AsyncWriter:
    """Writes one checkpoint at a time in the background.

    Its memory is one copy of the state. The thread is not a daemon: leaving the program waits for
    it. In a `group` each process has a writer, which copies and writes only its shards of sharded
    tensors; the rest is written by rank 0.

    Args:
        on_error: "raise" raises the error of a failed write in the next call; "warn" logs it.
        group: This process and the number of processes that write together.
        check: Says which values are not finite, so that the state is not written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from loopwright.checkpoint import AsyncWriter, read_checkpoint
        >>> weight = torch.ones(2)
        >>> with TemporaryDirectory() as folder:
        ...     writer = AsyncWriter()
        ...     writer.hold(f"{folder}/first", {"weight": weight})
        ...     writer.start()
        ...     _ = weight.zero_()  # training goes on: the checkpoint has the state of the call
        ...     writer.wait()
        ...     read_checkpoint(f"{folder}/first").tree
        {'weight': tensor([1., 1.])}
    """

    def __init__(
        self,
        on_error: OnError = "raise",
        *,
        group: Group = SINGLE,
        check: FiniteCheck | None = None,
    ) -> None:
        if on_error not in ("raise", "warn"):
            raise ConfigurationError(
                "unknown-on-error", f"on_error={on_error!r}: use 'raise' or 'warn'."
            )
        self.on_error = on_error
        self.group = group
        self._finite = check
        self._buffers = SnapshotBuffers(group)
        self._held: Write | None = None
        self._current: Write | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def hold(
        self,
        path: str | os.PathLike[str],
        tree: Tree,
        meta: dict[str, Any] | None = None,
        *,
        then: Callable[[], object] | None = None,
        token: str = "",
        parts: Sequence[HistoryPart] = (),
        after: Sequence[AsyncWriter] = (),
    ) -> None:
        """Take a snapshot that `start` will write; one that was held before is dropped.

        A write still going on is waited for first, since the snapshot uses its memory. All
        processes of a group save the same state under the same `token`. `then` is called on the
        thread of the one that commits, that of rank 0. What the writers `after` have begun to write
        is on disk before this is, or this fails; what they hold is not waited for.
        """
        self.wait()
        self._held = None
        state = self._buffers.take(tree)
        earlier = [writer._current for writer in after if writer._current is not None]
        self._held = Write(Path(path), state, snapshot(meta or {}), then, token, parts, earlier)

    def start(self) -> None:
        """Start writing what is held, if anything is."""
        if self._held is not None:
            self._current = self._held
            self._held = None
            self._run(self._write, "loopwright-checkpoint", self._current)
            self._current.thread = self._thread

    def prepare(self, tree: Tree) -> None:
        """Have the memory for such a state ready before the first save, which is then as quick as
        the later ones."""
        self.wait()
        self._run(self._buffers.reserve(tree), "loopwright-memory")

    def check(self) -> None:
        """Raise the error of a write that failed since the last call; nearly free otherwise."""
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def wait(self) -> None:
        """Return when nothing is being written by this process, or raise what went wrong with
        it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._current = None
        self.check()

    def abandon(self) -> None:
        """Stop waiting for the parts of other processes, which are known to be gone: that
        checkpoint fails at once."""
        if self._current is not None:
            self._current.stop.set()

    def _run(self, action: Callable[..., object], name: str, *arguments: Any) -> None:
        self._thread = threading.Thread(target=action, args=arguments, name=name)
        self._thread.start()

    def _write(self, write: Write) -> None:
        try:
            problem = None if self._finite is None else self._finite.problem(write.state)
            if problem is not None:
                raise CheckpointError(
                    "not-finite-state",
                    f"{write.path.name} was not saved, since {problem}, and no run can go on from "
                    "such a state. Checkpoints that were saved before it are unchanged: start "
                    "the program again to continue from the newest, with a lower learning rate.",
                )
            write.run(self.group)
        except BaseException as error:
            if self.on_error == "raise" and threading.main_thread().is_alive():
                self._error = write.error = error
            else:  # the main thread is gone, and with it the next call that would raise
                logger.warning("Checkpoint %s was not saved: %s", write.path, error)

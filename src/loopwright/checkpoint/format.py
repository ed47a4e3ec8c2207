"""One checkpoint, one directory: a manifest, the state as JSON, its tensors, and each model's
weights apart.

```
update-00000120/
  manifest.json       format, metadata, size and hash of every other file; written last
  state.json          the state tree, with references to tensors
  state.safetensors   optimizers, schedulers and all other tensors
  model.safetensors   one per model, under the names of its state dict
  history-1.safetensors   and others: parts of the history, in resume points of a run
  (`history_parts.py`)
```

Where tensors are sharded over several processes, there is beside it, from each of them and of all
together, ```
  shard-0.safetensors   the shards that one process holds, under the paths of the tensors in the
  state pieces.json           which box of which tensor each shard fills
```
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..text import listed
from .atomic import shared_staging, staged_directory, write_bytes
from .encoding import decode, encode_with_shards
from .history_parts import HistoryPart, files_in, read_history
from .layout import HEADER_KEY, SHARDS, parse_json, unreadable
from .manifest import (
    MANIFEST,
    STATE,
    TENSORS,
    Manifest,
    check_directory,
    damaged,
    find_problem,
    manifest_bytes,
    read_manifest,
)
from .migrations import upgrade, versions_in
from .sharded import SINGLE, Group, gather_parts, part_name, write_part
from .tensors import (
    StoredFiles,
    Tree,
    escape,
    read_all,
    stored_shards,
    stored_tensors,
    unescape,
    write_tensors,
)

MODELS = "models"
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was read from a checkpoint: the state tree, what was noted about it, and where it is."""

    meta: dict[str, Any]
    tree: Tree
    path: Path


def write_checkpoint(
    path: str | os.PathLike[str],
    tree: Tree,
    meta: dict[str, Any] | None = None,
    *,
    group: Group = SINGLE,
    token: str = "",
    stop: threading.Event | None = None,
    parts: Sequence[HistoryPart] = (),
    beside: Mapping[str, bytes] | None = None,
    ready: Callable[[], object] | None = None,
) -> None:
    """Write a state tree as a checkpoint directory, which appears complete or not at all.

    A checkpoint that is there already is replaced in one step; anything else is refused and left as
    it is. Where tensors are sharded over the processes of a `group`, all of them call this, with
    trees of one form and one `token`: the process of rank 0 returns when the checkpoint is there,
    or raises ten minutes later or once `stop` is set; the others return when their
    part is written. Otherwise rank 0 writes all of it, and the others nothing.

    Args:
        path: The directory to write.
        tree: Nested dicts, lists and tuples of tensors, arrays and plain values. State dicts of
            models belong under `"models"`, by name: each of them gets a file of its own.
        meta: Numbers and texts to note in the manifest, which a listing shows; `"update"` orders
            checkpoints.
        group: This process and the number of processes that write together.
        token: The name that these processes share, from `new_token`.
        stop: Set it to give up waiting for the parts of other processes.
        parts: Parts of the history, where the tree has a note of them in its place.
        beside: Further files by name, for other programs that read the model.
        ready: Called when all is on disk but the name; it returns when the checkpoint may appear.

    Raises:
        CheckpointError: A value cannot be saved, or the files cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from torch import nn
        >>> from loopwright.checkpoint import read_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"models": {"model": nn.Linear(2, 1).state_dict()}}, {"update": 3})
        ...     read_checkpoint(f"{folder}/first").meta
        {'update': 3}
    """
    # what a link leads to is written, and the link stays
    destination = Path(os.path.realpath(path))
    structure, tensors, shards = encode_with_shards(tree)
    shared = shared_staging(destination, token, group.rank) if shards and group.world > 1 else None
    with _explained(destination, group):
        if not group.is_main:
            if shared is not None:
                shared.mkdir(parents=True, exist_ok=True)
                write_part(shared, group.rank, shards)
            return
        check_directory(path)
        taken = {part_name(rank) for rank in range(group.world)} if shards else set()
        models = _model_files(tree, taken | {part.name for part in parts} | set(beside or ()))
        with staged_directory(destination, shared, ready) as staging:
            state = json.dumps(structure, allow_nan=False).encode()
            files = {STATE: write_bytes(staging / STATE, state)}
            for name, part in _split(tensors, models).items():
                note = None if name == TENSORS else {"format": "pt"}
                files[name] = write_tensors(staging / name, part, note)
            files |= {part.name: part.put_into(staging) for part in parts}
            files |= {
                name: write_bytes(staging / name, content)
                for name, content in (beside or {}).items()
            }
            if shards:
                write_part(staging, group.rank, shards)
                files |= gather_parts(staging, group, shards, stop or threading.Event())
            content = manifest_bytes(
                *(meta or {}, files, models, destination.name),
                versions=versions_in(tree),
                has_history_files=bool(parts),
            )
            write_bytes(staging / MANIFEST, content)
            check_directory(destination)  # once more: writing takes its time


@contextmanager
def _explained(destination: Path, group: Group) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = "Checkpoint" if group.is_main else f"The part of rank {group.rank} of checkpoint"
        raise CheckpointError(
            "checkpoint-not-written",
            f"{what} {destination} could not be written: {error}. Earlier data is unchanged; "
            "check the free disk space and the permissions, then save again.",
        ) from error


def read_checkpoint(
    path: str | os.PathLike[str], *, verify: bool = True, lazy: bool = False
) -> Checkpoint:
    """Read a checkpoint after comparing every file with its hash; nothing in it is executed.

    State that an earlier version of Loopwright wrote is migrated (see `migrations.py`).

    Args:
        path: The directory of the checkpoint.
        verify: Compare the hashes of files, and not only their sizes.
        lazy: Return `StoredTensor` objects instead of tensors, of which every process reads the
            region that it needs.

    Raises:
        CheckpointError: It is damaged, or there is none.
        VersionError: A newer Loopwright wrote it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import read_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"numbers": [1, 2], "rate": 0.1})
        ...     read_checkpoint(f"{folder}/first").tree
        {'numbers': [1, 2], 'rate': 0.1}
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    check_files(directory, manifest, list(manifest.files), deep=verify)
    try:
        structure = parse_json((directory / STATE).read_bytes(), str(directory / STATE))
    except OSError as error:
        raise unreadable(directory / STATE, error) from error
    files = StoredFiles(directory)
    stored = dict(stored_tensors(directory, TENSORS, files))
    for model, file in manifest.models.items():
        for key, tensor in stored_tensors(directory, file, files):
            stored[weight_path(model, key)] = tensor
    if SHARDS in manifest.files:
        stored |= stored_shards(directory, manifest.files, files)
    tensors: Mapping[str, Any] = stored if lazy else read_all(stored)
    tree = decode(structure, tensors)
    if manifest.format > 1 and (names := files_in(tree)):
        if unknown := [name for name in names if name not in manifest.files]:
            raise damaged(directory, f"its state refers to {listed(unknown)}, which is not listed")
        tree["history"] = read_history(directory, names)
    return Checkpoint(manifest.meta, upgrade(tree, manifest.versions, str(directory)), directory)


def check_files(directory: Path, manifest: Manifest, names: list[str], *, deep: bool) -> None:
    """Raise for the first of these files that is not what the manifest says."""
    for name in names:
        if problem := find_problem(directory, name, manifest.files[name], deep=deep):
            raise damaged(directory, problem)


def weight_path(model: str, key: str) -> str:
    """Where an entry of a model's state dict is in the state."""
    return f"{MODELS}/{escape(model)}/{escape(key)}"


def _model_files(tree: Tree, taken: set[str]) -> dict[str, str]:
    """A safe and free file name for each model of the tree."""
    models = tree.get(MODELS) if isinstance(tree, dict) else {}
    names: dict[str, str] = {}
    taken = {TENSORS, *taken}
    for model, state in models.items() if isinstance(models, dict) else ():
        if not isinstance(model, str) or not isinstance(state, dict):
            raise CheckpointError(
                "models-not-by-name",
                f'The state\'s "{MODELS}" holds {model!r}; expected one state dict per name, as in '
                "{name: model.state_dict()}.",
            )
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:LONGEST_NAME].lstrip(".-") or "model"
        numbered = (f"{stem}-{number}.safetensors" for number in count(2))
        free = (n for n in chain([f"{stem}.safetensors"], numbered) if n.lower() not in taken)
        names[model] = next(free)
        taken.add(names[model].lower())
    return names


def _split(tensors: dict[str, Tensor], models: dict[str, str]) -> dict[str, dict[str, Tensor]]:
    """The tensors by file: a model's own entries go to its file, all others to the state's."""
    groups: dict[str, dict[str, Tensor]] = {TENSORS: {}, **{file: {} for file in models.values()}}
    files = {escape(model): file for model, file in models.items()}
    for path, tensor in tensors.items():
        top, _, rest = path.partition("/")
        model, _, key = rest.partition("/")
        is_weight = (
            top == MODELS and model in files and "/" not in key and unescape(key) != HEADER_KEY
        )
        if is_weight:
            groups[files[model]][unescape(key)] = tensor
        else:
            groups[TENSORS][path] = tensor
    return groups

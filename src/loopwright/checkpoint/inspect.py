"""Looking at checkpoints from outside: which there are, whether they are sound, and what they hold.

Nothing here imports torch or loads a tensor, and a damaged checkpoint is a result, not an error.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import CheckpointError
from ..metrics.best import Mode
from .layout import TensorInfo, read_header, unreadable
from .manifest import (
    MANIFEST,
    STATE,
    TENSORS,
    UPDATE_NAME,
    Manifest,
    damaged,
    find_problem,
    find_problems,
    plain_name,
    read_manifest,
    verify_checkpoint,
)

logger = logging.getLogger("loopwright")

Kind = Literal["resume", "kept"]
# the folders of a run directory
RESUME_POINTS = "checkpoints"
KEPT_MODELS = "kept"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint as it is found on disk; `problems` is empty where it can be trusted.

    Sizes are always compared, hashes only if `is_verified`.
    """

    path: Path
    manifest: Manifest | None
    problems: tuple[str, ...]
    is_verified: bool

    @property
    def name(self) -> str:
        return self.path.resolve().name if self.path.name in ("", "..") else self.path.name

    @property
    def kind(self) -> Kind:
        is_kept = self.path.resolve().parent.name == KEPT_MODELS or "metric" in self.meta
        return "kept" if is_kept else "resume"

    @property
    def size(self) -> int:
        """The bytes that the files take, whatever the manifest says."""
        total = 0
        with suppress(OSError):  # what can be seen of it
            for entry in os.scandir(self.path):
                details = entry.stat(follow_symlinks=False)
                total += details.st_size if stat.S_ISREG(details.st_mode) else 0
        return total

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def is_copy(self) -> bool:
        """Whether it was written under another name: a copy, a link, or renamed; it belongs to the
        user."""
        if self.manifest is None:
            return False
        is_renamed = self.manifest.name not in (None, plain_name(self.path.name))
        return is_renamed or self.path.is_symlink()

    @property
    def may_be_removed(self) -> bool:
        """Whether it stands under the name that we gave it; earlier versions did not note names."""
        if self.manifest is None or self.is_copy:
            return False
        return self.manifest.name is not None or UPDATE_NAME.match(self.path.name) is not None

    @property
    def order(self) -> tuple[int | float, str]:
        """What checkpoints are ordered by: the update, then the time."""
        update = self.meta.get("update")
        is_number = isinstance(update, int | float) and update == update
        created = "" if self.manifest is None else self.manifest.created
        return (update if is_number else -1, created)  # type: ignore[return-value]

    @property
    def meta(self) -> Mapping[str, Any]:
        return {} if self.manifest is None else self.manifest.meta

    @property
    def metric(self) -> tuple[str, float] | None:
        """Name and value of the metric that a model was kept for."""
        noted = self._noted_metric
        value = noted.get("value")
        return (str(noted.get("name")), value) if isinstance(value, int | float) else None

    @property
    def mode(self) -> Mode | None:
        """Whether that metric is to be small or large, where the one who kept the model said so."""
        mode = self._noted_metric.get("mode")
        return mode if mode in ("min", "max") else None

    @property
    def _noted_metric(self) -> Mapping[str, Any]:
        noted = self.meta.get("metric")
        return noted if isinstance(noted, dict) else {}

    @property
    def created(self) -> datetime | None:
        if self.manifest is None:
            return None
        with suppress(ValueError):
            moment = datetime.fromisoformat(self.manifest.created)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return None


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """What the files of a checkpoint hold, as their headers say."""

    info: CheckpointInfo
    manifest: Manifest
    tensors: dict[str, list[TensorInfo]] = field(default_factory=dict)  # by file


def list_checkpoints(path: str | os.PathLike[str], *, verify: bool = False) -> list[CheckpointInfo]:
    """List the resume points of a run, then its kept models, each from the oldest update to the
    newest.

    Args:
        path: A run directory, a folder of checkpoints, or one checkpoint.
        verify: Compare the hashes of files, and not only their sizes.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import list_checkpoints, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/second", {}, {"update": 20})
        ...     write_checkpoint(f"{folder}/first", {}, {"update": 10})
        ...     [(info.name, info.is_sound) for info in list_checkpoints(folder, verify=True)]
        [('first', True), ('second', True)]
    """
    found = [_look_at(directory, verify=verify) for directory in _checkpoint_folders(Path(path))]
    # A run that is going on removes checkpoints while we look.
    there = [info for info in found if info.manifest or info.path.is_dir()]
    return sorted(there, key=lambda info: (info.kind == "kept", *_age(info)))


def look_into(directory: Path) -> list[CheckpointInfo]:
    """The checkpoints in one folder, oldest first; those whose manifest cannot be read come last."""
    folders = _folders(directory) if directory.is_dir() else []
    return sorted((_look_at(folder, verify=False) for folder in folders), key=_age)


def _age(info: CheckpointInfo) -> tuple[bool, tuple[int | float, str], str]:
    return info.manifest is None, info.order, info.name


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointContent:
    """Describe the files of one checkpoint, or of the newest of a run; a damaged file is among the
    problems.

    Args:
        path: A checkpoint, or a run directory.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from torch import nn
        >>> from loopwright.checkpoint import describe_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"models": {"model": nn.Linear(2, 1).state_dict()}})
        ...     content = describe_checkpoint(f"{folder}/first")
        >>> [(info.name, info.shape) for info in content.tensors["model.safetensors"]]
        [('bias', (1,)), ('weight', (1, 2))]
    """
    directory = find_checkpoint(path, verify=False)
    manifest = read_manifest(directory)
    problems = []
    tensors = {}
    for name, record in manifest.files.items():
        problem = find_problem(directory, name, record, deep=False)
        if problem is None and name.endswith(".safetensors"):
            try:
                tensors[name] = read_header(directory / name)
            except CheckpointError as error:
                problem = str(error)
        problems += [problem] if problem else []
    info = CheckpointInfo(directory, manifest, tuple(problems), is_verified=False)
    return CheckpointContent(info, manifest, tensors)


def find_checkpoint(path: str | os.PathLike[str], *, verify: bool = True) -> Path:
    """Find the checkpoint at a path, or the newest sound resume point of a run; damaged ones are
    named and passed over.

    Args:
        path: A checkpoint, a run directory, or a folder of checkpoints.
        verify: Compare the hashes of files, and not only their sizes.

    Raises:
        CheckpointError: There is no sound one.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import find_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     for update in (1, 2):
        ...         write_checkpoint(f"{folder}/update-{update}", {}, {"update": update})
        ...     find_checkpoint(folder).name
        'update-2'
    """
    source = Path(path)
    if is_checkpoint(source):
        if verify and (problems := verify_checkpoint(source)):
            raise damaged(source, "; ".join(problems))
        return source
    points = [info for info in list_checkpoints(source) if info.kind == "resume"]
    for info in reversed(points):
        problems = list(info.problems) or (verify_checkpoint(info.path) if verify else [])
        if not problems:
            return info.path
        logger.warning("Checkpoint %s is skipped: %s", info.name, "; ".join(problems))
    raise CheckpointError(
        "no-resume-point",
        f"{source} has no intact resume point: name a checkpoint or a kept model instead.",
    )


def _look_at(directory: Path, *, verify: bool) -> CheckpointInfo:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(directory)
        problems = list(find_problems(directory, manifest, deep=verify))
    except CheckpointError as error:
        problems = [str(error)]
    return CheckpointInfo(directory, manifest, tuple(problems), verify)


def _checkpoint_folders(path: Path) -> list[Path]:
    if is_checkpoint(path):
        return [path]
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise CheckpointError(
            "no-run-or-checkpoint", f"{path} {what}: name a run directory or a checkpoint."
        )
    parts = [path / RESUME_POINTS, path / KEPT_MODELS]
    if (path / "run.json").is_file() or any(part.is_dir() for part in parts):
        return [folder for part in parts if part.is_dir() for folder in _folders(part)]
    if found := [folder for folder in _folders(path) if is_checkpoint(folder)]:
        return found
    raise CheckpointError(
        "no-run-or-checkpoint",
        f"{path} is neither a run directory nor a checkpoint: name a run directory or a checkpoint.",
    )


PUBLISHED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def published_file(directory: Path) -> Path | None:
    """The file with the weights, or with the list of their files, of a folder as Hugging Face's
    models are saved."""
    return next((directory / name for name in PUBLISHED if (directory / name).is_file()), None)


def _folders(directory: Path) -> list[Path]:
    """The folders in a directory; hidden ones are being written, or were when their process was
    killed."""
    try:
        return [
            path
            for path in sorted(directory.iterdir())
            if not path.name.startswith(".") and path.is_dir()
        ]
    except OSError as error:
        raise unreadable(directory, error) from error


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is one checkpoint, sound or not, rather than a run or a folder of
    them."""
    return any(os.path.lexists(path / name) for name in (MANIFEST, STATE, TENSORS))

"""Looking at checkpoints from outside: which there are, whether they are sound, and what they hold.

Nothing here imports torch or loads a tensor, and a damaged checkpoint is a result, not an error.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import CheckpointError
from ..metrics.direction import Mode, direction_of
from .headers import TensorInfo, read_header
from .manifest import MANIFEST, REMEDY, STATE, TENSORS, Manifest, find_problem, read_manifest, verify_checkpoint
from .policy import Candidate, KeepPolicy

logger = logging.getLogger("loopwright")

Kind = Literal["resume", "kept"]
RESUME_POINTS, KEPT_MODELS = "checkpoints", "kept"  # the folders of a run directory


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint as it is found on disk; `problems` is empty where it can be trusted.

    Sizes are always compared, hashes only if `is_verified`.
    """

    kind: Kind
    name: str
    path: Path
    size: int
    manifest: Manifest | None
    problems: tuple[str, ...]
    is_verified: bool

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def meta(self) -> Mapping[str, Any]:
        return {} if self.manifest is None else self.manifest.meta

    @property
    def metric(self) -> tuple[str, float] | None:
        """Name and value of the metric that a model was kept for."""
        noted = self.meta.get("metric")
        if not isinstance(noted, dict) or not isinstance(noted.get("value"), int | float):
            return None
        return str(noted.get("name")), noted["value"]

    @property
    def mode(self) -> Mode | None:
        """Whether that metric is to be small or large, where the one who kept the model said so."""
        noted = self.meta.get("metric")
        mode = noted.get("mode") if isinstance(noted, dict) else None
        return mode if mode in ("min", "max") else None

    @property
    def created(self) -> datetime | None:
        try:
            moment = datetime.fromisoformat("" if self.manifest is None else self.manifest.created)
        except ValueError:
            return None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """What the files of a checkpoint hold, as their headers say."""

    info: CheckpointInfo
    manifest: Manifest
    tensors: dict[str, list[TensorInfo]] = field(default_factory=dict)  # by file


def best_by(metric: str, found: Iterable[CheckpointInfo]) -> CheckpointInfo:
    """The best of the models that were kept by a metric, of which there has to be one.

    Which values are better was noted with the last of them; of one that was kept before that was done, its name says
    it. Where it does not, and there are several, an error asks for the name of one.
    """
    infos = {info.name: (info, info.metric[1]) for info in found if info.metric and info.metric[0] == metric}
    mode = list(infos.values())[-1][0].mode or direction_of(metric)
    if mode is None and len(infos) > 1:
        raise CheckpointError(
            f"Models were kept by {metric!r}, without a note whether smaller or larger values are better: name one "
            f"of {', '.join(infos)}."
        )
    candidates = [Candidate(name, value, int(info.meta.get("update") or 0)) for name, (info, value) in infos.items()]
    return infos[KeepPolicy(metric, mode or "min").ranked(candidates)[0].name][0]


def list_checkpoints(path: str | os.PathLike[str], *, verify: bool = False) -> list[CheckpointInfo]:
    """The resume points of a run, then its kept models, each from the oldest update to the newest.

    `path` may be a run directory, a folder of checkpoints, or one checkpoint. `verify` compares hashes.
    """
    found = [_look_at(directory, verify=verify) for directory in _checkpoint_folders(Path(path))]
    # A run that is going on removes checkpoints while we look.
    return sorted((info for info in found if info.manifest or info.path.is_dir()), key=_order)


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointContent:
    """What one checkpoint, or the newest of a run, consists of; a damaged file is among the problems."""
    directory = find_checkpoint(path, verify=False)
    manifest = read_manifest(directory)
    problems, tensors = [], {}
    for name, record in manifest.files.items():
        problem = find_problem(directory, name, record, deep=False)
        if problem is None and name.endswith(".safetensors"):
            try:
                tensors[name] = read_header(directory / name)
            except CheckpointError as error:
                problem = str(error)
        problems += [problem] if problem else []
    info = CheckpointInfo(
        _kind(directory, manifest), _name(directory), directory, _size(directory), manifest, tuple(problems), False
    )
    return CheckpointContent(info, manifest, tensors)


def find_checkpoint(path: str | os.PathLike[str], *, verify: bool = True) -> Path:
    """The checkpoint at a path, or the newest sound resume point of a run; damaged ones are named and passed over."""
    source = Path(path)
    if is_checkpoint(source):
        if verify and (problems := verify_checkpoint(source)):
            raise CheckpointError(f"Checkpoint {source} is damaged: {'; '.join(problems)}; {REMEDY}.")
        return source
    points = [info for info in list_checkpoints(source) if info.kind == "resume"]
    for info in reversed(points):
        problems = list(info.problems) or (verify_checkpoint(info.path) if verify else [])
        if not problems:
            return info.path
        logger.warning("Checkpoint %s is passed over: %s", info.name, "; ".join(problems))
    raise CheckpointError(f"{source} holds no sound resume point; name a checkpoint or a kept model itself.")


def _look_at(directory: Path, *, verify: bool) -> CheckpointInfo:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(directory)
        checks = [find_problem(directory, name, record, deep=verify) for name, record in manifest.files.items()]
    except CheckpointError as error:
        checks = [str(error)]
    problems = [problem for problem in checks if problem]
    kind = _kind(directory, manifest)
    return CheckpointInfo(kind, _name(directory), directory, _size(directory), manifest, tuple(problems), verify)


def _checkpoint_folders(path: Path) -> list[Path]:
    if is_checkpoint(path):
        return [path]
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {what}: name a run directory or a checkpoint.")
    parts = [path / RESUME_POINTS, path / KEPT_MODELS]
    if (path / "run.json").is_file() or any(part.is_dir() for part in parts):
        return [folder for part in parts if part.is_dir() for folder in _folders(part)]
    if found := [folder for folder in _folders(path) if is_checkpoint(folder)]:
        return found
    raise CheckpointError(f"{path} holds no run and no checkpoint: name a run directory or a checkpoint.")


def _folders(directory: Path) -> list[Path]:
    """The folders in a directory; hidden ones are being written, or were when their process was killed."""
    try:
        return [path for path in sorted(directory.iterdir()) if not path.name.startswith(".") and path.is_dir()]
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error}") from error


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is one checkpoint, sound or not, rather than a run or a folder of them."""
    return any(os.path.lexists(path / name) for name in (MANIFEST, STATE, TENSORS))


def _kind(directory: Path, manifest: Manifest | None) -> Kind:
    is_kept = directory.resolve().parent.name == KEPT_MODELS or (manifest is not None and "metric" in manifest.meta)
    return "kept" if is_kept else "resume"


def _name(directory: Path) -> str:
    return directory.resolve().name  # of "." too


def _size(directory: Path) -> int:
    """The bytes that the files take, whatever the manifest says."""
    total = 0
    try:
        for entry in os.scandir(directory):
            details = entry.stat(follow_symlinks=False)
            total += details.st_size if stat.S_ISREG(details.st_mode) else 0
    except OSError:
        return total  # what can be seen of it
    return total


def _order(info: CheckpointInfo) -> tuple[bool, bool, tuple[int | float, str], str]:
    order = (0, "") if info.manifest is None else info.manifest.order
    return info.kind == "kept", info.manifest is None, order, info.name

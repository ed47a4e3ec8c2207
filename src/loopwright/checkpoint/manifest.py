"""What a checkpoint says it consists of, and whether the files agree."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import CheckpointError
from .atomic import CHUNK, FileRecord
from .headers import Json, parse_json
from .layout import PIECES, read_layouts, table_of, text_of

FORMAT = 2  # 2: the history may be in files of its own; what does without is still written as 1
MANIFEST = "manifest.json"
STATE = "state.json"
TENSORS = "state.safetensors"
LARGEST_MANIFEST = 64 << 20
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
REMEDY = "use another checkpoint, or restore this one from a copy"


class NewerFormatError(CheckpointError):
    """A sound checkpoint that this version cannot read; going on without it would undo what it holds."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of one checkpoint."""

    meta: dict[str, Any]
    files: dict[str, FileRecord]
    models: dict[str, str]
    created: str
    loopwright: str
    format: int
    name: str | None = None  # that it was written under; None where an earlier version wrote it

    @property
    def size(self) -> int:
        """Bytes on disk, the manifest not counted."""
        return sum(record.size for record in self.files.values())

    @property
    def order(self) -> tuple[int | float, str]:
        """What checkpoints are ordered by: the update, then the time."""
        update = self.meta.get("update")
        is_number = isinstance(update, int | float) and update == update
        return (update if is_number else -1, self.created)  # type: ignore[return-value]


def manifest_bytes(
    meta: dict[str, Any], files: dict[str, FileRecord], models: dict[str, str], name: str, version: int = 1
) -> bytes:
    """A manifest that also vouches for itself, as it is written."""
    from .encoding import encode_plain

    content: dict[str, Json] = {
        "format": version,
        "loopwright": __version__,
        "name": plain_name(name),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "meta": encode_plain(meta, "The metadata of a checkpoint"),
        "files": {name: asdict(record) for name, record in files.items()},
        "models": dict(models),
    }
    return json.dumps(content | {"sha256": _digest(content)}, indent=1).encode()


def plain_name(name: str) -> str:
    """The name of a directory as JSON can hold it, whatever its bytes are."""
    return os.fsencode(name).decode(errors="backslashreplace")


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a checkpoint directory, once it is known to be one that this version can read."""
    directory = Path(path)
    name = directory / MANIFEST
    if directory.is_file():
        raise CheckpointError(
            f"{directory} is a file, and a checkpoint is a directory: for weights from elsewhere use "
            "`trainer.load_weights(path)`."
        )
    if not os.path.lexists(directory):
        raise CheckpointError(f"There is no checkpoint at {directory}: that path does not exist.")
    if problem := _unreadable(directory, MANIFEST):
        raise CheckpointError(f"{directory} is not a complete checkpoint: {problem}; {REMEDY}.")
    content = parse_json(_read(name), str(name))
    number = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(number, int):
        raise CheckpointError(f"{name} is not a manifest: it states no format; {REMEDY}.")
    is_damaged = content.pop("sha256", None) != _digest(content)
    if not 1 <= number <= FORMAT:
        raise (CheckpointError if is_damaged else NewerFormatError)(
            f"{name} was written by a newer version of loopwright (format {number}, "
            f"this one reads up to {FORMAT}): upgrade loopwright."
        )
    if is_damaged:
        raise CheckpointError(f"{name} does not match its own hash: it is damaged; {REMEDY}.")
    return _parse(content, number, name)


def verify_checkpoint(path: str | os.PathLike[str]) -> list[str]:
    """Everything that is wrong with a checkpoint, hashes included; empty where it can be trusted."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [str(error)]
    found = (find_problem(Path(path), name, record) for name, record in manifest.files.items())
    problems = [problem for problem in found if problem]
    if PIECES in manifest.files and not problems:
        try:
            read_layouts(Path(path), manifest.files)
        except CheckpointError as error:
            return [str(error)]
    return problems


def find_problem(directory: Path, name: str, record: FileRecord, *, deep: bool = True) -> str | None:
    """What is wrong with one file of a checkpoint; `deep` reads and hashes it."""
    if problem := _unreadable(directory, name):
        return problem
    try:
        size = (directory / name).stat().st_size
        if size != record.size:
            return f"{name} has {size} bytes instead of {record.size}: it was cut short or changed"
        if deep and hash_file(directory / name) != record.sha256:
            return f"{name} does not match its hash: its content was changed or damaged"
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return None


def hash_file(path: Path) -> str:
    """The sha256 of a file."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, max(path.stat().st_size, 1))))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _digest(content: dict[str, Json]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _unreadable(directory: Path, name: str) -> str | None:
    """Why a name is not a regular file of this very directory; nothing is opened to find out."""
    if not FILE_NAME.fullmatch(name):
        return f"{name!r} is not a plain file name inside the checkpoint, and was refused"
    try:
        mode = os.lstat(directory / name).st_mode
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} cannot be read: {error}"
    if stat.S_ISLNK(mode):
        return f"{name} is a symbolic link, which may lead out of the checkpoint, and was refused"
    return None if stat.S_ISREG(mode) else f"{name} is not a regular file"


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise CheckpointError(f"{path} is too large to be a manifest; {REMEDY}.")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _parse(content: dict[str, Json], number: int, name: Path) -> Manifest:
    try:
        meta = _decoded(content["meta"])
        files = {file: record_of(entry) for file, entry in table_of(content["files"]).items()}
        models = {model: str(file) for model, file in table_of(content["models"]).items()}
        created, version = str(content["created"]), str(content["loopwright"])
        noted = None if "name" not in content else text_of(content["name"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{name} is malformed ({error!r}); {REMEDY}.") from None
    for file in (*files, *models.values()):
        if not FILE_NAME.fullmatch(file):
            raise CheckpointError(f"{name} was refused: {file!r} is not a plain file name inside {name.parent}.")
    if not isinstance(meta, dict) or {STATE, TENSORS, *models.values()} - set(files):
        raise CheckpointError(f"{name} does not list every file of a checkpoint; {REMEDY}.")
    return Manifest(meta, files, models, created, version, number, noted)


def _decoded(meta: Json) -> Any:
    """Metadata as it was noted; plain JSON, as it nearly always is, is taken without importing torch."""
    if '"$' not in json.dumps(meta):
        return meta
    from .decoding import decode

    return decode(meta, {})


def record_of(entry: Json) -> FileRecord:
    """What a table says of a file."""
    table = table_of(entry)
    size, sha256 = table["size"], table["sha256"]
    if type(size) is not int or not isinstance(sha256, str):
        raise TypeError("a file's size is a number and its sha256 is text")
    return FileRecord(size, sha256)

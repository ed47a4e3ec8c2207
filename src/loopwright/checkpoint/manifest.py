"""What a checkpoint says it consists of, and whether the files agree."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import CheckpointError, ConfigurationError
from ..text import listed
from .atomic import CHUNK, FileRecord
from .layout import (
    SHARDS,
    Json,
    read_json,
    read_layouts,
    record_of,
    table_of,
    text_of,
    unreadable,
)

# The format of the files, of which the lowest that suffices is written: 2, where the history is in
# files of its own; 3,
# where a part of the state has a version above 1, which readers of format 2 do not look at (see
# `migrations.py`).
FORMAT = 3
MANIFEST = "manifest.json"
STATE = "state.json"
TENSORS = "state.safetensors"
LARGEST_MANIFEST = 64 << 20
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
REMEDY = "use another checkpoint, or restore this one from a copy"


class VersionError(CheckpointError):
    """A sound checkpoint of a version that this Loopwright does not read: passing it over would
    undo it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of one checkpoint, as `manifest.json` states it.

    Args:
        meta: What was noted with the checkpoint, as `{"update": 3}`.
        files: Size and hash of every file, by name.
        models: The file of each model, by the model's name.
        created: When it was written, in ISO format.
        loopwright: The version of Loopwright that wrote it.
        format: The format of the files.
        name: The name that it was written under; None where an earlier version wrote it.
        versions: The version of each part of the state; empty where an earlier version wrote it.
    """

    meta: dict[str, Any]
    files: dict[str, FileRecord]
    models: dict[str, str]
    created: str
    loopwright: str
    format: int
    name: str | None = None  # that it was written under; None where an earlier version wrote it
    # of the parts of the state; empty in earlier checkpoints
    versions: dict[str, int] = field(default_factory=dict)


def manifest_bytes(
    meta: dict[str, Any],
    files: dict[str, FileRecord],
    models: dict[str, str],
    name: str,
    *,
    versions: Mapping[str, int],
    has_history_files: bool = False,
) -> bytes:
    """A manifest that also vouches for itself, as it is written."""
    from .encoding import encode_plain

    number = 2 if has_history_files else 1
    if any(version > 1 for version in versions.values()):
        number = 3
    content: dict[str, Json] = {
        "format": number,
        "loopwright": __version__,
        "name": plain_name(name),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "meta": encode_plain(meta, "The metadata of a checkpoint"),
        "files": {name: asdict(record) for name, record in files.items()},
        "models": dict(models),
        "versions": dict(versions),
    }
    return json.dumps(content | {"sha256": _digest(content)}, indent=1).encode()


def plain_name(name: str) -> str:
    """The name of a directory as JSON can hold it, whatever its bytes are."""
    return os.fsencode(name).decode(errors="backslashreplace")


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a checkpoint, and nothing else.

    Args:
        path: The directory of the checkpoint.

    Raises:
        CheckpointError: There is no manifest, or it does not match its own hash.
        VersionError: A newer Loopwright wrote it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import read_manifest, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"numbers": [1, 2]}, {"update": 3})
        ...     sorted(read_manifest(f"{folder}/first").files)
        ['state.json', 'state.safetensors']
    """
    directory = Path(path)
    name = directory / MANIFEST
    if directory.is_file():
        raise CheckpointError(
            "checkpoint-is-a-file",
            f"{directory} is a file, but a checkpoint is a directory: for a file of weights use "
            "`trainer.load_weights(path)`.",
        )
    if not os.path.lexists(directory):
        raise CheckpointError(
            "no-checkpoint", f"There is no checkpoint at {directory}: the path does not exist."
        )
    if problem := _unreadable(directory, MANIFEST):
        raise CheckpointError(
            "incomplete-checkpoint",
            f"{directory} is not a complete checkpoint: {problem}; {REMEDY}.",
        )
    try:
        content = read_json(name, LARGEST_MANIFEST)
    except OSError as error:
        raise unreadable(name, error) from error
    number = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(number, int) or number < 1:
        raise CheckpointError(
            "malformed-manifest", f"{name} is not a manifest: it has no format version; {REMEDY}."
        )
    is_damaged = content.pop("sha256", None) != _digest(content)
    if number > FORMAT:
        raise (CheckpointError if is_damaged else VersionError)(
            "newer-format",
            f"{name} was written by a newer version of Loopwright (format {number}; this version "
            f"reads up to {FORMAT}): upgrade Loopwright.",
        )
    if is_damaged:
        raise CheckpointError(
            "damaged-manifest", f"{name} does not match its own hash: it is damaged; {REMEDY}."
        )
    return _parse(content, number, name)


def damaged(source: object, problem: str) -> CheckpointError:
    """The error for a checkpoint whose files are not what its manifest says."""
    return CheckpointError(
        "damaged-checkpoint", f"Checkpoint {source} is damaged: {problem}; {REMEDY}."
    )


def verify_checkpoint(path: str | os.PathLike[str]) -> list[str]:
    """List everything that is wrong with a checkpoint, hashes included.

    Args:
        path: The directory of the checkpoint.

    Returns:
        A sentence for each problem; an empty list where the checkpoint can be trusted.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loopwright.checkpoint import verify_checkpoint, write_checkpoint
        >>> with TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/first", {"numbers": [1, 2]})
        ...     verify_checkpoint(f"{folder}/first")
        []
    """
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [str(error)]
    problems = list(find_problems(Path(path), manifest))
    if SHARDS in manifest.files and not problems:
        try:
            read_layouts(Path(path), manifest.files)
        except CheckpointError as error:
            return [str(error)]
    return problems


def find_problems(directory: Path, manifest: Manifest, *, deep: bool = True) -> Iterator[str]:
    """What is wrong with the files of a checkpoint; `deep` reads and hashes them."""
    for name, record in manifest.files.items():
        if problem := find_problem(directory, name, record, deep=deep):
            yield problem


def find_problem(
    directory: Path, name: str, record: FileRecord, *, deep: bool = True
) -> str | None:
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
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


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
        return (
            f"{name} is a symbolic link, which could point outside of the checkpoint, and was "
            "refused"
        )
    return None if stat.S_ISREG(mode) else f"{name} is not a regular file"


def _parse(content: dict[str, Json], number: int, name: Path) -> Manifest:
    try:
        meta = _decoded(content["meta"])
        files = {file: record_of(entry) for file, entry in table_of(content["files"]).items()}
        models = {model: str(file) for model, file in table_of(content["models"]).items()}
        created = str(content["created"])
        version = str(content["loopwright"])
        noted = None if "name" not in content else text_of(content["name"])
        versions = {
            part: _version(number) for part, number in table_of(content.get("versions", {})).items()
        }
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            "malformed-manifest", f"{name} is malformed ({error!r}); {REMEDY}."
        ) from None
    if unsafe := [file for file in (*files, *models.values()) if not FILE_NAME.fullmatch(file)]:
        raise CheckpointError(
            "unsafe-file-name",
            f"{name} was refused: {unsafe[0]!r} is not a plain file name inside {name.parent}.",
        )
    if not isinstance(meta, dict) or {STATE, TENSORS, *models.values()} - set(files):
        raise CheckpointError(
            "malformed-manifest", f"{name} does not list every file of a checkpoint; {REMEDY}."
        )
    return Manifest(meta, files, models, created, version, number, noted, versions)


def _version(value: Json) -> int:
    if type(value) is not int or value < 1:
        raise TypeError(f"expected a version, found {value!r:.60}")
    return value


def _decoded(meta: Json) -> Any:
    """Metadata as it was noted; plain JSON, as it nearly always is, is taken without importing
    torch."""
    if '"$' not in json.dumps(meta):
        return meta
    from .encoding import decode

    return decode(meta, {})


# `Path` makes one slash of two; a Windows drive has one letter
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
IGNORED = {".DS_Store", "Thumbs.db", "desktop.ini"}  # file managers leave them where they looked
SHOWN = 3
UPDATE_NAME = re.compile(r"update-\d{8,}")  # of resume points
SAFE = ".safetensors"


def local_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path, unless it is the address of something that is not on this machine; `what` is the
    argument."""
    text = os.fspath(path)
    if ADDRESS.match(text):
        raise ConfigurationError(
            "remote-path",
            f"{what}={text!r} is a URL, but files can be written only to local paths: pass a path "
            "on this machine (a mounted bucket or network folder works) and copy the files "
            "afterwards.",
        )
    return Path(path)


def check_directory(path: str | os.PathLike[str], what: str = "path") -> None:
    """Raise unless a checkpoint may be written to this path: nothing, an empty directory or a
    checkpoint is there."""
    destination = local_path(path, what)
    if not os.path.lexists(destination) or (destination.is_symlink() and not destination.exists()):
        return
    if not destination.is_dir():
        raise ConfigurationError(
            "path-is-a-file",
            f"{destination} is a file, but a checkpoint is a directory: move the file, or choose "
            f"another {what}.",
        )
    if destination.samefile(Path.cwd()):  # which a checkpoint would take from under the program
        raise ConfigurationError(
            "path-is-current-folder",
            f"{what}={str(path)!r} is the current folder: name a folder inside it.",
        )
    if foreign := foreign_names(destination):
        raise ConfigurationError(
            "foreign-files",
            f"{destination} holds {listed(map(repr, foreign), SHOWN)}, which Loopwright did not write, so nothing "
            f"was changed: choose another {what}, or move these files.",
        )


def check_inside(folder: str | os.PathLike[str], names: re.Pattern[str] | None, what: str) -> None:
    """Raise unless checkpoints with such names may be written to a folder, which need not be there
    yet.

    Without names only the folder itself is looked at: what is in it is for code of the user's own
    to write.
    """
    home = local_path(folder, what)
    blocking = next((place for place in (home, *home.absolute().parents) if place.exists()), home)
    if blocking.exists() and not blocking.is_dir():
        raise ConfigurationError(
            "path-is-a-file",
            f"{blocking} is a file, so {what}={str(folder)!r} cannot be a folder: choose another.",
        )
    if names is not None and home.is_dir():
        for path in sorted(path for path in home.iterdir() if names.fullmatch(path.name)):
            check_directory(path, what)


def check_file(path: str | os.PathLike[str], *, force: bool) -> None:
    """Raise unless weights may be written here: where nothing or a file of weights is; with
    `force`, any file."""
    destination = local_path(path, "path")
    if destination.is_dir():
        raise ConfigurationError(
            "path-is-a-folder",
            f"{destination} is a directory, but weights are written to a file: name a file in it.",
        )
    if force or not destination.exists() or not destination.stat().st_size:
        return
    if weights_format(destination) is None:
        raise ConfigurationError(
            "not-a-weights-file",
            f"{destination} exists and is not a file of weights, so it was not changed: choose "
            "another path, or move the file.",
        )


def weights_format(path: Path) -> str | None:
    """What a file of tensors is by its content: ".safetensors", or ".pt" for one of torch's; None
    for others."""
    with path.open("rb") as file:
        start = file.read(9)
    # a zip archive, or a bare pickle as torch wrote before
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        return ".pt"
    length = int.from_bytes(start[:8], "little")
    return SAFE if start[8:] == b"{" and length + 8 <= path.stat().st_size else None


def foreign_names(directory: Path) -> list[str]:
    """What in a directory is not part of a checkpoint; the whole of it where it is none."""
    names = sorted(set(os.listdir(directory)) - IGNORED)
    try:
        own = {MANIFEST, *read_manifest(directory).files}
        return [name for name in names if name not in own]
    except VersionError:
        is_checkpoint = True
    except CheckpointError:  # a damaged one may be replaced
        is_checkpoint = {STATE, TENSORS} <= {*names} or bool(UPDATE_NAME.match(directory.name))
    if not is_checkpoint:
        return names
    own = {MANIFEST, STATE, SHARDS}
    return [name for name in names if name not in own and not name.endswith(SAFE)]

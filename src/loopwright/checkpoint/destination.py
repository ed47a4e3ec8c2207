"""Whether a path may be written to: what stands there is replaced only where Loopwright wrote it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CheckpointError, ConfigurationError
from .layout import PIECES
from .manifest import MANIFEST, STATE, TENSORS, NewerFormatError, read_manifest

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # `Path` makes one slash of two; a Windows drive has one letter
IGNORED = {".DS_Store", "Thumbs.db", "desktop.ini"}  # what file managers leave where somebody looked
SHOWN = 3
UPDATE_NAME = re.compile(r"update-\d{8,}")  # of resume points
SAFE = ".safetensors"


def local_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path, unless it is the address of something that is not on this machine; `what` is the argument."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"{what}={path!r}: pass a path, as text or a pathlib.Path.")
    text = os.fspath(path)
    if ADDRESS.match(text):
        raise ConfigurationError(
            f"{what}={text!r} is an address, and files are written to local paths only: pass a path on this machine "
            "(a mounted bucket or network folder has one) and copy what is there afterwards."
        )
    return Path(path)


def check_directory(path: str | os.PathLike[str], what: str = "path") -> None:
    """Raise unless a checkpoint may be written to this path: nothing, an empty directory or a checkpoint is there."""
    destination = local_path(path, what)
    if not os.path.lexists(destination) or (destination.is_symlink() and not destination.exists()):
        return
    if not destination.is_dir():
        raise ConfigurationError(
            f"{destination} is a file, and a checkpoint is a directory: move the file away, or choose another {what}, "
            f"such as {str(destination.with_suffix('')) if destination.suffix else f'{destination}_checkpoint'!r}."
        )
    if destination.samefile(Path.cwd()):
        raise ConfigurationError(
            f"{what}={str(path)!r} is the folder that this program runs in: name a folder inside it."
        )
    if foreign := foreign_names(destination):
        raise ConfigurationError(
            f"{destination} holds {_listed(foreign)}, which Loopwright did not write, so nothing there was touched: "
            f"choose another {what}, or move that away."
        )


def check_inside(folder: str | os.PathLike[str], names: re.Pattern[str] | None, what: str) -> None:
    """Raise unless checkpoints with such names may be written to a folder, which need not be there yet.

    Without names only the folder itself is looked at: what is in it is for code of the user's own to write.
    """
    home = local_path(folder, what)
    blocking = next((place for place in (home, *home.absolute().parents) if place.exists()), home)
    if blocking.exists() and not blocking.is_dir():
        raise ConfigurationError(f"{blocking} is a file, so {what}={str(folder)!r} cannot be a folder: choose another.")
    for path in sorted(home.iterdir()) if home.is_dir() and names is not None else ():
        if names is not None and names.fullmatch(path.name):
            check_directory(path, what)


def check_file(path: str | os.PathLike[str], what: str = "path", *, force: bool = False) -> None:
    """Raise unless weights may be written here: where nothing or a file of weights is; with `force`, any file."""
    destination = local_path(path, what)
    if destination.is_dir():
        raise ConfigurationError(f"{destination} is a directory, and weights are written to a file: name a file in it.")
    if not force and destination.exists() and destination.stat().st_size and weights_format(destination) is None:
        raise ConfigurationError(
            f"{destination} is there and is not a file of weights, so it was not touched: choose another {what}, or "
            "move it away."
        )


def weights_format(path: Path) -> str | None:
    """What a file of tensors is by its content: ".safetensors", or ".pt" for one of torch's; None for others."""
    with path.open("rb") as file:
        start = file.read(9)
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":  # a zip archive, or a bare pickle as torch wrote before
        return ".pt"
    length = int.from_bytes(start[:8], "little")
    return SAFE if start[8:] == b"{" and length + 8 <= path.stat().st_size else None


def foreign_names(directory: Path) -> list[str]:
    """What in a directory is not part of a checkpoint; the whole of it where it is none."""
    names = sorted(set(os.listdir(directory)) - IGNORED)
    own = {name for name in names if name in (MANIFEST, STATE, PIECES) or name.endswith(".safetensors")}
    try:
        own = {MANIFEST, *read_manifest(directory).files}
    except NewerFormatError:
        pass
    except CheckpointError:
        if not ({STATE, TENSORS} <= own or UPDATE_NAME.match(directory.name)):  # not even a damaged checkpoint
            return names
    return [name for name in names if name not in own]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more

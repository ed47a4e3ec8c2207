"""The choice of a run directory, and the recording of config, code and manifest in it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.atomic import staged_file, write_bytes
from ..checkpoint.manifest import local_path
from ..errors import ConfigurationError
from .changes import Change, find_changes, flatten, listed
from .directory import RunDirectory, shown
from .manifest import RunManifest, uncommitted_diff, update_manifest
from .reading import Run

ROOT = "runs"
logger = logging.getLogger("loopwright.run")


@dataclass(frozen=True, slots=True)
class Destination:
    """The directory of a run, the checkpoint it resumes from if that is elsewhere, and a line to
    print about it."""

    path: Path
    is_new: bool
    resume: str | Path = "auto"
    remark: str | None = None


def choose_directory(
    output_path: str | None,
    name: str,
    run_id: str,
    resume: bool | str | Path,
    config: Mapping[str, Any],
    *,
    changeable: Collection[str],
    accept: str | None,
) -> Destination:
    """The directory for a run with this config: a new one, or that of an unfinished run with the
    same settings.

    A run that another process writes is never continued.

    Args:
        output_path: The directory that the user asked for; by default `runs/<name>/<run_id>`.
        name: The name of the run.
        run_id: The id of the run, if it is a new one.
        resume: "auto" or True to continue an unfinished run, False for a new one, a path to
            continue that run or to start a new one from that checkpoint.
        config: The resolved config.
        changeable: Keys of the config that may differ in a run that is continued.
        accept: How the user asks for a run with another config to be continued, for a message; None
            where the user has asked for it.
    """
    home = (
        local_path(output_path, "output_path")
        if output_path is not None
        else Path(ROOT) / name / run_id
    )
    if resume is False:
        return Destination(home, is_new=True)
    if resume not in ("auto", True):
        return _named(Path(str(resume)), home)
    remark = None
    for run in map(Run, _runs_like(home) if output_path is not None else _runs_in(home.parent)):
        is_over = run.state in ("finished", "stopped")
        if run.state in ("running", "unreadable") or (is_over and output_path is None):
            continue
        changed = differences(run.config_file or {}, config, changeable)
        if not changed or accept is None:
            return Destination(run.path, is_new=False)
        remark = remark or (
            f"{shown(run.path)} was started with a different config:{listed(changed)}\n"
            f"This is a new run. To resume the earlier run with the new values, pass {accept}."
        )
    return Destination(home, is_new=True, remark=remark)


def _runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, newest first."""
    return sorted((path.parent for path in folder.glob("*/run.json")), reverse=True)


def _runs_like(home: Path) -> list[Path]:
    """The run in a directory and the runs that were numbered beside it, newest first."""
    numbered = [
        (int(path.name[len(home.name) + 1 :]), path)
        for path in home.parent.glob(f"{home.name}-[0-9]*")
        if path.name[len(home.name) + 1 :].isdecimal()
    ]
    paths = [*(path for _, path in sorted(numbered, reverse=True)), home]
    return [path for path in paths if (path / "run.json").is_file()]


def _named(path: Path, home: Path) -> Destination:
    """The run directory that the user named, or a new run from the checkpoint that the user
    named."""
    if (path / "run.json").is_file():
        return Destination(path, is_new=False)
    if not path.exists():
        raise ConfigurationError(
            "resume-path",
            f"resume: {str(path)!r} does not exist: name a run directory or a checkpoint, or use "
            "'auto' or false.",
        )
    return Destination(
        home, is_new=True, resume=path, remark=f"Starting a new run from {shown(path)}."
    )


def differences(
    earlier: Mapping[str, Any], now: Mapping[str, Any], changeable: Collection[str]
) -> list[Change]:
    """The settings that make two configs different runs: all but the changeable ones."""
    first = settings_of(earlier, changeable)
    second = settings_of(now, changeable)
    return find_changes(first, second, lambda before, after: before == after)


def settings_of(config: Mapping[str, Any], changeable: Collection[str]) -> dict[str, Any]:
    """The scalars of a config under dotted keys, without the changeable keys."""
    return {key: value for key, value in flatten(config).items() if not _is_below(key, changeable)}


def _is_below(key: str, keys: Collection[str]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:count]) in keys for count in range(1, len(parts) + 1))


def own_modules(folder: Path) -> dict[Path, Path]:
    """Files of the loaded modules that were imported from a folder, by their paths below it."""
    folder = folder.resolve()
    found: dict[Path, Path] = {}
    # checking every one of thousands of modules would be slow
    beside = {path.stem for path in folder.glob("*")}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in beside or file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(folder) and path.relative_to(folder).with_suffix(
            ""
        ).parts in _places(name):
            found[path.relative_to(folder)] = path
    return found


def _places(name: str) -> tuple[tuple[str, ...], ...]:
    """The possible paths of a module's file below the folder that it is imported from."""
    parts = tuple(name.split("."))
    return parts, (*parts, "__init__")


def check_modules(folder: Path, destination: Path) -> None:
    """Refuse a directory for a new run where copies of modules would overwrite the user's files."""
    for below, path in own_modules(folder).items():
        target = destination / below
        if (
            target.is_file()
            and path != target.resolve()
            and target.read_bytes() != path.read_bytes()
        ):
            raise ConfigurationError(
                "module-overwritten",
                f"{target} is not the file of the module {below} that belongs to this run, and it "
                "would be overwritten: choose another `output_path`.",
            )


def copy_modules(folder: Path, destination: Path) -> list[str]:
    """Copy the modules that were imported from a folder; the names of copies that were there and
    have changed."""
    changed = []
    for below, path in own_modules(folder).items():
        target = destination / below
        content = path.read_bytes()
        if path == target.resolve():
            continue
        if target.is_file():
            if target.read_bytes() == content:
                continue
            changed.append(str(below))
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(target) as staging:
            write_bytes(staging, content)
    return changed


def record_start(run: RunDirectory, folder: Path, config: str, manifest: RunManifest) -> None:
    """Write the config, the code and the manifest of a new run, before its first step.

    Args:
        run: The run directory.
        folder: The folder that the modules of the run are imported from.
        config: The resolved config, as text.
        manifest: The facts about the run.
    """
    check_modules(folder, run.path)
    write_text(run.config_path, config)
    copy_modules(folder, run.path)
    diff = uncommitted_diff(folder)
    if diff:
        with staged_file(run.diff_path) as staging:
            write_bytes(staging, diff)
    manifest.write(run.manifest_path)


def record_continuation(run: RunDirectory, folder: Path, config: str) -> list[str]:
    """Bring the config and the code of a resumed run up to date; a line for the user where the code
    has changed."""
    changed = copy_modules(folder, run.path)
    write_text(run.config_path, config)
    return [f"The code has changed since the run began: {', '.join(changed)}."] if changed else []


@contextmanager
def noting_failure(run: RunDirectory) -> Iterator[None]:
    """Note in the manifest an error before the first step, when no callback records errors yet."""
    try:
        yield
    except Exception as error:
        if RunManifest.read(run.manifest_path).state == "running":
            update_manifest(
                run.manifest_path, state="failed", reason=f"{type(error).__name__}: {error}"
            )
            logger.error("Failed before the first step.", exc_info=error)
        raise


def write_text(path: Path, text: str) -> None:
    with staged_file(path) as staging:
        write_bytes(staging, text.encode())

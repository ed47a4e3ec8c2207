"""`run.json`: what ran, with which versions, on what machine, from which commit, and how it ended."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch

from .._version import __version__
from ..checkpoint.atomic import staged_file, write_bytes
from ..checkpoint.headers import parse_json
from ..errors import CheckpointError, ConfigurationError
from ..metrics.direction import Mode

SECONDS_FOR_STATUS = 10.0
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class WorkTree:
    """The commit around a directory, and whether tracked files differ from it.

    Git may take longer over the files than the first step of a training run: `ask` sets it to work, and `is_dirty`
    is for later.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commit = _commit_around(directory)
        self._asked: subprocess.Popen[bytes] | None = None

    def ask(self) -> Self:
        """Let git begin to compare."""
        if self.commit is not None and self._asked is None:
            self._asked = _start_git(self.directory)
        return self

    @property
    def is_answered(self) -> bool:
        """Whether `is_dirty`, asked for before, needs no waiting."""
        return self._asked is None or self._asked.poll() is not None

    @cached_property
    def is_dirty(self) -> bool | None:
        """Whether tracked files differ from the commit, once git has said so; None: not known."""
        self.ask()
        if self._asked is None:
            return None
        try:
            code = self._asked.wait(SECONDS_FOR_STATUS)
        except subprocess.TimeoutExpired:
            self._asked.kill()
            self._asked.wait()
            return None
        return {0: False, 1: True}.get(code)


def _start_git(directory: Path) -> subprocess.Popen[bytes] | None:
    command = ["git", "-c", "core.fsmonitor=false", "diff", "--quiet", "--no-ext-diff", "HEAD"]
    try:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},  # leave no lock behind when cut short
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def _commit_around(directory: Path) -> str | None:
    try:
        git = _find_git(directory)
        return None if git is None else _read_commit(git)
    except (OSError, UnicodeDecodeError):
        return None


def _find_git(directory: Path) -> Path | None:
    for parent in (directory, *directory.parents):
        git = parent / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # a worktree or a submodule: the file says where
            return (parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
    return None


def _read_commit(git: Path) -> str | None:
    """The commit that HEAD stands for, read from the files: far quicker than asking git."""
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head if COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    root = (git / shared.read_text().strip()).resolve() if shared.is_file() else git
    for folder in (git, root):
        if (folder / name).is_file():
            commit = (folder / name).read_text().strip()
            return commit if COMMIT.fullmatch(commit) else None
    packed = root / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    found = (line.split(" ", 1)[0] for line in lines if line.endswith(f" {name}"))
    return next((commit for commit in found if COMMIT.fullmatch(commit)), None)


SECONDS_FOR_DIFF = 5.0
MAX_DIFF_BYTES = 4 << 20


def installed_packages() -> dict[str, str]:
    """Names and versions of what is installed, from the names of its records, which are read in no time."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = sorted(entry.name for entry in os.scandir(folder or "."))
        except OSError:
            continue
        for name in entries:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))


def describe_platform() -> str:
    """System, release, machine and C library; `platform.platform` says the same and starts a process for it."""
    parts = [platform.system(), platform.release(), platform.machine()]
    if "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}):
        parts.append(f"with-{(os.confstr('CS_GNU_LIBC_VERSION') or 'libc').replace(' ', '')}")
    return "-".join(parts)


def describe_hardware() -> dict[str, Any]:
    """The machine: its name, processor, memory and accelerators."""
    return {
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerators": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def uncommitted_diff(directory: Path) -> bytes | None:
    """What the working tree around a directory has changed since its commit, as a patch; None where nobody knows.

    Files that git does not know yet are named at the end, since a patch has no room for what may be large.
    """
    tracked = _git(directory, "diff", "HEAD", "--no-color", "--no-ext-diff", "--binary")
    if tracked is None:
        return None
    if len(tracked) > MAX_DIFF_BYTES:
        tracked = tracked[:MAX_DIFF_BYTES] + b"\n# cut short: the changes go on\n"
    unknown = _git(directory, "ls-files", "--others", "--exclude-standard") or b""
    lines = [b"# not under version control: " + name for name in unknown.splitlines()[:1000]]
    return tracked + b"".join(line + b"\n" for line in lines)


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", *arguments],
            cwd=directory,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_FOR_DIFF,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


State = Literal["running", "finished", "stopped", "failed", "interrupted"]
FORMAT = 1
OPTIONAL = frozenset(
    (
        *("git_commit", "git_dirty", "reason", "progress", "format", "name", "tags", "packages", "hardware", "data"),
        *("metric_modes", "eval_keys", "fingerprint", "changes"),
    )
)


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The facts about a run; `progress` holds whatever numbers the loop counts."""

    id: str
    created: str
    updated: str
    command: list[str]
    python: str
    torch: str
    loopwright: str
    platform: str
    device: str
    seed: int | None
    git_commit: str | None = None
    git_dirty: bool | None = None  # None where nobody knows
    state: State = "running"
    reason: str | None = None
    progress: dict[str, int | float] = field(default_factory=dict)
    format: int = FORMAT
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)  # by data set: what it is, its length and fingerprint
    metric_modes: dict[str, Mode] = field(default_factory=dict)  # by metric of the epochs: "min" or "max" is better
    eval_keys: list[str] = field(default_factory=list)  # what names begin with that callbacks' evaluations measured
    fingerprint: dict[str, Any] = field(default_factory=dict)  # what the program gave the run to be, by name
    changes: list[dict[str, Any]] = field(default_factory=list)  # of the program, that the run went on with

    @classmethod
    def collect(
        cls,
        *,
        device: str = "cpu",
        seed: int | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
        tree: WorkTree | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> Self:
        """The manifest of a run that starts now, in this process; whether a `tree` given is dirty is left for later."""
        asked = tree or WorkTree(Path.cwd())
        now = _now()
        return cls(
            id=f"{now[:19].replace(':', '').replace('-', '')}-{secrets.token_hex(3)}",
            created=now,
            updated=now,
            command=[sys.executable, *sys.argv],
            python=platform.python_version(),
            torch=torch.__version__,
            loopwright=__version__,
            platform=describe_platform(),
            device=device,
            seed=seed,
            git_commit=asked.commit,
            git_dirty=asked.is_dirty if tree is None else None,
            name=name,
            tags=list(tags),
            packages=installed_packages(),
            hardware=describe_hardware(),
            data=dict(data or {}),
            fingerprint=dict(fingerprint or {}),
        )

    def changed(
        self,
        *,
        state: State | None = None,
        reason: str | None = None,
        progress: Mapping[str, int | float] | None = None,
        git_dirty: bool | None = None,
        metric_modes: Mapping[str, Mode] | None = None,
        eval_keys: Iterable[str] = (),
        fingerprint: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
    ) -> Self:
        """The same run, further on; a state comes with its own reason, the rest adds to what is known."""
        if state is not None and state not in get_args(State):
            raise ConfigurationError(f"A run is never {state!r}; it is one of {', '.join(get_args(State))}.")
        return replace(
            self,
            updated=_now(),
            state=state or self.state,
            reason=reason if state is not None or reason is not None else self.reason,
            progress={**self.progress, **(progress or {})},
            git_dirty=self.git_dirty if git_dirty is None else git_dirty,
            metric_modes={**self.metric_modes, **(metric_modes or {})},
            eval_keys=sorted({*self.eval_keys, *eval_keys}),
            fingerprint=self.fingerprint if fingerprint is None else dict(fingerprint),
            changes=[*self.changes, {"at": _now(), **change}] if change else self.changes,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace `run.json` in one step."""
        with staged_file(Path(path)) as staging:
            write_bytes(staging, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The manifest in a `run.json`; entries that a later version added are left out."""
        try:
            content = parse_json(Path(path).read_bytes(), str(path))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        return cls(**_checked(content, path, {f.name for f in fields(cls)}))


def update_manifest(
    path: str | os.PathLike[str],
    *,
    state: State | None = None,
    reason: str | None = None,
    progress: Mapping[str, int | float] | None = None,
    git_dirty: bool | None = None,
    metric_modes: Mapping[str, Mode] | None = None,
    eval_keys: Iterable[str] = (),
    fingerprint: Mapping[str, Any] | None = None,
    change: Mapping[str, Any] | None = None,
) -> RunManifest:
    """Note how a run goes on in its `run.json`."""
    manifest = RunManifest.read(path).changed(
        state=state,
        reason=reason,
        progress=progress,
        git_dirty=git_dirty,
        metric_modes=metric_modes,
        eval_keys=eval_keys,
        fingerprint=fingerprint,
        change=change,
    )
    manifest.write(path)
    return manifest


def _checked(content: object, path: object, known: set[str]) -> dict[str, Any]:
    required = {"id", "created", "command", "state"}
    if not isinstance(content, dict) or not required <= set(content):
        raise CheckpointError(f"{path} is not a run's manifest: it lacks some of {sorted(required)}.")
    if content["state"] not in get_args(State) or not isinstance(content.get("progress", {}), dict):
        raise CheckpointError(f"{path} is not a run's manifest: its state is {content['state']!r:.60}.")
    if not isinstance(content.get("fingerprint", {}), dict) or not isinstance(content.get("changes", []), list):
        raise CheckpointError(f"{path} is not a run's manifest: what it says of the program is malformed.")
    unknown: dict[str, Any] = dict.fromkeys(known - OPTIONAL)
    return unknown | {key: value for key, value in content.items() if key in known}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

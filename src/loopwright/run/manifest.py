"""`run.json`: what ran, with which versions, on what machine, from which commit, and how it
ended."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, get_args

import torch

from .._version import __version__
from ..checkpoint.atomic import staged_file, write_bytes
from ..checkpoint.layout import read_json
from ..errors import CheckpointError
from ..metrics.best import Mode

State = Literal["running", "finished", "stopped", "failed", "interrupted"]
FORMAT = 1
REQUIRED = {"id", "created", "command", "state"}  # entries of every version
GIT = ("git", "-c", "core.fsmonitor=false")
SECONDS_FOR_STATUS = 10.0
SECONDS_FOR_DIFF = 5.0
MAX_DIFF_BYTES = 4 << 20
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The facts about a run, as `run.json` holds them.

    Example:
        >>> import tempfile
        >>> from loopwright.run import RunManifest
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RunManifest.collect(seed=0, name="first").write(f"{folder}/run.json")
        ...     RunManifest.read(f"{folder}/run.json").state
        'running'
    """

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
    # by data set: what it is, its length and fingerprint
    data: dict[str, Any] = field(default_factory=dict)
    # by metric of the epochs: "min" or "max" is better
    metric_modes: dict[str, Mode] = field(default_factory=dict)
    # prefixes of metrics of callbacks' own evaluations
    eval_keys: list[str] = field(default_factory=list)
    # metrics whose best values callbacks look for, in their order
    watched: list[str] = field(default_factory=list)
    # what the program gave the run to be, by name
    fingerprint: dict[str, Any] = field(default_factory=dict)
    # of the program, that the run went on with
    changes: list[dict[str, Any]] = field(default_factory=list)
    door: str | None = None  # "native", or the interface whose trainer it was
    # of `Trainer(config=...)`, for the user's own use
    config: dict[str, Any] = field(default_factory=dict)
    # of the trainer, that the fingerprint does not have
    arguments: dict[str, Any] = field(default_factory=dict)
    num_parameters: dict[str, int] = field(default_factory=dict)  # "total" and "trainable"
    # "limit" as [unit, number], and the totals it amounts to
    planned: dict[str, Any] = field(default_factory=dict)
    # with `compile="step"`: "choice", "reason", "graphs" and so on
    compiled: dict[str, Any] = field(default_factory=dict)
    seed_source: str | None = (
        None  # "argument", "seed_everything" or "default"; None in runs of earlier versions
    )

    @classmethod
    def collect(
        cls,
        *,
        device: str = "cpu",
        seed: int | None = None,
        seed_source: str = "argument",
        name: str | None = None,
        tags: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
        tree: WorkTree | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> Self:
        """The manifest of a run that starts now, in this process.

        Args:
            device: The device that computes.
            seed: The seed of the run.
            seed_source: Where the seed is from: "argument", "seed_everything" or "default".
            name: The name of the run.
            tags: Words to find the run by.
            data: For each data set its class, its length and a fingerprint.
            tree: The git work tree, whose `is_dirty` is noted later; by default git is waited for.
            fingerprint: The values that a program must give a run to continue it.
        """
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
            platform="-".join([platform.system(), platform.release(), platform.machine()]),
            device=device,
            seed=seed,
            seed_source=seed_source,
            git_commit=asked.commit,
            git_dirty=asked.is_dirty if tree is None else None,
            name=name,
            tags=list(tags),
            packages=installed_packages(),
            hardware=describe_hardware(),
            data=dict(data or {}),
            fingerprint=dict(fingerprint or {}),
        )

    def changed(self, **changes: Unpack[ManifestChanges]) -> Self:
        """The manifest after an update: a new state replaces the reason, other values are added."""
        given: dict[str, Any] = {
            name: value for name, value in changes.items() if value is not None
        }
        change = given.get("change")
        return replace(
            self,
            updated=_now(),
            state=given.get("state", self.state),
            reason=given.get("reason", None if "state" in given else self.reason),
            progress={**self.progress, **given.get("progress", {})},
            git_dirty=given.get("git_dirty", self.git_dirty),
            metric_modes={**self.metric_modes, **given.get("metric_modes", {})},
            eval_keys=sorted({*self.eval_keys, *given.get("eval_keys", ())}),
            watched=list(given.get("watched", ())) or self.watched,
            fingerprint=dict(given.get("fingerprint", self.fingerprint)),
            changes=[*self.changes, {"at": _now(), **change}] if change else self.changes,
            **given.get("facts", {}),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace `run.json` in one step."""
        entries = {name: getattr(self, name) for name in self.__slots__}
        # a line for each entry; `indent` would do without the encoder in C, and take five times as
        # long
        text = json.dumps(entries, separators=(",\n ", ": "))
        with staged_file(Path(path)) as staging:
            write_bytes(staging, f"{text}\n".encode())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The manifest in a `run.json`; entries of later versions are ignored."""
        try:
            content = read_json(Path(path))
        except OSError as error:
            raise CheckpointError(
                "manifest-unreadable",
                f"{path} cannot be read: {error}",
            ) from error
        entries = content if isinstance(content, dict) else {}
        if not entries.keys() >= REQUIRED or entries["state"] not in get_args(State):
            raise CheckpointError(
                "manifest-damaged",
                f"{path} is not the manifest of a run: it needs {', '.join(sorted(REQUIRED))}.",
            )
        # an early version did not have all of the entries that have no default
        values = {
            entry.name: entries.get(entry.name)
            for entry in fields(cls)
            if entry.name in entries or entry.default is entry.default_factory is MISSING
        }
        return cls(**values)  # type: ignore[arg-type]


class RunFacts(TypedDict, total=False):
    """What a trainer says of its run when training starts; each entry replaces that of the
    manifest."""

    name: str
    tags: list[str]
    door: str  # the interface: names in files stay
    config: dict[str, Any]
    arguments: dict[str, Any]
    num_parameters: dict[str, int]
    planned: dict[str, Any]
    compiled: dict[str, Any]


class ManifestChanges(TypedDict, total=False):
    """The entries of a manifest that change while a run is trained."""

    state: State | None
    reason: str | None  # why the run is in that state
    progress: Mapping[str, int | float] | None
    git_dirty: bool | None
    metric_modes: Mapping[str, Mode] | None
    eval_keys: Iterable[str]
    watched: Iterable[str]
    fingerprint: Mapping[str, Any] | None
    change: Mapping[str, Any] | None  # one more entry of `changes`
    facts: RunFacts | None


def update_manifest(
    path: str | os.PathLike[str], **changes: Unpack[ManifestChanges]
) -> RunManifest:
    """Change entries of a `run.json`, and return the new manifest.

    Args:
        path: The file.
        **changes: The entries; see `ManifestChanges`.

    Example:
        >>> import tempfile
        >>> from loopwright.run import RunManifest, update_manifest
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RunManifest.collect().write(f"{folder}/run.json")
        ...     update_manifest(f"{folder}/run.json", state="stopped", reason="early stopping").reason
        'early stopping'
    """
    manifest = RunManifest.read(path).changed(**changes)
    manifest.write(path)
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# Where a run was started


class WorkTree:
    """The commit around a directory, and whether tracked files differ from it.

    Git may take longer than the first step of a training run: `ask` starts it, and `is_dirty` waits
    for its answer.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commit = _commit_around(directory)
        self._asked: subprocess.Popen[bytes] | None = None

    def ask(self) -> Self:
        """Start git in the background."""
        if self.commit is not None and self._asked is None:
            with suppress(OSError):  # there may be no git
                self._asked = subprocess.Popen(
                    [*GIT, "diff", "--quiet", "--no-ext-diff", "HEAD"],
                    cwd=self.directory,
                    env=_git_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        return self

    @property
    def is_answered(self) -> bool:
        """Whether `is_dirty` is known without waiting."""
        return self._asked is None or self._asked.poll() is not None

    @cached_property
    def is_dirty(self) -> bool | None:
        """Whether tracked files differ from the commit; None where git does not answer."""
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


def _git_environment() -> dict[str, str]:
    return os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # leave no lock behind when cut short


def _commit_around(directory: Path) -> str | None:
    """The commit of HEAD, read from git's files, which is faster than starting git."""
    try:
        for parent in (directory, *directory.parents):
            git = parent / ".git"
            if git.is_file():  # a worktree or a submodule: the file says where
                git = parent / git.read_text().removeprefix("gitdir:").strip()
            if git.is_dir():
                return _read_commit(git)
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _read_commit(git: Path) -> str | None:
    shared = git / "commondir"
    root = git / shared.read_text().strip() if shared.is_file() else git
    found = (git / "HEAD").read_text().strip()
    if found.startswith("ref:"):
        name = found.removeprefix("ref:").strip()
        files = [folder / name for folder in (git, root) if (folder / name).is_file()]
        packed = root / "packed-refs"
        lines = packed.read_text().splitlines() if packed.is_file() else []
        known = [file.read_text().strip() for file in files]
        known += [line.partition(" ")[0] for line in lines if line.endswith(f" {name}")]
        found = known[0] if known else ""
    return found if COMMIT.fullmatch(found) else None


def installed_packages() -> dict[str, str]:
    """Names and versions of the installed packages, from the names of their `.dist-info` folders,
    which is fast."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = sorted(
                name for name in os.listdir(folder or ".") if name.endswith(".dist-info")
            )
        except OSError:
            continue
        for name in entries:
            package, _, version = name.removesuffix(".dist-info").partition("-")
            found.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))


def describe_hardware() -> dict[str, Any]:
    """The machine: its name, processor, memory and accelerators."""
    return {
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerators": [
            torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
        ],
    }


def uncommitted_diff(directory: Path) -> bytes | None:
    """Uncommitted changes of the work tree around a directory, as a patch; None without git.

    Untracked files, which may be large, are only named at the end.
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
            [*GIT, "-c", "core.quotepath=off", *arguments],
            cwd=directory,
            env=_git_environment(),
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

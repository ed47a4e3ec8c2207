"""Where a run was started: the commit around it, uncommitted changes, packages, and the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

SECONDS_FOR_STATUS = 10.0
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


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
            self._asked = _start_git(self.directory)
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
    """The commit of HEAD, read from git's files, which is faster than starting git."""
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


def describe_platform() -> str:
    """System, release, machine and C library, as `platform.platform` gives them, without its child
    process."""
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

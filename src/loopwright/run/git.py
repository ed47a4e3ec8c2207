"""Which commit a program runs from, found within a few milliseconds or not at all."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

SECONDS_FOR_STATUS = 0.03
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def git_state(directory: Path) -> tuple[str | None, bool | None]:
    """The commit checked out around a directory and whether tracked files differ from it; None: not known."""
    try:
        git = _find_git(directory)
        commit = None if git is None else _read_commit(git)
    except (OSError, UnicodeDecodeError):
        return None, None
    return (None, None) if commit is None else (commit, _is_dirty(directory))


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


def _is_dirty(directory: Path) -> bool | None:
    command = ["git", "-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=no"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # leave no lock behind when cut short
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_FOR_STATUS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(done.stdout.strip()) if done.returncode == 0 else None

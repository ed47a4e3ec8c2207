"""Which commit a program runs from, and whether its files are still those of the commit."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Self

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

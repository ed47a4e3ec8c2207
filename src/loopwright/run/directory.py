"""The directory of one run: where its manifest, metrics and checkpoints are, and who may write them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from loopwright.errors import ConfigurationError
from loopwright.run.lock import RunLock

FOLDERS = ("checkpoints", "kept", "artifacts")


class RunDirectory:
    """A run's directory, created where it is not there yet.

    ```
    run.json         what ran, on what, how it ended
    config.yaml      the resolved config it was started from, where there was one, beside the user's own modules
    code.diff        what no commit had of the code        log.txt   what it said
    metrics.sqlite   every metric of every step and epoch
    checkpoints/     resume points        kept/   best models        artifacts/   anything else
    ```
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        try:
            for folder in FOLDERS:
                (self.path / folder).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(
                f"{self.path} cannot be a run directory ({error}): choose another `run_dir`."
            ) from error
        self._lock = RunLock(self.path / ".lock")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The directory of an existing run; nothing is created, to look at it only."""
        directory = cls.__new__(cls)
        directory.path = Path(path).absolute()
        directory._lock = RunLock(directory.path / ".lock")
        if not directory.has_run:
            raise ConfigurationError(f"{directory.path} holds no run: there is no run.json in it.")
        return directory

    @classmethod
    def fresh(cls, path: str | os.PathLike[str]) -> Self:
        """A directory without a run in it, locked: this path, or the first free of `name-2`, `name-3`, ...

        Two processes that ask at once get two directories, since each must win the lock to have one.
        """
        wanted = Path(path).absolute()
        siblings = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
        for candidate in itertools.chain([wanted], siblings):
            if (candidate / "run.json").exists():
                continue
            directory = cls(candidate)
            if directory._lock.try_acquire():
                if not directory.has_run:
                    return directory
                directory._lock.release()
        raise AssertionError("there is always another number")

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def diff_path(self) -> Path:
        return self.path / "code.diff"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.sqlite"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def kept(self) -> Path:
        return self.path / "kept"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def has_run(self) -> bool:
        """Whether a run was started here."""
        return self.manifest_path.is_file()

    def lock(self) -> Self:
        """Become the one process that writes here; the error names the one that does."""
        if not self._lock.try_acquire():
            raise ConfigurationError(
                f"Run directory {self.path} is being written by {self._lock.holder()}: wait for it, stop it, "
                "or choose another `run_dir`."
            )
        return self

    def unlock(self) -> None:
        """Let others write here."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self.lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unlock()

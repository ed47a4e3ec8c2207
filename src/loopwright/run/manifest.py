"""`run.json`: what ran, with which versions, on what machine, from which commit, and how it
ended."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, get_args

import torch

from .._version import __version__
from ..checkpoint.atomic import staged_file, write_bytes
from ..checkpoint.layout import read_json
from ..errors import CheckpointError, ConfigurationError
from ..metrics.best import Mode
from .environment import WorkTree, describe_hardware, describe_platform, installed_packages

State = Literal["running", "finished", "stopped", "failed", "interrupted"]
FORMAT = 1
OPTIONAL = frozenset(
    (
        *(
            "git_commit",
            "git_dirty",
            "reason",
            "progress",
            "format",
            "name",
            "tags",
            "packages",
            "hardware",
            "data",
        ),
        *("metric_modes", "eval_keys", "watched", "fingerprint", "changes"),
        *("door", "config", "arguments", "num_parameters", "planned", "compiled", "seed_source"),
    )
)


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
            platform=describe_platform(),
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

    def changed(
        self,
        *,
        state: State | None = None,
        reason: str | None = None,
        progress: Mapping[str, int | float] | None = None,
        git_dirty: bool | None = None,
        metric_modes: Mapping[str, Mode] | None = None,
        eval_keys: Iterable[str] = (),
        watched: Iterable[str] = (),
        fingerprint: Mapping[str, Any] | None = None,
        change: Mapping[str, Any] | None = None,
        facts: RunFacts | None = None,
    ) -> Self:
        """The manifest after an update: a new state replaces the reason, other values are added;
        see its fields."""
        if state is not None and state not in get_args(State):
            raise ConfigurationError(
                f"{state!r} is not a state of a run: use one of {', '.join(get_args(State))}."
            )
        return replace(
            self,
            updated=_now(),
            state=state or self.state,
            reason=reason if state is not None or reason is not None else self.reason,
            progress={**self.progress, **(progress or {})},
            git_dirty=self.git_dirty if git_dirty is None else git_dirty,
            metric_modes={**self.metric_modes, **(metric_modes or {})},
            eval_keys=sorted({*self.eval_keys, *eval_keys}),
            watched=list(watched) or self.watched,
            fingerprint=self.fingerprint if fingerprint is None else dict(fingerprint),
            changes=[*self.changes, {"at": _now(), **change}] if change else self.changes,
            **(facts or {}),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Replace `run.json` in one step."""
        with staged_file(Path(path)) as staging:
            write_bytes(staging, self._text().encode())

    def _text(self) -> str:
        """JSON with a line for each entry; `indent` would do without the encoder in C, and take
        five times as long."""
        return (
            json.dumps(
                {name: getattr(self, name) for name in self.__slots__}, separators=(",\n ", ": ")
            )
            + "\n"
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The manifest in a `run.json`; entries of later versions are ignored."""
        try:
            content = read_json(Path(path))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        return cls(**_checked(content, path, {f.name for f in fields(cls)}))


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


def _checked(content: object, path: object, known: set[str]) -> dict[str, Any]:
    required = {"id", "created", "command", "state"}
    if not isinstance(content, dict) or not required <= set(content):
        raise CheckpointError(
            f"{path} is not the manifest of a run: it lacks some of {sorted(required)}."
        )
    if content["state"] not in get_args(State) or not isinstance(content.get("progress", {}), dict):
        raise CheckpointError(
            f"{path} is not the manifest of a run: its state is {content['state']!r:.60}."
        )
    if not isinstance(content.get("fingerprint", {}), dict) or not isinstance(
        content.get("changes", []), list
    ):
        raise CheckpointError(
            f"{path} is not the manifest of a run: its record of the program is malformed."
        )
    unknown: dict[str, Any] = dict.fromkeys(known - OPTIONAL)
    return unknown | {key: value for key, value in content.items() if key in known}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

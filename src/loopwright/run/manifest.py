"""`run.json`: what ran, with which versions, on what machine, from which commit, and how it ended."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch

from loopwright._version import __version__
from loopwright.checkpoint.atomic import staged_file, write_bytes
from loopwright.checkpoint.strictjson import parse_json
from loopwright.errors import CheckpointError, ConfigurationError
from loopwright.metrics.direction import Mode
from loopwright.run.git import WorkTree
from loopwright.run.provenance import describe_hardware, describe_platform, installed_packages

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

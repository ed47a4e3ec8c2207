"""The interface of a tracker: four methods, and the values that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from ..metrics.media import Histogram, Images, Media, Table

EndState: TypeAlias = Literal["finished", "stopped", "interrupted", "failed"]
Setting: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """Metrics with their place in the run, of a step or of an epoch.

    Args:
        kind: Whether the metrics are those of a step or of an epoch.
        step: The step, from 1, of all trackers' axis; of an epoch, its last step.
        update: The update that the step is part of, from 1.
        epoch: Of a step, the epoch that it is in, from 0; of an epoch, the number of epochs that
            are complete with it.
        samples: Samples seen in the run so far.
        seconds: Seconds of training so far, without evaluations.
        wall: Seconds since 1970.
        values: The metrics by name. A metric of an epoch that steps have too is `epoch/<name>`.

    >>> from loopwright.trackers import TrackedRow
    >>> row = TrackedRow("step", step=2, update=2, epoch=0, samples=16, seconds=0.5, wall=0.0, values={"loss": 0.25})
    >>> row.values["loss"]
    0.25
    """

    kind: Literal["step", "epoch"]
    step: int
    update: int
    epoch: int
    samples: int
    seconds: float
    wall: float
    values: Mapping[str, float]

    @property
    def progress(self) -> dict[str, int]:
        """The other counters of the run, for trackers that draw a metric over another one."""
        return {
            "progress/epoch": self.epoch,
            "progress/update": self.update,
            "progress/samples": self.samples,
        }


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as a tracker sees it when tracking starts.

    Args:
        name: The name of the run: as given, or of its directory, or "run".
        config: Settings of the run, under dotted keys.
        tags: The tags that the run was given.
        step: The step after which the run goes on; 0 for a run that starts. Rows of later steps
            follow.
        epoch: The number of epochs that are complete.
        folder: The run's directory, if it has one.
        memory: What the tracker noted about this run; it may change it, to numbers and texts. With
            a run directory, a resumed run has it again.

    >>> from loopwright.trackers import TrackedRun
    >>> TrackedRun("first", config={"optimizer.lr": 0.1}, step=100).is_resumed
    True
    """

    name: str
    config: Mapping[str, Setting] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    step: int = 0
    epoch: int = 0
    folder: Path | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def is_resumed(self) -> bool:
        """Whether the run has trained before."""
        return self.step > 0 or self.epoch > 0

    def keep_written(self, step: int) -> None:
        """Note, in `start`, that the tracker has rows up to this step only, since a kill has lost
        later ones."""
        for kind, last in self.memory.get("written", {}).items():
            self.memory["written"][kind] = min(last, step)


class Tracker(Protocol):
    """An object that a run is sent to: pass `Track(tracker)` as a callback.

    The methods are called one after another on a thread of their own, never in the way of training.
    An exception in one of them is logged once; training continues.

    >>> from loopwright.trackers import Track
    >>> class Printing:
    ...     def start(self, run):
    ...         print("run", run.name, dict(run.config))
    ...
    ...     def log(self, rows):
    ...         for row in rows:
    ...             print(row.step, dict(row.values))
    ...
    ...     def log_media(self, media):
    ...         print(media.step, media.name, media.kind)
    ...
    ...     def finish(self, state, reason):
    ...         print(state)
    >>> callback = Track(Printing())
    """

    def start(self, run: TrackedRun) -> None:
        """Begin, or go on with, the run."""

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Write metrics, in the order of their steps."""

    def log_media(self, media: Media) -> None:
        """Write images, a histogram, a text or a table."""

    def finish(self, state: EndState, reason: str | None) -> None:
        """Write what is left; `state` says how the run ended, and `reason` why, where that is
        known."""


def numbered(media: Media, images: Images) -> Iterator[tuple[str, bytes, str]]:
    """Each image with a name of its own and its caption, for trackers that have one image under a
    name."""
    first = media.position + 1
    is_only = len(images.files) == 1 == first
    for at, (file, caption) in enumerate(zip(images.files, images.captions, strict=True)):
        yield (media.name if is_only else f"{media.name}/{first + at}"), file, caption


def converted(package: Any, content: Histogram | Table) -> Any:
    """A histogram or a table as wandb has it, and Trackio, which has the classes of wandb."""
    if isinstance(content, Histogram):
        return package.Histogram(np_histogram=(list(content.counts), list(content.edges)))
    rows = [list(row) for row in content.rows]
    return package.Table(columns=list(content.columns), data=rows)


def converted_image(package: Any, file: bytes, caption: str) -> Any:
    """An image as wandb and Trackio have it."""
    image = import_module("PIL.Image").open(BytesIO(file))
    return package.Image(image, caption=caption or None)


def free_path(path: Path) -> Path:
    """The path, with a number at its end where there is something already: `run`, `run-2`,
    `run-3`."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found

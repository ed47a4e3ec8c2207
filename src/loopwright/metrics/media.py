"""What a run logs besides numbers: images, histograms, texts and tables, with their place in the
run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

MediaKind: TypeAlias = Literal["image", "histogram", "text", "table"]
Cell: TypeAlias = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Images:
    """One or several images of one name and step, as PNG files, each with a caption that may be
    empty."""

    files: tuple[bytes, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between edges; there is one edge more than there are counts."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Media:
    """An item that `trainer.log_image` and its siblings log, and where it belongs in the run.

    `on_media` of callbacks gets it; the recorder and the trackers write it.
    """

    name: str
    content: Images | Histogram | Table | str
    update: int
    step: int
    epoch: int
    samples: int
    seconds: float  # of training
    wall: float  # seconds since 1970
    position: int = 0  # of its first image among the items of this name and step

    @property
    def kind(self) -> MediaKind:
        """The kind of the content."""
        if isinstance(self.content, str):
            return "text"
        kinds: dict[type, MediaKind] = {Images: "image", Histogram: "histogram", Table: "table"}
        return kinds[type(self.content)]

"""Curves at the resolution of a screen, and all values as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import LoopwrightError
from ..run.curves import MetricCurve
from ..run.schema import AXES, Level
from .answers import Refusal, plain, to_json
from .folder import RunsFolder, Stamp, open_metrics, stamp_of

LEVELS: tuple[Level, ...] = ("step", "epoch")
MAX_CURVES = 2_000
MAX_KEPT = 400  # texts of curves, of about 60 KB each
DIGITS = 10  # of the numbers of thinned curves; exact values keep all of theirs


@dataclass(frozen=True, slots=True)
class CurveWindow:
    """The part of curves that is asked for."""

    x: str = "step"
    first: float | None = None
    last: float | None = None
    points: int = 1000


class CurveAnswers:
    """Answers of /api/curves."""

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self._text = lru_cache(MAX_KEPT)(self._read_text)

    def answer(self, runs: Sequence[str], names: Sequence[str], window: CurveWindow) -> str:
        """The curves of some metrics of some runs, as JSON; what cannot be read is listed beside
        them."""
        if not runs or not names:
            raise Refusal(
                400, "Name at least one run and one metric: /api/curves?run=first&name=loss"
            )
        if len(runs) * len(names) > MAX_CURVES:
            raise Refusal(
                400,
                f"At most {MAX_CURVES} curves at a time: {len(runs)} runs with {len(names)} "
                "metrics.",
            )
        texts: list[str] = []
        cursors: dict[str, str] = {}
        missing: list[dict[str, str]] = []
        for run in dict.fromkeys(runs):
            try:
                path = self.folder.readable(run)
                stamp = stamp_of(path)
                with open_metrics(path) as metrics:
                    cursors[run] = str(metrics.cursor())
                    known = {level: metrics.names_of(level) for level in LEVELS}
                for name in dict.fromkeys(names):
                    levels = [level for level in LEVELS if name in known[level]]
                    texts += [self._text(run, path, stamp, name, level, window) for level in levels]
                    if not levels:
                        problem = f"The run has no values of {name!r}."
                        missing.append({"run": run, "name": name, "error": problem})
            except (Refusal, LoopwrightError, OSError) as error:
                missing += [{"run": run, "name": name, "error": str(error)} for name in names]
        head = to_json(plain({"x": window.x, "first": window.first, "last": window.last}))[:-1]
        tail = f'"cursors":{to_json(cursors)},"missing":{to_json(plain(missing))}'
        return f'{head},"curves":[{",".join(texts)}],{tail}}}'

    def _read_text(
        self, run: str, path: Path, stamp: Stamp, name: str, level: Level, window: CurveWindow
    ) -> str:
        """A curve as JSON; a run that changes has another stamp."""
        with open_metrics(path) as metrics:
            curve = metrics.curve(
                name,
                level=level,
                x=window.x,
                first=window.first,
                last=window.last,
                points=window.points,
            )
        answer = curve_json(curve)
        answer["columns"]["x"] = curve.places
        return to_json({"run": run, "x": curve.x, **answer})


def curve_json(curve: MetricCurve) -> dict[str, Any]:
    """A curve without its places; of exact values, only the values."""
    columns = curve.columns()
    if curve.is_exact:
        every = 1
        shown = {"mean": columns["mean"]}
    else:
        every = max(curve.every, 2)
        shown = {name: rounded(columns[name]) for name in ("mean", "min", "max")}
        shown |= {"count": curve.count, "nonfinite": curve.nonfinite}
    return {
        "name": curve.name,
        "level": curve.level,
        "rows": curve.total,
        "every": every,
        "columns": shown,
        "odd": odd_values(curve) if curve.is_exact else {},
    }


def rounded(values: Sequence[float | None]) -> list[float | None]:
    """Numbers with as many digits as a picture needs."""
    return [None if value is None else float(f"{value:.{DIGITS}g}") for value in values]


def odd_values(curve: MetricCurve) -> dict[str, str]:
    """Which values are not finite numbers: "nan", "inf" or "-inf" by index."""
    return {str(at): str(value) for at, value in enumerate(curve.mean) if not math.isfinite(value)}


HEADER = ("run", "name", "level", *AXES, "value")


def csv_lines(folder: RunsFolder, runs: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """All values of some metrics of some runs as CSV, in parts; what a run does not know is empty.

    Every run is looked at before the first part is given, so that an error comes before it.
    """
    asked = {}
    for run in runs:
        path = folder.readable(run)
        with open_metrics(path) as metrics:
            known = metrics.names()
            asked[run, path] = [name for name in dict.fromkeys(names or known) if name in known]
    yield _csv([HEADER])
    for (run, path), found in asked.items():
        with open_metrics(path) as metrics:
            for name, level in product(found, LEVELS):
                columns = metrics.columns(name, level)
                values = [repr(value) for value in columns["value"]]
                places = zip(*(columns[axis] for axis in AXES), values, strict=True)
                yield _csv([(run, name, level, *row) for row in places])  # None is empty in CSV


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()

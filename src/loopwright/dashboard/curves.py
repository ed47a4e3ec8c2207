"""Curves at the resolution of a screen, and all values as CSV."""

from __future__ import annotations

import csv
import io
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from ..errors import LoopwrightError
from ..run.metrics_view import MetricsView
from ..run.schema import AXES
from .answers import Refusal, plain, to_json
from .folder import RunsFolder, stamp_of

if TYPE_CHECKING:
    from ..run.curves import Curve

Level = Literal["step", "epoch"]
LEVELS: tuple[Level, ...] = ("step", "epoch")
MAX_CURVES = 2_000
CACHE_CHARACTERS = 64_000_000
DIGITS = 9  # of the numbers of thinned curves; exact values keep all of theirs


@dataclass(frozen=True, slots=True)
class CurveWindow:
    """The part of curves that is asked for."""

    x: str = "step"
    first: float | None = None
    last: float | None = None
    points: int = 1000
    levels: tuple[Level, ...] = LEVELS


class CurveCache:
    """Texts of curves, the latest used first to stay; a run that changes has other keys."""

    def __init__(self, most: int = CACHE_CHARACTERS) -> None:
        self._texts: OrderedDict[object, str] = OrderedDict()
        self._most = most
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: object) -> str | None:
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
            return text

    def put(self, key: object, text: str) -> None:
        with self._lock:
            self._size += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while self._size > self._most and self._texts:
                self._size -= len(self._texts.popitem(last=False)[1])


class CurveAnswers:
    """Answers of /api/curves."""

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self.cache = CurveCache()

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
                cursors[run] = self._add_run(run, names, window, texts, missing)
            except (Refusal, LoopwrightError, OSError) as error:
                missing += [{"run": run, "name": name, "error": str(error)} for name in names]
        head = to_json(plain({"x": window.x, "first": window.first, "last": window.last}))[:-1]
        tail = f'"cursors":{to_json(cursors)},"missing":{to_json(plain(missing))}'
        return f'{head},"curves":[{",".join(texts)}],{tail}}}'

    def _add_run(
        self,
        run: str,
        names: Sequence[str],
        window: CurveWindow,
        texts: list[str],
        missing: list[dict[str, str]],
    ) -> str:
        path = self.folder.path_of(run)
        stamp = stamp_of(path)
        with self.folder.metrics(path) as metrics:
            cursor = str(metrics.cursor())
            known: dict[Level, set[str]] = {
                "step": set(metrics.step_names()),
                "epoch": set(metrics.epoch_names),
            }
            for name in dict.fromkeys(names):
                levels = [level for level in window.levels if name in known[level]]
                for level in levels:
                    key = (run, stamp, name, level, window)
                    text = self.cache.get(key)
                    if text is None:
                        text = to_json(plain_curve(run, read_curve(metrics, name, level, window)))
                        self.cache.put(key, text)
                    texts.append(text)
                if not levels:
                    missing.append(
                        {"run": run, "name": name, "error": f"The run has no values of {name!r}."}
                    )
        return cursor


def parse_levels(text: str) -> tuple[Level, ...]:
    """The level that a query names; both where it names none."""
    found = tuple(level for level in LEVELS if text in ("", level))
    if not found:
        raise Refusal(400, f"level={text[:40]!r}: use step or epoch.")
    return found


def read_curve(metrics: MetricsView, name: str, level: Level, window: CurveWindow) -> Curve:
    """One curve of a run."""
    if level == "epoch":
        return metrics.epoch_curve(name, x=window.x, first=window.first, last=window.last)
    return metrics.curve(
        name, x=window.x, first=window.first, last=window.last, points=window.points
    )


def plain_curve(run: str, curve: Curve) -> dict[str, Any]:
    """A curve as JSON has it; of exact values, only the places and the values."""
    head = {"run": run, "name": curve.name, "level": curve.level, "x": curve.x, "rows": curve.total}
    columns = curve.columns()
    columns["x"] = [_short(value) for value in columns["x"]]
    if is_exact(curve):
        exact = {"x": columns["x"], "mean": columns["mean"]}
        return {**head, "every": 1, "columns": exact, "odd": odd_values(curve)}
    rough = {name: [rounded(value) for value in columns[name]] for name in ("mean", "min", "max")}
    return {**head, "every": max(curve.every, 2), "columns": {**columns, **rough}}


def is_exact(curve: Curve) -> bool:
    """Whether every column is one value; `every` is an average, which may be 1 where some columns
    are not."""
    return all(count == 1 for count in curve.count)


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """A number with as many digits as a picture needs."""
    return value if value is None or isinstance(value, int) else float(f"{value:.{digits}g}")


def _short(value: float | None) -> float | None:
    return int(value) if value is not None and value.is_integer() else value


def odd_values(curve: Curve) -> dict[str, str]:
    """Which values are not finite numbers: "nan", "inf" or "-inf" by index."""
    return {str(at): str(value) for at, value in enumerate(curve.mean) if not math.isfinite(value)}


HEADER = ("run", "name", "level", *AXES, "value")
ROWS_AT_ONCE = 5_000


def csv_lines(folder: RunsFolder, runs: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """All values of some metrics of some runs as CSV, in parts; what a run does not know is empty.

    Every run is looked at before the first part is given, so that an error comes before it.
    """
    paths = {run: folder.readable(run) for run in runs}
    asked = {}
    for run, path in paths.items():
        with folder.metrics(path) as metrics:
            known = metrics.names()
            asked[run] = [name for name in dict.fromkeys(names or known) if name in known]
    yield _csv([HEADER])
    for run, path in paths.items():
        with folder.metrics(path) as metrics:
            for name, level in product(asked[run], LEVELS):
                columns = metrics.columns(name, level)
                values = [repr(value) for value in columns["value"]]
                places = zip(*(columns[axis] for axis in AXES), values, strict=True)
                rows = [(run, name, level, *row) for row in places]  # None is empty in CSV
                for at in range(0, len(rows), ROWS_AT_ONCE):
                    yield _csv(rows[at : at + ROWS_AT_ONCE])


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()

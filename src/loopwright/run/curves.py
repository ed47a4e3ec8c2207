"""Curves of metrics at the resolution of a screen, out of values and summaries, with no spike
lost."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from .schema import AXES, CLOCK_AT, LEVELS, File, Level, id_of

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
CurveColumns: TypeAlias = dict[str, Array]
Bounds: TypeAlias = tuple[float | None, float | None]
BUCKETS = ("key", "first", "last", "count", "nonfinite", "min", "max", "total")
MERGED: dict[str, np.ufunc] = {  # how columns become one; others are added
    "min": np.fmin,
    "max": np.fmax,
    "first": np.minimum,
    "last": np.maximum,
}


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """Columns of a metric along an axis; a column stands for one value or, where there are many,
    for several.

    A mean is that of the finite values of a column, and NaN where there are none; `min` and `max`
    are those of all values but NaN.
    """

    name: str
    level: Level
    x: str  # step, update, epoch, samples, seconds, wall, or the name of another metric
    every: int  # how many values a column stands for, on average
    total: int  # number of values in the range
    unplaced: int  # number of those whose place along the axis is not known, which have no column
    places: list[float]
    mean: list[float]
    min: list[float]
    max: list[float]
    count: list[int]
    nonfinite: list[int]

    @property
    def is_exact(self) -> bool:
        """Whether every column is one value; `every` is an average, which may be 1 where some
        columns are not."""
        return all(count == 1 for count in self.count)

    def columns(self) -> dict[str, list[Any]]:
        """The columns for JSON: None stands for NaN and infinite numbers, which `nonfinite`
        counts."""
        floats = {"x": self.places, "mean": self.mean, "min": self.min, "max": self.max}
        found: dict[str, list[Any]] = {"count": self.count, "nonfinite": self.nonfinite}
        for name, column in floats.items():
            found[name] = [value if isfinite(value) else None for value in column]
        return found


def step_curve(
    file: File,
    name: str,
    x: str,
    bounds: Bounds,
    points: int,
    *,
    after: int | None = None,
) -> MetricCurve:
    """The curve of a metric of steps between two places along the axis, both included, or after a
    step."""
    key = id_of(file, name)
    ends = (f"(SELECT {end}(step) FROM step_values WHERE name = ?1)" for end in ("min", "max"))
    first, last = file.execute(f"SELECT {', '.join(ends)}", (key,)).fetchone()
    if first is None:
        first, last = 0, -1
    if after is not None:
        first = max(first, after + 1)
    if x not in AXES:
        columns = _read_against(file, key, id_of(file, x), (first, last), bounds, points)
        return _curve(name, "step", x, columns)
    first, last = _steps_between(file, key, x, bounds, first, last)
    columns = _read(file, key, first, last, points)
    columns["x"] = columns["update"]
    if x != "update" or np.isnan(columns["update"]).any():
        columns["x"] = _places(file, x, (columns["first"] + columns["last"]) / 2)
    # a column of several values lies between the bounds, as far as it can
    is_kept = _is_within(columns["x"], bounds) | (columns["count"] > 1)
    return _curve(name, "step", x, _chosen(columns, is_kept))


def epoch_curve(
    file: File, name: str, x: str, bounds: Bounds, *, after: int | None = None
) -> MetricCurve:
    """The curve of a metric of epochs, every value."""
    own = {"epoch": "v.epoch", "update": 'v."update"'}
    place = own.get(x, f"c.{x}") if x in AXES else "o.value"
    rows = file.execute(
        f'SELECT v.epoch, v.value, v."update", {place} FROM epoch_values v '
        "LEFT JOIN epoch_clock c ON c.epoch = v.epoch "
        "LEFT JOIN epoch_values o ON o.epoch = v.epoch AND o.name = ? "
        "WHERE v.name = ? AND v.epoch > ? ORDER BY v.epoch",
        (id_of(file, x), id_of(file, name), -(2**62) if after is None else after),
    ).fetchall()
    epochs, values, updates, places = np.array(rows, float).reshape(-1, 4).T
    columns = _of_values(epochs, values, updates) | {"x": places}
    return _curve(name, "epoch", x, _chosen(columns, _is_within(places, bounds)))


# Values and summaries


def _read(
    file: File, key: object, first: int, last: int, points: int, *, like: object = None
) -> CurveColumns:
    """Every value from a step to another, where they (or those of the metric `like`) are few enough,
    else columns of several values."""
    points = max(points, 1)
    values = "SELECT 1 FROM step_values WHERE name = ? AND step BETWEEN ? AND ? LIMIT ?"
    asked = (key if like is None else like, first, last, points + 1)
    (count,) = file.execute(f"SELECT count(*) FROM ({values})", asked).fetchone()
    if count <= points:
        return _values(file, key, first, last)
    width = -(-(last - first + 1) // points)
    fitting = [level for level in LEVELS if 8**level <= width]
    columns = _pieces(file, key, first, last, max(fitting, default=0))
    return _merge(columns, (columns["key"] - first) // width)


def _read_against(
    file: File, key: object, other: object, steps: tuple[int, int], bounds: Bounds, points: int
) -> CurveColumns:
    """The columns of a metric at the means of another one in the same steps."""
    ours = _read(file, key, *steps, points)
    theirs = _read(file, other, *steps, points, like=key)
    _, mine, its = np.intersect1d(
        ours["key"], theirs["key"], assume_unique=True, return_indices=True
    )
    theirs = _chosen(theirs, its)
    columns = _chosen(ours, mine) | {"x": _mean(theirs)}
    if bounds == (None, None):
        return columns
    low, high = bounds
    is_near = _is_within(theirs["max"], (low, None)) & _is_within(theirs["min"], (None, high))
    near = _chosen(columns, is_near)
    first = int(near["first"].min(initial=steps[1]))
    last = int(near["last"].max(initial=steps[0]))
    if 2 * (last - first) < steps[1] - steps[0]:  # once more, at the resolution of fewer steps
        return _read_against(file, key, other, (first, last), bounds, points)
    return _chosen(columns, _is_within(columns["x"], bounds))


def _pieces(file: File, key: object, first: int, last: int, level: int) -> CurveColumns:
    """Summaries of a level and, where its buckets reach beyond the range, of the levels below it;
    in order."""
    if level == 0 or first > last:
        return _values(file, key, first, last)
    size = 8**level
    # the buckets that lie within the range, without `end`
    start = -(-first // size)
    end = (last + 1) // size
    if start >= end:
        return _pieces(file, key, first, last, level - 1)
    parts = [
        _pieces(file, key, first, start * size - 1, level - 1),
        _buckets(file, key, start, end - 1, level),
        _pieces(file, key, end * size, last, level - 1),
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _buckets(file: File, key: object, first: int, last: int, level: int) -> CurveColumns:
    query = (
        "SELECT bucket, first_step, last_step, count, nonfinite, min, max, total FROM summaries "
        "WHERE name = ? AND level = ? AND bucket BETWEEN ? AND ? ORDER BY bucket"
    )
    rows = file.execute(query, (key, level, first, last)).fetchall()
    table = np.array(rows, float).reshape(-1, len(BUCKETS)).T
    columns: CurveColumns = dict(zip(BUCKETS, table, strict=True))
    columns["key"] = columns["key"] * 8**level
    columns["update"] = np.full(len(rows), np.nan)
    return columns


def _values(file: File, key: object, first: int, last: int) -> CurveColumns:
    query = (
        'SELECT step, value, "update" FROM step_values WHERE name = ? AND step BETWEEN ? AND '
        "? ORDER BY step"
    )
    rows = file.execute(query, (key, first, last)).fetchall()
    return _of_values(*np.array(rows, float).reshape(-1, 3).T)


def _of_values(places: Array, values: Array, updates: Array) -> CurveColumns:
    """Columns of one value each."""
    is_odd = ~np.isfinite(values)
    return {
        "key": places,
        "first": places,
        "last": places,
        "update": updates,
        "count": np.ones(len(places)),
        "nonfinite": is_odd.astype(float),
        "min": values,
        "max": values,
        "total": np.where(is_odd, 0.0, values),
    }


def _merge(columns: CurveColumns, groups: Array) -> CurveColumns:
    """One column for each group of neighbours."""
    if not len(groups):
        return columns
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    sizes = np.diff(starts, append=len(groups))
    merged = {}
    for name, column in columns.items():
        merged[name] = MERGED.get(name, np.add).reduceat(column, starts)
    return merged | {"key": groups[starts], "update": merged["update"] / sizes}


def _chosen(columns: CurveColumns, which: Array) -> CurveColumns:
    return {name: column[which] for name, column in columns.items()}


def _is_within(places: Array, bounds: Bounds) -> Array:
    """Which places lie between two, both included; all, and those that are not known, without
    bounds."""
    first, last = bounds
    found = np.full(len(places), True)
    if first is not None:
        found &= places >= first
    if last is not None:
        found &= places <= last
    return found


def _curve(name: str, level: Level, x: str, columns: CurveColumns) -> MetricCurve:
    total = int(columns["count"].sum())
    columns = _chosen(columns, ~np.isnan(columns["x"]))
    counts = columns["count"].astype(int).tolist()
    placed = sum(counts)
    return MetricCurve(
        name=name,
        level=level,
        x=x,
        every=max(round(placed / len(counts)), 1) if counts else 1,
        total=total,
        unplaced=total - placed,
        places=columns["x"].tolist(),
        mean=_mean(columns).tolist(),
        min=columns["min"].tolist(),
        max=columns["max"].tolist(),
        count=counts,
        nonfinite=columns["nonfinite"].astype(int).tolist(),
    )


def _mean(columns: CurveColumns) -> Array:
    """The mean of the finite values of each column; a single value as it is."""
    finite = columns["count"] - columns["nonfinite"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(finite > 0, columns["total"] / finite, np.nan)
    is_single = columns["count"] == 1
    return np.where(is_single, columns["min"], np.clip(mean, columns["min"], columns["max"]))


# Axes


def _places(file: File, axis: str, steps: Array) -> Array:
    """The places of steps along an axis of the clock; NaN where they are not known."""
    if axis == "step" or not len(steps):
        return steps
    if axis == "epoch" and len(ends := _epoch_ends(file)):
        return np.interp(steps, ends[:, 0], ends[:, 1])
    query = f'SELECT "{axis}" FROM ({CLOCK_AT})'
    rows = file.execute(query, (json.dumps(steps.tolist()),)).fetchall()
    return np.array(rows, float).reshape(-1)


def _epoch_ends(file: File) -> Array:
    """The last step of each epoch and its number, after those of the beginning; the epoch that goes
    on is taken to be as long as the one before."""
    query = "SELECT step, epoch FROM epoch_clock WHERE step IS NOT NULL ORDER BY epoch"
    rows = [(0, 0), *file.execute(query)]
    if len(rows) == 1:
        return np.empty((0, 2))
    (before, _), (last, epoch) = rows[-2:]
    return np.array([*rows, (last + max(last - before, 1), epoch + 1)], float)


def _steps_between(
    file: File, key: object, axis: str, bounds: Bounds, first: int, last: int
) -> tuple[int, int]:
    """The first and the last step, among those of a metric, that lie between two places."""

    def place(step: int) -> float:
        if axis == "update":  # several steps may be of one update, which the values note themselves
            query = (
                'SELECT "update" FROM step_values WHERE name = ? AND step <= ? '
                "ORDER BY step DESC LIMIT 1"
            )
            return float(file.execute(query, (key, step)).fetchone()[0])
        return float(_places(file, axis, np.array([step]))[0])

    low, high = bounds
    steps = range(first, last + 1)
    start = 0 if low is None else bisect_left(steps, low, key=place)
    end = len(steps) if high is None else bisect_right(steps, high, key=place)
    return first + start, first + end - 1


# Values for a comparison


def read_between(
    file: File, place: Level, bounds: tuple[int, int]
) -> dict[str, tuple[Array, Array]]:
    """The places and the values, bit for bit, of all metrics that have any within the bounds, the
    last excluded."""
    rows = f"FROM {place}_values WHERE name = ? AND {place} >= ? AND {place} < ?"
    found = {}
    for key, name in file.execute("SELECT id, name FROM names").fetchall():
        asked = (key, *bounds)
        pairs = file.execute(f"SELECT {place}, ifnull(value, 0.0) {rows} ORDER BY {place}", asked)
        # no list of a million pairs in between
        numbers = np.fromiter(chain.from_iterable(pairs), float)
        if len(numbers):
            places = numbers[::2].astype(np.int64)
            values = numbers[1::2].copy()
            query = f"SELECT {place}, exact {rows} AND exact IS NOT NULL"
            for at, exact in file.execute(query, asked):
                values[np.searchsorted(places, at)] = np.frombuffer(exact, ">f8")[0]
            found[str(name)] = (places, values)
    return found

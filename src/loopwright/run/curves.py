"""Curves of metrics at the resolution of a screen, out of values and summaries, with no spike
lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .schema import AXES, CLOCK_AT, LEVELS, has_summaries, id_of

if TYPE_CHECKING:
    import sqlite3

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
CurveColumns: TypeAlias = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Curve:
    """Columns of a metric along an axis; a column stands for one value or, where there are many,
    for several.

    A mean is that of the finite values of a column, and NaN where there are none; `min` and `max`
    are those of all values but NaN.
    """

    name: str
    level: Literal["step", "epoch"]
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

    def columns(self) -> dict[str, list[Any]]:
        """The columns for JSON: None stands for NaN and infinite numbers, which `nonfinite`
        counts."""
        floats = {"x": self.places, "mean": self.mean, "min": self.min, "max": self.max}
        found: dict[str, list[Any]] = {
            name: [value if isfinite(value) else None for value in column]
            for name, column in floats.items()
        }
        return found | {"count": self.count, "nonfinite": self.nonfinite}


def step_curve(
    connection: sqlite3.Connection,
    name: str,
    x: str,
    bounds: tuple[float | None, float | None],
    points: int,
    *,
    after: int | None = None,
) -> Curve:
    """The curve of a metric of steps between two places along the axis, both included, or after a
    step."""
    key = id_of(connection, name)
    other = None if x in AXES else id_of(connection, x)
    axis = Axis(connection, "step" if other is not None else x)
    ends = first_and_last_step(connection, key)
    ends = ends if after is None else (max(ends[0], after + 1), ends[1])
    if other is None:
        columns = StepRange.within(
            connection, ends, axis.steps_between(*bounds, ends, key), points
        ).read(key)
        return _curve(name, "step", x, axis.place(columns))
    columns = StepRange.within(connection, ends, ends, points).read_against(key, other)
    if bounds != (None, None):
        near = _within(_within(columns, (bounds[0], None), "x_max"), (None, bounds[1]), "x_min")
        columns = _within(near, bounds)
        if len(near["key"]):  # once more, at the resolution of the steps that are left
            steps = int(near["first"].min()), int(near["last"].max())
            columns = _within(
                StepRange.within(connection, ends, steps, points).read_against(key, other), bounds
            )
    return _curve(name, "step", x, columns)


def epoch_curve(
    connection: sqlite3.Connection,
    name: str,
    x: str,
    bounds: tuple[float | None, float | None],
    *,
    after: int | None = None,
) -> Curve:
    """The curve of a metric of epochs, every value."""
    if x in AXES:
        place = "v.epoch" if x == "epoch" else 'v."update"' if x == "update" else f"c.{x}"
        columns = f'v.epoch, v.value, {place}, v."update"'
        query = f"SELECT {columns} FROM epoch_values v LEFT JOIN epoch_clock c ON c.epoch = v.epoch"
        values: tuple[object, ...] = (id_of(connection, name),)
    else:
        query = (
            "SELECT v.epoch, v.value, o.value, 0 FROM epoch_values v JOIN epoch_values o ON "
            "o.epoch = v.epoch"
        )
        query = f"{query} AND o.name = ?"
        values = (id_of(connection, x), id_of(connection, name))
    start = -(2**62) if after is None else after
    rows = connection.execute(
        f"{query} WHERE v.name = ? AND v.epoch > ? ORDER BY v.epoch", (*values, start)
    ).fetchall()
    epochs, numbers, places, updates = np.array(rows, float).reshape(-1, 4).T
    if x == "step" and np.isnan(places).any():
        places = np.where(np.isnan(places), _steps_of_updates(connection, updates), places)
    return _curve(name, "epoch", x, _within(_of_values(epochs, numbers) | {"x": places}, bounds))


def _steps_of_updates(connection: sqlite3.Connection, updates: Array) -> Array:
    """The last logged steps up to some updates, for epochs of an earlier version, which noted no
    step; else NaN."""
    one_metric = "name = (SELECT name FROM step_values LIMIT 1)"
    rows = connection.execute(
        f'SELECT step, "update" FROM step_values WHERE {one_metric} ORDER BY step'
    ).fetchall()
    steps, ends = np.array([(np.nan, -np.inf), *rows], float).T
    found: Array = steps[np.searchsorted(ends, updates, side="right") - 1]
    return found


def first_and_last_step(connection: sqlite3.Connection, key: object) -> tuple[int, int]:
    """The first and the last step of a metric; an empty range where it has no values."""
    ends = (f"(SELECT {end}(step) FROM step_values WHERE name = ?1)" for end in ("min", "max"))
    first, last = connection.execute(f"SELECT {', '.join(ends)}", (key,)).fetchone()
    return (0, -1) if first is None else (first, last)


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps of a file, and how many of them a column may stand for."""

    connection: sqlite3.Connection
    first: int
    last: int
    points: int

    @classmethod
    def within(
        cls,
        connection: sqlite3.Connection,
        ends: tuple[int, int],
        wanted: tuple[int, int],
        points: int,
    ) -> StepRange:
        """The steps that are wanted, as far as there are any."""
        return cls(connection, max(ends[0], wanted[0]), min(ends[1], wanted[1]), max(points, 1))

    @property
    def width(self) -> int:
        """The steps that a column stands for, where it stands for several."""
        return max(-(-(self.last - self.first + 1) // self.points), 1)

    def read(self, key: object, *, of: object = None) -> CurveColumns:
        """Every value, where they (or those of another metric) are few enough, else columns of
        several values."""
        if self._fits(key if of is None else of):
            return _values(self.connection, key, self.first, self.last)
        return self._merged(key)

    def read_against(self, key: object, other: object) -> CurveColumns:
        """The columns of a metric at the means of another one in the same steps."""
        ours = self.read(key)
        theirs = self.read(other, of=key)
        _, mine, their = np.intersect1d(
            ours["key"], theirs["key"], assume_unique=True, return_indices=True
        )
        theirs = {name: column[their] for name, column in theirs.items()}
        joined = {name: column[mine] for name, column in ours.items()}
        return joined | {"x": _mean(theirs), "x_min": theirs["min"], "x_max": theirs["max"]}

    def _fits(self, key: object) -> bool:
        values = "SELECT 1 FROM step_values WHERE name = ? AND step BETWEEN ? AND ? LIMIT ?"
        bounds = (key, self.first, self.last, self.points + 1)
        return bool(
            self.connection.execute(f"SELECT count(*) FROM ({values})", bounds).fetchone()[0]
            <= self.points
        )

    def _merged(self, key: object) -> CurveColumns:
        fitting = (
            level for level in LEVELS if 8**level <= self.width and has_summaries(self.connection)
        )
        columns = _pieces(self.connection, key, self.first, self.last, max(fitting, default=0))
        return _merge(columns, (columns["key"] - self.first) // self.width)


def _pieces(
    connection: sqlite3.Connection, key: object, first: int, last: int, level: int
) -> CurveColumns:
    """Summaries of a level and, where its buckets reach beyond the range, of the levels below it;
    in order."""
    if level == 0 or first > last:
        return _values(connection, key, first, last)
    size = 8**level
    # the buckets that lie within the range, without `end`
    start = -(-first // size)
    end = (last + 1) // size
    if start >= end:
        return _pieces(connection, key, first, last, level - 1)
    parts = [
        _pieces(connection, key, first, start * size - 1, level - 1),
        _buckets(connection, key, start, end - 1, level),
        _pieces(connection, key, end * size, last, level - 1),
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _buckets(
    connection: sqlite3.Connection, key: object, first: int, last: int, level: int
) -> CurveColumns:
    names = ("key", "first", "last", "count", "nonfinite", "min", "max", "total")
    query = (
        "SELECT bucket, first_step, last_step, count, nonfinite, min, max, total FROM summaries "
        "WHERE name = ? AND level = ? AND bucket BETWEEN ? AND ? ORDER BY bucket"
    )
    rows = connection.execute(query, (key, level, first, last)).fetchall()
    table = np.array(rows, float).reshape(-1, len(names)).T
    columns: CurveColumns = dict(zip(names, table, strict=True))
    columns["key"] = columns["key"] * 8**level
    columns["update"] = np.full(len(rows), np.nan)
    return columns


def _values(connection: sqlite3.Connection, key: object, first: int, last: int) -> CurveColumns:
    query = (
        'SELECT step, value, "update" FROM step_values WHERE name = ? AND step BETWEEN ? AND '
        "? ORDER BY step"
    )
    rows = connection.execute(query, (key, first, last)).fetchall()
    steps, values, updates = np.array(rows, float).reshape(-1, 3).T
    return _of_values(steps, values) | {"update": updates}


def read_between(
    connection: sqlite3.Connection, table: str, place: str, bounds: tuple[int, int]
) -> dict[str, tuple[Array, Array]]:
    """The places and the values, bit for bit, of all metrics that have any within the bounds, the
    last excluded."""
    rows = f"FROM {table} WHERE name = ? AND {place} >= ? AND {place} < ?"
    found = {}
    for key, name in connection.execute("SELECT id, name FROM names").fetchall():
        pairs = connection.execute(
            f"SELECT {place}, ifnull(value, 0.0) {rows} ORDER BY {place}", (key, *bounds)
        )
        # no list of a million pairs in between
        numbers = np.fromiter(chain.from_iterable(pairs), float)
        if len(numbers):
            places = numbers[::2].astype(np.int64)
            values = numbers[1::2].copy()
            for at, exact in connection.execute(
                f"SELECT {place}, exact {rows} AND exact IS NOT NULL", (key, *bounds)
            ):
                values[np.searchsorted(places, at)] = np.frombuffer(exact, ">f8")[0]
            found[str(name)] = (places, values)
    return found


def _of_values(places: Array, values: Array) -> CurveColumns:
    """Columns of one value each."""
    ones = np.ones(len(places))
    odd = ~np.isfinite(values)
    finite = np.where(odd, 0.0, values)
    columns = {
        "key": places,
        "first": places,
        "last": places,
        "count": ones,
        "nonfinite": odd.astype(float),
    }
    return columns | {
        "min": values,
        "max": values,
        "total": finite,
        "update": np.full(len(places), np.nan),
    }


def _merge(columns: CurveColumns, groups: Array) -> CurveColumns:
    """One column for each group of neighbours."""
    if not len(groups):
        return columns
    starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    reduce: dict[str, Any] = {
        "min": np.fmin,
        "max": np.fmax,
        "first": np.minimum,
        "last": np.maximum,
    }
    merged = {
        name: reduce.get(name, np.add).reduceat(column, starts) for name, column in columns.items()
    }
    sizes = np.diff(np.concatenate((starts, [len(groups)])))
    return merged | {"key": groups[starts], "update": merged["update"] / sizes}


def _within(
    columns: CurveColumns, bounds: tuple[float | None, float | None], place: str = "x"
) -> CurveColumns:
    if bounds == (None, None):
        return columns
    first = -np.inf if bounds[0] is None else bounds[0]
    last = np.inf if bounds[1] is None else bounds[1]
    kept = (columns[place] >= first) & (columns[place] <= last)
    return {name: column[kept] for name, column in columns.items()}


def _curve(name: str, level: Literal["step", "epoch"], x: str, columns: CurveColumns) -> Curve:
    total = int(columns["count"].sum())
    known = ~np.isnan(columns["x"])
    unplaced = int(columns["count"][~known].sum())
    columns = {key: column[known] for key, column in columns.items()}
    mean = _mean(columns)
    number = len(mean)
    return Curve(
        name,
        level,
        x,
        max(round((total - unplaced) / number), 1) if number else 1,
        total,
        unplaced,
        columns["x"].tolist(),
        mean.tolist(),
        columns["min"].tolist(),
        columns["max"].tolist(),
        columns["count"].astype(int).tolist(),
        columns["nonfinite"].astype(int).tolist(),
    )


def _mean(columns: CurveColumns) -> Array:
    """The mean of the finite values of each column; a single value as it is."""
    finite = columns["count"] - columns["nonfinite"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(finite > 0, columns["total"] / finite, np.nan)
    return np.where(
        columns["count"] == 1, columns["min"], np.clip(mean, columns["min"], columns["max"])
    )


@dataclass(frozen=True)
class Axis:
    """One of `AXES`, as a file knows it."""

    connection: sqlite3.Connection
    name: str

    def place(self, columns: dict[str, Array]) -> dict[str, Array]:
        """Columns with the place of the middle of their steps; NaN where it is not known."""
        if self.name == "update" and not np.isnan(columns["update"]).any():
            return columns | {"x": columns["update"]}
        return columns | {"x": self.of_steps((columns["first"] + columns["last"]) / 2)}

    def of_steps(self, steps: Array) -> Array:
        """The places of steps."""
        if self.name == "step" or not len(steps):
            return steps
        if self.name == "epoch" and len(self._epoch_ends) > 1:
            return self._of_epochs(steps)
        query = f'SELECT "{self.name}" FROM ({CLOCK_AT})'
        rows = self.connection.execute(query, (json.dumps(steps.tolist()),)).fetchall()
        return np.array(rows, float).reshape(-1)

    def _of_epochs(self, steps: Array) -> Array:
        """The epochs so far at steps, with the part of the epoch that a step is in."""
        ends = self._epoch_ends
        places = np.interp(steps, ends[:, 0], ends[:, 1])
        (last, epoch) = ends[-1]
        before = ends[-2]
        # the epoch that goes on is taken to be as long as the one before
        length = max(last - before[0], 1.0)
        return np.where(steps > last, epoch + np.minimum((steps - last) / length, 1.0), places)

    @cached_property
    def _epoch_ends(self) -> Array:
        """The last step of each epoch and its number, after those of the beginning."""
        rows = self.connection.execute(
            "SELECT step, epoch FROM epoch_clock WHERE step IS NOT NULL ORDER BY epoch"
        )
        return np.array([(0, 0), *rows], float)

    def steps_between(
        self, first: float | None, last: float | None, ends: tuple[int, int], key: object
    ) -> tuple[int, int]:
        """The first and the last step of a metric between two places, both included."""
        if self.name == "step":
            start = ends[0] if first is None else ceil(max(first, ends[0]))
            return start, ends[1] if last is None else floor(min(last, ends[1]))
        start = ends[0] if first is None else self._first_step(ends, first, key, is_above=False)
        end = ends[1] if last is None else self._first_step(ends, last, key, is_above=True) - 1
        return start, end

    def _first_step(
        self, ends: tuple[int, int], place: float, key: object, *, is_above: bool
    ) -> int:
        """The first step that is at or above a place, found by bisection: an axis grows along the
        steps."""
        low = ends[0]
        high = ends[1] + 1
        while low < high:
            middle = (low + high) // 2
            found = self._of_step(middle, key)
            if found > place or (found == place and not is_above):
                high = middle
            else:
                low = middle + 1
        return low

    def _of_step(self, step: int, key: object) -> float:
        """The place of a step; that of the first value from there on, where values have one of
        their own."""
        if self.name == "update":
            query = (
                'SELECT "update" FROM step_values WHERE name = ? AND step >= ? ORDER BY step '
                "LIMIT 1"
            )
            row = self.connection.execute(query, (key, step)).fetchone()
            return inf if row is None else float(row[0])
        place = float(self.of_steps(np.array([float(step)]))[0])
        return -inf if place != place else place  # before the clock began

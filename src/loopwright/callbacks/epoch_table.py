"""What is shown of a run: the moment of it, and the table of its epochs, in columns and in
lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..metrics.best import by_importance
from .time_left import clock_text

GAP = "  "
NUMBER = 9  # the width of a number on a terminal: -0.001234, 1.234e-05
SHORT_NUMBER = 6  # and the least width in lines, where names take most of the space
HEADING = 16  # longer names are broken at their signs
FACTS = ("time", "samples/s", "left")


class Bar(NamedTuple):
    """One bar of the display: what it counts, how far that is, and the seconds that it still
    takes."""

    label: str
    done: float
    total: float | None
    left: float | None


class Moment(NamedTuple):
    """What a live display shows at one moment."""

    epoch: Bar
    evaluation: Bar | None
    run: Bar | None  # None where no limit says how long it is
    speed: float | None
    metrics: Mapping[str, float]
    means: Mapping[str, float]  # of the losses, over the epoch so far


class EpochFacts(NamedTuple):
    """An epoch that has ended, as it is shown."""

    number: str  # "2/10"
    metrics: Mapping[str, float]
    seconds: float
    speed: float | None
    left: float | None
    eval_keys: Collection[str] = ()

    def text(self, column: str) -> str:
        """The text of a column: a metric, or one of `FACTS`."""
        if column in self.metrics:
            return number_text(self.metrics[column])
        if column == "time":
            return time_text(self.seconds)
        if column == "samples/s":
            return "" if self.speed is None else f"{self.speed:,.0f}"
        if column == "left":
            return "" if self.left is None else clock_text(self.left)
        return "-"


class EpochTable:
    """The lines of one epoch after another, in columns that stay where they are.

    Args:
        columns: The metrics to show, also by patterns as "eval_*", and "time", "samples/s" or
            "left". Without them: on a terminal as many metrics as fit, the most important ones
            first; in lines all.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self.columns = columns
        self.hidden: list[str] = []  # metrics of the last row for which the terminal had no space
        self.has_rows = False
        self._heading: list[str] = []
        self._widths: dict[str, int] = {}

    def rows(self, epoch: EpochFacts, width: int) -> list[str]:
        """The line of an epoch on a terminal of this width; before it the heading, where columns
        are new."""
        self.has_rows = True
        columns = self._chosen(epoch, FACTS[:2])
        if self.columns is None:
            columns = self._fitting(columns, epoch, width)
        heads = {name: _broken(name) for name in columns}
        widths = {name: max(_number_width(name), *map(len, heads[name])) for name in columns}
        number = max(len(epoch.number), len("epoch"))
        cells = [
            epoch.number.rjust(number),
            *(epoch.text(name).rjust(widths[name]) for name in columns),
        ]
        line = GAP.join(cells).rstrip()
        if columns == self._heading:
            return [line]
        self._heading = columns
        return [*_heading(number, heads, widths), line]

    def line(self, epoch: EpochFacts) -> str:
        """The line of an epoch with the name before each value."""
        self.has_rows = True
        parts = [f"epoch {_padded(epoch.number)}"]
        for name in self._chosen(epoch, FACTS):
            text = epoch.text(name)
            is_metric = name in epoch.metrics or name not in FACTS
            width = max(self._widths.get(name, SHORT_NUMBER if is_metric else 0), len(text))
            self._widths[name] = width
            if is_metric:
                parts.append(f"{name} {text.ljust(width)}")
            elif text:
                parts.append(text.rjust(width) + ("" if name == "time" else f" {name}"))
        return GAP.join(parts).rstrip()

    def names(self, epoch: EpochFacts) -> list[str]:
        """The names of all columns of an epoch, whatever the space."""
        return self._chosen(epoch, FACTS[:2])

    def unknown(self, epoch: EpochFacts) -> list[str]:
        """Columns that were asked for by name and are no metrics of this epoch."""
        return [
            name
            for name in self.columns or ()
            if not _is_pattern(name) and name not in (*epoch.metrics, *FACTS)
        ]

    def _chosen(self, epoch: EpochFacts, facts: Sequence[str]) -> list[str]:
        if self.columns is None:
            return [*epoch.metrics, *(name for name in facts if name not in epoch.metrics)]
        found: list[str] = []
        for column in self.columns:
            matching = [name for name in epoch.metrics if fnmatchcase(name, column)]
            found += matching if _is_pattern(column) and column not in epoch.metrics else [column]
        return list(dict.fromkeys(found))

    def _fitting(self, columns: list[str], epoch: EpochFacts, width: int) -> list[str]:
        """As many columns as fit: of metrics the most important ones, of an evaluation and of
        training in turn."""
        facts = [name for name in columns if name not in epoch.metrics]
        important = by_importance(
            (name for name in columns if name in epoch.metrics), epoch.eval_keys
        )
        if "loss" in important:
            important.insert(1, important.pop(important.index("loss")))
        space = (
            width
            - max(len(epoch.number), len("epoch"))
            - sum(len(GAP) + _number_width(name) for name in facts)
        )
        fitting = set(facts)
        for name in important:
            space -= len(GAP) + max(_number_width(name), *map(len, _broken(name)))
            if space < 0:
                break
            fitting.add(name)
        self.hidden = [name for name in columns if name not in fitting]
        return [name for name in columns if name in fitting]


def line_of(moment: Moment) -> str:
    """The line inside a long epoch, or a long evaluation: the same facts as in the bars."""
    number = moment.epoch.label.removeprefix("epoch ")
    parts = [f"epoch {_padded(number)}"]
    if moment.evaluation is None:
        parts += [f"step {count_text(moment.epoch)}", *metric_texts(moment.metrics, moment.means)]
        parts += [] if moment.speed is None else [f"{moment.speed:,.0f} samples/s"]
    else:
        parts += [f"{moment.evaluation.label} batch {count_text(moment.evaluation)}"]
    now = moment.evaluation or moment.epoch
    parts += [] if now.left is None else [f"{clock_text(now.left)} left"]
    parts += (
        []
        if moment.run is None or moment.run.left is None
        else [f"run {clock_text(moment.run.left)} left"]
    )
    return GAP.join(parts)


def count_text(bar: Bar) -> str:
    """ " 3/12" of a bar, or "3" where its length is not known."""
    if bar.total is None:
        return f"{bar.done:.0f}"
    total = f"{bar.total:.0f}"
    return f"{bar.done:.0f}".rjust(len(total)) + f"/{total}"


def metric_texts(metrics: Mapping[str, float], means: Mapping[str, float]) -> list[str]:
    """Each metric of a step; of losses, the mean over the epoch so far as well."""
    texts = []
    for name, value in metrics.items():
        mean = f" (mean {number_text(means[name])})" if name in means else ""
        texts.append(f"{name} {number_text(value)}{mean}")
    return texts


def number_text(value: float) -> str:
    """A number with four digits; a large whole number with all of them.

    >>> number_text(0.25), number_text(1.0), number_text(16384.0), number_text(0.0000125)
    ('0.2500', '1.000', '16384', '1.250e-05')
    """
    is_whole = 1e3 <= abs(value) < 1e8 and value == int(value)
    return f"{value:.0f}" if is_whole else f"{value:#.4g}".rstrip(".")


def time_text(seconds: float) -> str:
    """The seconds of an epoch: "0.4 s", and from a minute on as a clock."""
    return f"{seconds:.1f} s" if seconds < 59.95 else clock_text(seconds)


def _padded(number: str) -> str:
    """ "2/10" as " 2/10": as wide as the last one will be."""
    total = number.partition("/")[2]
    return number.rjust(2 * len(total) + 1) if total else number


def _number_width(name: str) -> int:
    return {"time": 7, "samples/s": 9, "left": 8}.get(name, NUMBER)


def _broken(name: str) -> list[str]:
    """A long name in lines of at most `HEADING` characters, broken after its signs where
    possible."""
    lines = [""]
    for part in re.findall(r"[^_/.\-\s]*[_/.\-\s]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > HEADING:
            lines.append("")
        lines[-1] += part
        while len(lines[-1]) > HEADING:
            lines[-1:] = [lines[-1][:HEADING], lines[-1][HEADING:]]
    return lines


def _heading(number: int, heads: Mapping[str, list[str]], widths: Mapping[str, int]) -> list[str]:
    height = max((len(lines) for lines in heads.values()), default=1)
    columns = [
        ["epoch".rjust(number)],
        *([line.rjust(widths[name]) for line in lines] for name, lines in heads.items()),
    ]
    filled = [[" " * len(lines[0])] * (height - len(lines)) + lines for lines in columns]
    return [GAP.join(cells).rstrip() for cells in zip(*filled, strict=True)]


def _is_pattern(column: str) -> bool:
    return any(sign in column for sign in "*?[")

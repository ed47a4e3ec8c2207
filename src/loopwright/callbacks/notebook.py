"""The live display in a notebook: one output of the cell that changes, with the bars and the table
of epochs."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from ..metrics.html import bar_html, line_html, table_html
from .epoch_table import GAP, count_text, line_of, metric_texts
from .time_left import clock_text

if TYPE_CHECKING:
    from .epoch_table import Bar, EpochFacts, EpochTable, Moment

UPDATE_SECONDS = 0.5  # between two messages to the browser


class NotebookDisplay:
    """An HTML table of the epochs under the bars of this moment; a text for front ends that show no
    HTML."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._moment: Moment | None = None
        self._columns: list[str] = []
        self._epochs: list[EpochFacts] = []
        self._lines: list[str] = []
        self._sent = 0.0

    def show(self, moment: Moment, *, draw: bool = True) -> None:
        """Show the bars of this moment, unless the last message was sent just now."""
        self._moment = moment
        if draw and monotonic() - self._sent >= UPDATE_SECONDS:
            self._send()

    def add_epoch(self, epoch: EpochFacts, table: EpochTable) -> None:
        """Add a row to the table."""
        self._columns = list(dict.fromkeys((*self._columns, *table.names(epoch))))
        self._epochs.append(epoch)
        self._lines.append(table.line(epoch))
        if monotonic() - self._sent >= UPDATE_SECONDS:
            self._send()

    def say(self, line: str) -> None:
        """Print a line under the display."""
        print(line, flush=True)

    def close(self) -> None:
        """Remove the bars; the table stays."""
        if self._epochs:
            self._moment = None
        self._send()

    def _send(self) -> None:
        from IPython.display import display

        self._sent = monotonic()
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, raw=True)

    def _html(self) -> str:
        parts = [] if self._moment is None else _bars(self._moment)
        if self._epochs:
            rows = [[epoch.number, *map(epoch.text, self._columns)] for epoch in self._epochs]
            parts.append(table_html(["epoch", *self._columns], rows))
        return "".join(parts)

    def _text(self) -> str:
        return "\n".join([*self._lines, *([] if self._moment is None else [line_of(self._moment)])])


def _bars(moment: Moment) -> list[str]:
    bars = [bar for bar in (moment.epoch, moment.evaluation, moment.run) if bar is not None]
    speed = [] if moment.speed is None else [f"{moment.speed:,.0f} samples/s"]
    texts = [*metric_texts(moment.metrics, moment.means), *speed]
    return [*map(_bar, bars), *([line_html(GAP.join(texts))] if texts else [])]


def _bar(bar: Bar) -> str:
    fraction = bar.done / bar.total if bar.total else None
    count = f"{bar.done:.0%}" if bar.label == "run" else count_text(bar)
    left = "" if bar.left is None else f"{GAP}{clock_text(bar.left)} left"
    return bar_html(bar.label, fraction, f"{count}{left}")

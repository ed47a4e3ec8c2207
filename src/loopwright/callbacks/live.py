"""The live displays: bars of the epoch, its evaluation and the run, and a table of the epochs."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from ..metrics.html import bar_html, line_html, table_html
from .progress import GAP, line_of

if TYPE_CHECKING:
    from .progress import Bar, EpochFacts, EpochTable, Moment

ROWS_SECONDS = 0.2  # between two prints of rows
UPDATE_SECONDS = 0.5  # between two messages to the browser


class TerminalDisplay(RenderHook):
    """Bars in the last lines of the terminal; text that is printed meanwhile appears above them.

    To print a line takes a millisecond, since the bars are drawn again below it. The rows of epochs
    that are shorter than `ROWS_SECONDS` are therefore printed together; before any other text, so
    that the order of lines is the same.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._rows: list[Text] = []  # that are not printed yet
        self._printed = 0.0
        self._console.push_render_hook(self)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, moment: Moment, *, draw: bool = True) -> None:
        """Draw the bars of this moment, or have them drawn with the next line."""
        self._live.update(_Drawing(moment), refresh=draw)

    def add_epoch(self, epoch: EpochFacts, table: EpochTable) -> None:
        """Print an epoch above the bars."""
        *heading, row = table.rows(epoch, self._console.width)
        text = Text("".join(f"{line}\n" for line in heading), style="bold")
        self._rows.append(text.append(Text(row, style="not bold")))
        if monotonic() - self._printed >= ROWS_SECONDS:
            self._print_rows()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        self._live.update("")  # which is drawn once more, to be removed
        self._live.stop()
        self._console.pop_render_hook()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Print the rows that wait, before rich prints something else."""
        if self._rows:
            self._print_rows()
        return renderables

    def _print_rows(self) -> None:
        rows = Text("\n").join(self._rows)
        self._rows = []
        self._console.print(rows, soft_wrap=True)
        self._printed = monotonic()


class _Drawing:
    """The bars of a moment under each other, and its metrics below; a `Table` of rich takes ten
    times as long."""

    def __init__(self, moment: Moment) -> None:
        self._bars = moment.bars
        self._facts = GAP.join(moment.facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [(bar.label, bar.position, bar.time_left) for bar in self._bars]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        width = max(options.max_width - sum(widths) - 3 * len(GAP), 1)
        for bar, (label, count, left) in zip(self._bars, texts, strict=True):
            yield Segment(label + " " * (widths[0] - cell_len(label)) + GAP)
            drawn = (
                ProgressBar(bar.total, bar.done, width).__rich_console__(console, options)
                if bar.total
                else ()
            )
            segments = [segment for segment in drawn if isinstance(segment, Segment)]
            yield from segments
            space = " " * (width - sum(segment.cell_length for segment in segments))
            yield Segment(f"{space}{GAP}{count:>{widths[1]}}{GAP}{left:<{widths[2]}}")
            yield Segment.line()
        if self._facts:
            yield Text(self._facts, no_wrap=True, overflow="ellipsis")


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
        parts = [] if self._moment is None else _bars_html(self._moment)
        if self._epochs:
            rows = [[epoch.number, *map(epoch.text, self._columns)] for epoch in self._epochs]
            parts.append(table_html(["epoch", *self._columns], rows))
        return "".join(parts)

    def _text(self) -> str:
        return "\n".join([*self._lines, *([] if self._moment is None else [line_of(self._moment)])])


def _bars_html(moment: Moment) -> list[str]:
    facts = [line_html(GAP.join(moment.facts))] if moment.facts else []
    return [*map(_bar_html, moment.bars), *facts]


def _bar_html(bar: Bar) -> str:
    fraction = bar.done / bar.total if bar.total else None
    return bar_html(bar.label, fraction, GAP.join(filter(None, (bar.position, bar.time_left))))

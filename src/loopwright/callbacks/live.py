"""The live displays: bars of the epoch, its evaluation and the run, and a table of the epochs."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from ..metrics.html import bar_html, line_html, table_html
from .progress import GAP, line_of

if TYPE_CHECKING:
    from .progress import EpochRow, EpochTable, Moment

UPDATE_SECONDS = 0.5  # between two messages to the browser


class TerminalDisplay:
    """Bars in the last lines of the terminal; text that is printed meanwhile appears above them."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, moment: Moment, *, draw: bool = True) -> None:
        """Draw the bars of this moment, or have them drawn with the next line."""
        self._live.update(_Drawing(moment), refresh=draw)

    def add_epoch(self, row: EpochRow, table: EpochTable) -> None:
        """Print an epoch above the bars."""
        *heading, line = table.rows(row, self._console.width)
        text = Text("".join(f"{line}\n" for line in heading), style="bold")
        self._console.print(text.append(Text(line, style="not bold")), soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        self._live.update("")  # which is drawn once more, to be removed
        self._live.stop()


class _Drawing:
    """The bars of a moment under each other, and its metrics below; a `Table` of rich takes ten
    times as long."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = self._moment.bars
        labels = max(cell_len(bar.label) for bar in bars)
        positions = max(len(bar.position) for bar in bars)
        times = max(len(bar.time_left) for bar in bars)
        width = max(options.max_width - labels - positions - times - 3 * len(GAP), 1)
        for bar in bars:
            yield Segment(bar.label + " " * (labels - cell_len(bar.label)) + GAP)
            space = width
            if bar.fraction is not None:
                drawn = ProgressBar(1.0, bar.fraction, width).__rich_console__(console, options)
                for segment in drawn:
                    assert isinstance(segment, Segment)
                    space -= segment.cell_length
                    yield segment
            end = f"{GAP}{bar.position:>{positions}}{GAP}{bar.time_left:<{times}}"
            yield Segment(" " * space + end)
            yield Segment.line()
        if self._moment.facts:
            yield Text(GAP.join(self._moment.facts), no_wrap=True, overflow="ellipsis")


class NotebookDisplay:
    """An HTML table of the epochs under the bars of this moment; a text for front ends that show no
    HTML."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._moment: Moment | None = None
        self._columns: list[str] = []
        self._rows: list[EpochRow] = []
        self._lines: list[str] = []
        self._sent = 0.0

    def show(self, moment: Moment, *, draw: bool = True) -> None:
        """Show the bars of this moment, unless the last message was sent just now."""
        self._moment = moment
        if draw and monotonic() - self._sent >= UPDATE_SECONDS:
            self._send()

    def add_epoch(self, row: EpochRow, table: EpochTable) -> None:
        """Add a row to the table."""
        self._columns = list(dict.fromkeys((*self._columns, *table.names(row))))
        self._rows.append(row)
        self._lines.append(table.line(row))
        if monotonic() - self._sent >= UPDATE_SECONDS:
            self._send()

    def say(self, line: str) -> None:
        """Print a line under the display."""
        print(line, flush=True)

    def close(self) -> None:
        """Remove the bars; the table stays."""
        if self._rows:
            self._moment = None
        self._send()

    def _send(self) -> None:
        from IPython.display import display

        self._sent = monotonic()
        html: list[str] = []
        lines = list(self._lines)
        if self._moment is not None:
            for bar in self._moment.bars:
                html.append(bar_html(bar.label, bar.fraction, bar.position + GAP + bar.time_left))
            html.append(line_html(GAP.join(self._moment.facts)))
            lines.append(line_of(self._moment))
        if self._rows:
            cells = [[row.number, *map(row.text, self._columns)] for row in self._rows]
            html.append(table_html(["epoch", *self._columns], cells))
        content = {"text/html": "".join(html), "text/plain": "\n".join(lines)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, raw=True)

"""The live display on a terminal: bars of the epoch, its evaluation and the run; epochs as a table
above them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from .epoch_table import GAP, count_text, metric_texts
from .time_left import clock_text

if TYPE_CHECKING:
    from .epoch_table import Bar, EpochFacts, EpochTable, Moment

ROWS_SECONDS = 0.2  # between two prints of rows


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
        self._bars = [
            bar for bar in (moment.epoch, moment.evaluation, moment.run) if bar is not None
        ]
        speed = [] if moment.speed is None else [f"{moment.speed:,.0f} samples/s"]
        self._facts = GAP.join([*metric_texts(moment.metrics, moment.means), *speed])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [_texts(bar) for bar in self._bars]
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


def _texts(bar: Bar) -> tuple[str, str, str]:
    """The label of a bar, how far it is, and the time that is left."""
    is_share = bar.total == 1.0 and bar.label == "run"
    count = f"{bar.done:.0%}" if is_share else count_text(bar)
    return bar.label, count, "" if bar.left is None else f"{clock_text(bar.left)} left"

"""The live display on a terminal: bars of the epoch, its evaluation and the run; epochs as a table above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .epoch_table import GAP, count_text, metric_texts
from .time_left import clock_text

if TYPE_CHECKING:
    from .epoch_table import Bar, EpochFacts, EpochTable, Moment


class TerminalDisplay:
    """Bars in the last lines of the terminal; text that is printed meanwhile appears above them."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, moment: Moment, *, draw: bool = True) -> None:
        """Draw the bars of this moment, or have them drawn with the next line."""
        bars = Table.grid(padding=(0, 2, 0, 0), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(no_wrap=True, justify="right")
        bars.add_column(no_wrap=True)
        for bar in (moment.epoch, moment.evaluation, moment.run):
            if bar is not None:
                bars.add_row(*_cells(bar))
        speed = [] if moment.speed is None else [f"{moment.speed:,.0f} samples/s"]
        texts = GAP.join([*metric_texts(moment.metrics, moment.means), *speed])
        facts = Text(texts, no_wrap=True, overflow="ellipsis")
        self._live.update(Group(bars, facts) if texts else bars, refresh=draw)

    def add_epoch(self, epoch: EpochFacts, table: EpochTable) -> None:
        """Print an epoch above the bars."""
        *heading, row = table.rows(epoch, self._console.width)
        text = Text("".join(f"{line}\n" for line in heading), style="bold")
        self._console.print(text.append(Text(row, style="not bold")), soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        self._live.stop()


def _cells(bar: Bar) -> tuple[Text, ProgressBar | Text, Text, Text]:
    is_share = bar.total == 1.0 and bar.label == "run"
    count = f"{bar.done:.0%}" if is_share else count_text(bar)
    drawn = ProgressBar(total=bar.total, completed=bar.done) if bar.total else Text("")
    left = "" if bar.left is None else f"{clock_text(bar.left)} left"
    return Text(bar.label), drawn, Text(count), Text(left)

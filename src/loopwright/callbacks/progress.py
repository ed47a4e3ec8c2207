"""The display of progress while training: live on a terminal or in a notebook, plain lines
elsewhere, or nothing."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from ..callback import Callback
from ..errors import ConfigurationError, is_notebook
from ..metrics.progress import counted

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.rows import StepRow
    from .epoch_table import Bar, EpochFacts, EpochTable, Moment
    from .time_left import TimeLeft

STYLES = ("auto", "bar", "lines", "silent")
REFRESH_SECONDS = 0.2  # between two drawings, of a millisecond each


class LiveDisplay(Protocol):
    """What shows moments in one place that changes, and epochs above it."""

    def show(self, moment: Moment, *, draw: bool = True) -> None: ...

    def add_epoch(self, epoch: EpochFacts, table: EpochTable) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class ProgressDisplay(Callback):
    """Shows the epoch, its evaluation and the run with the time they still take, the metrics, and a
    table of epochs.

    It acts at log points and a few times a second in evaluations, so it costs a step nothing. On a
    terminal and in a notebook the display is live, elsewhere it consists of lines.

    Args:
        style: "bar", "lines", "silent", or "auto": live on a terminal and in a notebook, and lines
            elsewhere.
        interval: Seconds between two lines inside an epoch or an evaluation.
        columns: The columns of the table of epochs: names of metrics, patterns such as "eval_*",
            "time", "samples/s" and "left". Default: on a terminal as many metrics as fit, the most
            important ones first; in lines all.

    >>> from loopwright.callbacks import ProgressDisplay
    >>> ProgressDisplay("lines", interval=60.0, columns=["loss", "eval_*", "time"]).style
    'lines'
    """

    precedence = 4  # last, when the other callbacks have logged, recorded and saved

    def __init__(
        self, style: str = "auto", *, interval: float = 10.0, columns: Sequence[str] | None = None
    ) -> None:
        if style not in STYLES:
            raise ConfigurationError(f"progress={style!r}: use one of {', '.join(STYLES)}.")
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
            raise ConfigurationError(
                f"ProgressDisplay(columns={columns!r}): use a list of names, such as ['loss', "
                "'eval_*']."
            )
        self.style = style
        self.interval = interval
        self.columns = None if columns is None else list(columns)
        self._style = style
        self._live: LiveDisplay | None = None
        self._table: EpochTable | None = None
        self._left: TimeLeft | None = None
        self._row: Mapping[str, float] = {}
        self._evaluation: tuple[str, Stream, int, float] | None = (
            None  # label, data, batches, when it began
        )
        self._spoken = 0.0
        self._shown = 0.0
        self._epoch_began = 0.0
        self._call_began = 0.0
        self._is_resumed = False  # in the middle of the `train` call

    # Events

    def on_train_start(self, trainer: Trainer) -> None:
        self._spoken = self._call_began = self._epoch_began = monotonic()
        self._row = {}
        self._evaluation = None
        self._is_resumed = trainer.progress.update > trainer.progress.call_update
        self._style = _resolved(self.style)
        if self._style == "silent":
            return
        from .epoch_table import EpochTable
        from .time_left import TimeLeft

        self._table, self._left = EpochTable(self.columns), TimeLeft(trainer)
        if self._style == "bar":
            self._live = _open_live()
            self._refresh(trainer, force=True)

    def on_epoch_start(self, trainer: Trainer) -> None:
        was_long = monotonic() - self._epoch_began >= REFRESH_SECONDS
        self._epoch_began = monotonic()
        if self._left is not None:
            self._left.begin_epoch(trainer)
        self._refresh(trainer, force=was_long)

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        self._row = rows[-1]
        if self._left is not None:
            self._left.log(trainer)
        self._refresh(trainer)
        self._line_now(trainer)

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        if self._style != "silent" and self._left is not None:
            self._evaluation = (_name_of(trainer, data), data, 0, monotonic())
            self._refresh(trainer)

    def on_eval_log(self, trainer: Trainer, data: Stream, num_batches: int) -> None:
        if self._evaluation is None:
            return
        label, _, _, began = self._evaluation
        is_over = not trainer.run.phases
        self._evaluation = None if is_over else (label, data, num_batches, began)
        self._refresh(trainer, force=is_over and monotonic() - began >= REFRESH_SECONDS)
        if not is_over:
            self._line_now(trainer)

    def on_rewind(self, trainer: Trainer) -> None:
        if self._left is not None:
            self._left.begin_epoch(trainer)
        self._refresh(trainer, force=True)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        if self._left is None or self._table is None:
            return
        self._left.end_epoch(trainer)
        self._evaluation = None
        epoch = self._ended(trainer, metrics)
        is_first = not self._table.has_rows
        if self._live is not None:
            if not trainer.run.is_done():
                # the next epoch, with the row of this one
                self._live.show(self._moment(trainer), draw=False)
            self._live.add_epoch(epoch, self._table)
        else:
            self._line(self._table.line(epoch))
        if is_first:
            for line in self._first_notes(epoch):
                self._line(line)

    def on_train_end(self, trainer: Trainer) -> None:
        self._close()  # first, since a line above bars draws them again
        self._show_part(trainer)
        for line in self._last_lines(trainer):
            self._line(line)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._close()

    # What is shown

    def _epoch_number(self, trainer: Trainer, ended: bool = False) -> str:
        total = trainer.run.limits.epochs
        return f"{trainer.progress.epoch + (not ended)}" + (
            f"/{total}" if total is not None else ""
        )

    def _moment(self, trainer: Trainer) -> Moment:
        from .epoch_table import Bar, Moment
        from .time_left import done_of

        assert self._left is not None
        evaluation = self._eval_bar()
        done = self._done(trainer, done_of(trainer))
        if done is not None and evaluation is not None:
            done = min(done, 0.99)  # it is not over before its last evaluation
        skipped = trainer.run.updates.num_skipped
        return Moment(
            epoch=self._epoch_bar(trainer),
            evaluation=evaluation,
            run=None
            if done is None
            else Bar("run", done, 1.0, self._left.of_run(trainer, self._evaluated(trainer))),
            speed=self._left.samples_per_second(trainer),
            metrics={**self._row, "skipped_updates": skipped} if skipped else self._row,
            means=_means(trainer),
        )

    def _done(self, trainer: Trainer, done: float | None) -> float | None:
        """The completed fraction of the call, by its nearest limit, the time included."""
        progress = trainer.progress
        limit = trainer.run.limits.seconds
        if limit is None:
            return done
        whole = limit - progress.call_seconds
        by_time = min((progress.seconds - progress.call_seconds) / whole, 1.0) if whole > 0 else 1.0
        return max(by_time, done or 0.0)

    def _epoch_bar(self, trainer: Trainer) -> Bar:
        from .epoch_table import Bar

        assert self._left is not None
        label = f"epoch {self._epoch_number(trainer)}"
        step = trainer.progress.epoch_step
        return Bar(label, step, trainer.run.epoch_length(), self._left.of_epoch(trainer))

    def _eval_bar(self) -> Bar | None:
        from .epoch_table import Bar

        if self._evaluation is None:
            return None
        label, data, done, began = self._evaluation
        total = data.num_batches
        left = (
            (monotonic() - began) * (total - done) / done if total and 0 < done <= total else None
        )
        return Bar(label, done, total, left)

    def _evaluated(self, trainer: Trainer) -> float:
        """The completed fraction of the evaluation at the end of this epoch; 0 in one inside the
        epoch."""
        bar = self._eval_bar()
        is_at_end = trainer.progress.is_exhausted and bar is not None and bar.total
        return bar.done / bar.total if is_at_end and bar is not None and bar.total else 0.0

    def _ended(self, trainer: Trainer, metrics: Mapping[str, float]) -> EpochFacts:
        from .epoch_table import EpochFacts

        assert self._left is not None
        is_over = trainer.run.is_done()
        return EpochFacts(
            self._epoch_number(trainer, ended=True),
            metrics,
            monotonic() - self._epoch_began,
            self._left.samples_per_second(trainer),
            None if is_over else self._left.of_run(trainer),
            trainer.run.directions.eval_keys,
        )

    def _show_part(self, trainer: Trainer) -> None:
        """Show the row of an epoch that a limit has cut short."""
        from .epoch_table import count_text

        progress = trainer.progress
        rows = trainer.history.epochs
        if self._table is None or not progress.in_epoch or len(rows) <= progress.epoch:
            return
        epoch = self._ended(trainer, rows[-1])
        number = f"{self._epoch_number(trainer)} step {count_text(self._epoch_bar(trainer))}"
        self._line(self._table.line(epoch._replace(number=number)))

    def _line_now(self, trainer: Trainer) -> None:
        """Print where the run is, if the last line is long enough ago."""
        from .epoch_table import line_of

        if (
            self._style == "lines"
            and self._left is not None
            and monotonic() - self._spoken >= self.interval
        ):
            self._line(line_of(self._moment(trainer)))

    def _first_notes(self, epoch: EpochFacts) -> list[str]:
        """Lines on columns that are not there, and on metrics that have no column."""
        assert self._table is not None
        lines = []
        for name in self._table.unknown(epoch):
            near = difflib.get_close_matches(name, epoch.metrics, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            lines.append(
                f"ProgressDisplay(columns=...): epoch 1 did not measure {name!r}, so its column "
                f"is empty; available: {', '.join(epoch.metrics)}.{hint}"
            )
        if self._table.hidden:
            first = self._table.hidden[:3]
            others = len(self._table.hidden) - 3
            more = ", ".join(first) + (
                f" and {counted(others, 'more metric')}" if others > 0 else ""
            )
            lines.append(
                f"No space for {more}: choose columns with ProgressDisplay(columns=[...])."
            )
        return lines

    def _last_lines(self, trainer: Trainer) -> list[str]:
        """The lines at the end of a `train` call: how it ended, the best epoch, and the commands to
        look at the run."""
        if self._style == "silent":
            return []
        from .last_lines import last_lines

        return last_lines(trainer, monotonic() - self._call_began, is_resumed=self._is_resumed)

    # Output

    def _refresh(self, trainer: Trainer, *, force: bool = False) -> None:
        if self._live is not None and (force or monotonic() - self._shown >= REFRESH_SECONDS):
            self._live.show(self._moment(trainer))
            self._shown = monotonic()

    def _line(self, text: str) -> None:
        self._spoken = monotonic()
        if self._live is not None:
            self._live.say(text)
        elif self._style != "silent":
            print(text.rstrip(), flush=True)

    def _close(self) -> None:
        self._evaluation = None
        if self._live is not None:
            self._live.close()
            self._live = None


def _resolved(style: str) -> str:
    """The style that "auto" stands for in this program."""
    if style != "auto":
        return style
    is_live = is_notebook() or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    return "bar" if is_live else "lines"


def _open_live() -> LiveDisplay:
    if is_notebook():
        from .notebook import NotebookDisplay

        return NotebookDisplay()
    from .terminal import TerminalDisplay

    return TerminalDisplay()


def _name_of(trainer: Trainer, data: Stream) -> str:
    """The name of evaluation data: the key of a callback that evaluates it, or "eval"."""
    if data is not trainer.run.eval_stream:
        for callback in trainer.run.callbacks:
            for name, stream in callback.eval_streams(
                trainer.run.program._trainer_for(callback)
            ).items():
                if stream is data:
                    return name
    return "eval"


def _means(trainer: Trainer) -> dict[str, float]:
    """The means of the losses over the epoch so far; of several processes, those of this one."""
    meter: Any = trainer.run.meter
    names = {"loss", *meter.losses} & meter.sums.keys()
    return {name: meter.sums[name] / meter.counts[name] for name in names if meter.counts[name]}

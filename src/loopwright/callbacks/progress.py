"""The display of progress while training: live on a terminal or in a notebook, plain lines
elsewhere, or nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..callback import Callback
from ..errors import ConfigurationError, LoopwrightError, is_notebook
from ..metrics.best import by_importance, first_best, headline
from ..text import clock, counted, listed, nearest, number

if TYPE_CHECKING:
    from pathlib import Path

    from ..callback import Trainer
    from ..checkpoint.inspect import CheckpointInfo
    from ..data.open import Stream
    from ..metrics.progress import Progress
    from ..metrics.rows import StepRow
    from .live import NotebookDisplay, TerminalDisplay

STYLES = ("auto", "bar", "lines", "silent")
REFRESH_SECONDS = 0.2  # between two drawings, of a millisecond each
GAP = "  "
RUN = "run"  # the label of its bar
NUMBER = 9  # the width of a number on a terminal: -0.001234, 1.234e-05
SHORT_NUMBER = 6  # and the least width in lines, where names take most of the space
FACTS = ("time", "samples/s", "left")


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
            raise ConfigurationError(
                "progress-style", f"progress={style!r}: use one of {', '.join(STYLES)}."
            )
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
            raise ConfigurationError(
                "progress-columns",
                f"ProgressDisplay(columns={columns!r}): use a list of names, such as ['loss', "
                "'eval_*'].",
            )
        self.style = style
        self.interval = interval
        self.columns = None if columns is None else list(columns)
        self._style = style
        self._live: NotebookDisplay | TerminalDisplay | None = None
        self._table: EpochTable | None = None
        self._left: TimeLeft | None = None
        self._row: Mapping[str, float] = {}
        # label, data, batches so far, when it began
        self._evaluation: tuple[str, Stream, int, float] | None = None
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
        self._table = EpochTable(self.columns)
        self._left = TimeLeft(trainer)
        if self._style == "bar":
            from .live import NotebookDisplay, TerminalDisplay  # which import rich

            self._live = NotebookDisplay() if is_notebook() else TerminalDisplay()
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
        is_over = not trainer.run.metrics.phases
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
        total = trainer.run.call.limits.epochs
        number = trainer.progress.epoch + (not ended)
        return f"{number}" if total is None else f"{number}/{total}"

    def _moment(self, trainer: Trainer) -> Moment:
        assert self._left is not None
        evaluation = self._eval_bar()
        done = self._done(trainer, done_of(trainer))
        if done is not None and evaluation is not None:
            done = min(done, 0.99)  # it is not over before its last evaluation
        run = None
        if done is not None:
            run = Bar(RUN, done, 1.0, self._left.of_run(trainer, self._evaluated(trainer)))
        skipped = trainer.run.updates.num_skipped
        return Moment(
            epoch=self._epoch_bar(trainer),
            evaluation=evaluation,
            run=run,
            speed=self._left.samples_per_second(trainer),
            metrics={**self._row, "skipped_updates": skipped} if skipped else self._row,
            means=_means(trainer),
        )

    def _done(self, trainer: Trainer, done: float | None) -> float | None:
        """The completed fraction of the call, by its nearest limit, the time included."""
        progress = trainer.progress
        limit = trainer.run.call.limits.seconds
        if limit is None:
            return done
        whole = limit - progress.call_seconds
        by_time = min((progress.seconds - progress.call_seconds) / whole, 1.0) if whole > 0 else 1.0
        return max(by_time, done or 0.0)

    def _epoch_bar(self, trainer: Trainer) -> Bar:
        assert self._left is not None
        label = f"epoch {self._epoch_number(trainer)}"
        step = trainer.progress.epoch_step
        return Bar(label, step, trainer.run.epoch_length(), self._left.of_epoch(trainer))

    def _eval_bar(self) -> Bar | None:
        if self._evaluation is None:
            return None
        label, data, done, began = self._evaluation
        total = data.num_batches
        left = None
        if total and 0 < done <= total:
            left = (monotonic() - began) * (total - done) / done
        return Bar(label, done, total, left)

    def _evaluated(self, trainer: Trainer) -> float:
        """The completed fraction of the evaluation at the end of this epoch; 0 in one inside the
        epoch."""
        bar = self._eval_bar()
        if bar is None or not bar.total or not trainer.progress.is_exhausted:
            return 0.0
        return bar.done / bar.total

    def _ended(self, trainer: Trainer, metrics: Mapping[str, float]) -> EpochFacts:
        assert self._left is not None
        is_over = trainer.run.is_done()
        return EpochFacts(
            self._epoch_number(trainer, ended=True),
            metrics,
            monotonic() - self._epoch_began,
            self._left.samples_per_second(trainer),
            None if is_over else self._left.of_run(trainer),
            trainer.run.metrics.directions.eval_keys,
        )

    def _show_part(self, trainer: Trainer) -> None:
        """Show the row of an epoch that a limit has cut short."""
        progress = trainer.progress
        rows = trainer.history.epochs
        if self._table is None or not progress.in_epoch or len(rows) <= progress.epoch:
            return
        epoch = self._ended(trainer, rows[-1])
        number = f"{self._epoch_number(trainer)} step {self._epoch_bar(trainer).position}"
        self._line(self._table.line(epoch._replace(number=number)))

    def _line_now(self, trainer: Trainer) -> None:
        """Print where the run is, if the last line is long enough ago."""
        if (
            self._style == "lines"
            and self._left is not None
            and monotonic() - self._spoken >= self.interval
        ):
            self._line(line_of(self._moment(trainer)))

    def _first_notes(self, epoch: EpochFacts) -> list[str]:
        """Lines on columns that are not there, and on metrics that have no column."""
        assert self._table is not None
        lines = [
            f"ProgressDisplay(columns=...): epoch 1 did not measure {name!r}, so its column is "
            f"empty; {nearest(name, epoch.metrics)}"
            for name in self._table.unknown(epoch)
        ]
        if self._table.hidden:
            hidden = listed(self._table.hidden, most=3)
            lines.append(
                f"No space for {hidden}: choose columns with ProgressDisplay(columns=[...])."
            )
        return lines

    def _last_lines(self, trainer: Trainer) -> list[str]:
        """The lines at the end of a `train` call: how it ended, the best epoch, and the commands to
        look at the run."""
        if self._style == "silent":
            return []
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


def _name_of(trainer: Trainer, data: Stream) -> str:
    """The name of evaluation data: the key of a callback that evaluates it, or "eval"."""
    if data is not trainer.run.data.eval_stream:
        for callback in trainer.run.callbacks:
            given = trainer.run.program._trainer_given_to(callback)
            for name, stream in callback.eval_streams(given).items():
                if stream is data:
                    return name
    return "eval"


def _means(trainer: Trainer) -> dict[str, float]:
    """The means of the losses over the epoch so far; of several processes, those of this one."""
    meter: Any = trainer.run.metrics.meter
    names = {"loss", *meter.losses} & meter.sums.keys()
    return {name: meter.sums[name] / meter.counts[name] for name in names if meter.counts[name]}


# What is shown: a moment of the run, and the table of its epochs, in columns and in lines


class Bar(NamedTuple):
    """One bar of the display: what it counts, how far that is, and the seconds that it still
    takes."""

    label: str
    done: float
    total: float | None
    left: float | None

    @property
    def position(self) -> str:
        """ " 3/12", or "3" where the length is not known; of the run, which has no unit, a share."""
        if self.label == RUN and self.total == 1.0:
            return f"{self.done:.0%}"
        if self.total is None:
            return f"{self.done:.0f}"
        total = f"{self.total:.0f}"
        return f"{self.done:.0f}".rjust(len(total)) + f"/{total}"

    @property
    def time_left(self) -> str:
        return "" if self.left is None else f"{clock(self.left)} left"


class Moment(NamedTuple):
    """What a live display shows at one moment."""

    epoch: Bar
    evaluation: Bar | None
    run: Bar | None  # None where no limit says how long it is
    speed: float | None
    metrics: Mapping[str, float]
    means: Mapping[str, float]  # of the losses, over the epoch so far

    @property
    def bars(self) -> list[Bar]:
        """The bars that there are, from the shortest part of the run to the whole."""
        return [bar for bar in (self.epoch, self.evaluation, self.run) if bar is not None]

    @property
    def facts(self) -> list[str]:
        """Each metric, of losses with the mean over the epoch so far, and the speed."""
        texts = []
        for name, value in self.metrics.items():
            mean = f" (mean {number(self.means[name])})" if name in self.means else ""
            texts.append(f"{name} {number(value)}{mean}")
        return texts if self.speed is None else [*texts, f"{self.speed:,.0f} samples/s"]


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
            return number(self.metrics[column])
        if column == "time":
            return time_text(self.seconds)
        if column == "samples/s":
            return "" if self.speed is None else f"{self.speed:,.0f}"
        if column == "left":
            return "" if self.left is None else clock(self.left)
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
        columns = self.names(epoch)
        if self.columns is None:
            columns = self._fitting(columns, epoch, width)
        widths = [max(len("epoch"), len(epoch.number)), *map(_column_width, columns)]
        lines = [[epoch.number, *map(epoch.text, columns)]]
        if columns != self._heading:
            self._heading = columns
            lines.insert(0, ["epoch", *columns])
        return [GAP.join(map(str.rjust, cells, widths)).rstrip() for cells in lines]

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
            - sum(len(GAP) + _column_width(name) for name in facts)
        )
        fitting = set(facts)
        for name in important:
            space -= len(GAP) + _column_width(name)
            if space < 0:
                break
            fitting.add(name)
        self.hidden = [name for name in columns if name not in fitting]
        return [name for name in columns if name in fitting]


def line_of(moment: Moment) -> str:
    """The line inside a long epoch, or a long evaluation: the same facts as in the bars."""
    parts = [f"epoch {_padded(moment.epoch.label.removeprefix('epoch '))}"]
    now = moment.evaluation or moment.epoch
    if moment.evaluation is None:
        parts += [f"step {now.position}", *moment.facts]
    else:
        parts += [f"{now.label} batch {now.position}"]
    parts += [now.time_left] if now.time_left else []
    if moment.run is not None and moment.run.time_left:
        parts.append(f"{RUN} {moment.run.time_left}")
    return GAP.join(parts)


def time_text(seconds: float) -> str:
    """The seconds of an epoch: "0.4 s", and from a minute on as a clock."""
    return f"{seconds:.1f} s" if seconds < 59.95 else clock(seconds)


def _padded(number: str) -> str:
    """ "2/10" as " 2/10": as wide as the last one will be."""
    total = number.partition("/")[2]
    return number.rjust(2 * len(total) + 1) if total else number


def _column_width(name: str) -> int:
    return max({"time": 7, "left": 8}.get(name, NUMBER), len(name))


def _is_pattern(column: str) -> bool:
    return any(sign in column for sign in "*?[")


# The time that is left


class TimeLeft:
    """Estimates the time that the `train` call and its epoch still take.

    Training and evaluations are estimated apart. Training goes on as fast as since the call began
    in this process, so an earlier process on another machine does not count; compiling and a slow
    first update do not, either. Evaluations at the end of an epoch take as long as those before,
    and come once for each epoch that is left; those inside epochs keep their share of the time.

    Call `log` at log points, `begin_epoch` and `end_epoch` at the ends of epochs.
    """

    def __init__(self, trainer: Trainer) -> None:
        progress = trainer.progress
        self._seconds = progress.seconds
        self._update = progress.update
        self._start = (done_of(trainer) or 0.0, progress.seconds)
        self._warm = self._start  # after the first update
        self._epoch = progress.epoch
        self._epochs_ended_at = progress.seconds  # the training time at the end of the last epoch
        self._evaluated = _evaluated(trainer)
        self._inside = 0.0
        self._at_ends = 0.0
        self.begin_epoch(trainer)

    def begin_epoch(self, trainer: Trainer) -> None:
        """Measure the speed from here on."""
        progress = trainer.progress
        self._first = (progress.epoch_step, progress.sample, progress.seconds)

    def log(self, trainer: Trainer) -> None:
        """Note the evaluations since the last call, which were inside the epoch; leave out a slow
        first update.

        A log point after a single update comes of one that took long: workers start in it, kernels
        are chosen, `torch.compile` compiles. Once there are others, it says nothing of the speed.
        """
        self._inside += _evaluated(trainer) - self._evaluated
        self._evaluated = _evaluated(trainer)
        if trainer.progress.update == self._update + 1:
            self._warm = (done_of(trainer) or 0.0, trainer.progress.seconds)

    def end_epoch(self, trainer: Trainer) -> None:
        """Note the evaluations since the last log point, which were at the end of the epoch."""
        self._at_ends += _evaluated(trainer) - self._evaluated
        self._evaluated = _evaluated(trainer)
        self._epochs_ended_at = trainer.progress.seconds

    def samples_per_second(self, trainer: Trainer) -> float | None:
        """Samples per second of training in this epoch, without evaluations."""
        samples = trainer.progress.sample - self._first[1]
        seconds = trainer.progress.seconds - self._first[2]
        return samples / seconds if seconds > 0 and samples else None

    def of_epoch(self, trainer: Trainer) -> float | None:
        """Seconds of training to the end of the epoch, or to a limit inside it; None where that is
        not known."""
        progress = trainer.progress
        length = trainer.run.epoch_length()
        steps = progress.epoch_step - self._first[0]
        seconds = progress.seconds - self._first[2]
        if length is None or steps <= 0 or seconds <= 0:
            return None
        left = max(length - progress.epoch_step, 0) * seconds / steps
        whole = self._training_left(trainer)
        return left if whole is None else min(left, whole)

    def of_run(self, trainer: Trainer, evaluated: float = 0.0) -> float | None:
        """Seconds to the end of the `train` call, with its evaluations; None where that is not
        known.

        Args:
            trainer: The trainer.
            evaluated: The completed fraction of the evaluation at the end of this epoch.
        """
        training = self._training_left(trainer)
        if training is None:
            return None
        seconds = trainer.progress.seconds - self._seconds
        inside = self._inside / seconds if seconds > 0 else 0.0
        ended = trainer.progress.epoch - self._epoch
        at_ends = self._at_ends / ended if ended > 0 else 0.0
        ends = max(self._ends_left(trainer, training) - evaluated, 0.0)
        return training * (1 + inside) + at_ends * ends

    def _training_left(self, trainer: Trainer) -> float | None:
        progress = trainer.progress
        limits = trainer.run.call.limits
        by_time = None if limits.seconds is None else max(limits.seconds - progress.seconds, 0.0)
        done = done_of(trainer)
        if done is None:
            return by_time
        has_other_limits = limits.updates is not None or limits.samples is not None
        if limits.epochs is not None and not has_other_limits and not _has_length(trainer):
            by_count = self._left_of_epochs(trainer, limits.epochs)
        else:
            first = self._warm if done > self._warm[0] else self._start
            part = done - first[0]
            seconds = progress.seconds - first[1]
            by_count = None if part <= 0 or seconds <= 0 else seconds * (1 - done) / part
        known = [left for left in (by_time, by_count) if left is not None]
        return min(known) if known else None

    def _left_of_epochs(self, trainer: Trainer, epochs: int) -> float | None:
        """The training time of epochs whose length is not known: as long as those before."""
        progress = trainer.progress
        ended = progress.epoch - self._epoch
        if ended <= 0:
            return None
        one = (self._epochs_ended_at - self._seconds) / ended
        return max(
            one * (epochs - progress.epoch) - (progress.seconds - self._epochs_ended_at), 0.0
        )

    def _ends_left(self, trainer: Trainer, training: float) -> int:
        """How many epochs are still to end."""
        progress = trainer.progress
        limits = trainer.run.call.limits
        others = (limits.updates, limits.samples, limits.seconds)
        if limits.epochs is not None and others == (None, None, None):
            return limits.epochs - progress.epoch
        ended = progress.epoch - self._epoch
        one = (self._epochs_ended_at - self._seconds) / ended if ended > 0 else 0.0
        inside = progress.seconds - self._epochs_ended_at
        # the last one may be cut short
        return ceil((training + inside) / one - 1e-6) if one > 0 else 0


def _evaluated(trainer: Trainer) -> float:
    """Seconds of evaluations; the time of compiling comes once, and says nothing of what is to
    come."""
    return trainer.run.metrics.eval_seconds - trainer.run.metrics.compile_seconds


def _has_length(trainer: Trainer) -> bool:
    stream = trainer.run.data.train_stream
    return stream is not None and bool(stream.num_samples or stream.num_batches)


def done_of(trainer: Trainer) -> float | None:
    """Return the completed fraction of the current `train` call, by the nearest limit; None without
    a limit."""
    progress = trainer.progress
    until = trainer.run.call.limits
    parts = []
    if until.epochs is not None:
        epoch = progress.epoch + _inside_epoch(trainer, progress)
        parts.append(_part(epoch, progress.call_epoch, until.epochs))
    if until.updates is not None:
        parts.append(_part(progress.update, progress.call_update, until.updates))
    if until.samples is not None:
        parts.append(_part(progress.sample, progress.call_sample, until.samples))
    return max(parts) if parts else None


def _part(now: float, start: int, limit: int) -> float:
    """The completed fraction of the way from the start of the call to a limit."""
    return min((now - start) / (limit - start), 1.0) if limit > start else 1.0


def _inside_epoch(trainer: Trainer, progress: Progress) -> float:
    """Return the completed fraction of the epoch; 0 for data without a length."""
    stream = trainer.run.data.train_stream
    if stream is None:
        return 0.0
    if stream.num_samples:
        return min(progress.epoch_sample / stream.num_samples, 1.0)
    return min(progress.epoch_step / stream.num_batches, 1.0) if stream.num_batches else 0.0


# How a run ended


def last_lines(trainer: Trainer, seconds: float, *, is_resumed: bool) -> list[str]:
    """Return the lines at the end of a `train` call that took these seconds, in this process if it
    was resumed.

    A call without a run directory that trained one epoch has nothing to add to the line of that
    epoch.
    """
    run = trainer.run
    reason = trainer.stop_reason
    kept = None if run.files.directory is None else _best_kept(run.files.directory.path)
    best = _best(trainer, kept)
    lines = stop_lines(trainer)
    if run.files.directory is None:
        return [*lines, f"Best {best}."] if best is not None and len(trainer.history) > 1 else lines
    if reason is None:
        progress = trainer.progress
        length = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
        time = f"{clock(seconds)}{' since it was resumed' if is_resumed else ''}"
        lines.append(
            f"Finished: {length} in {time}." + (f" Best {best}." if best is not None else "")
        )
    elif best is not None:
        lines.append(f"Best {best}.")
    return [*lines, *_places(run.files.directory.path, kept)]


def stop_lines(trainer: Trainer) -> list[str]:
    """Return the line on why training was stopped; none where it was not."""
    reason = trainer.stop_reason
    return (
        []
        if reason is None
        else [f"Stopped after {counted(trainer.progress.update, 'update')}: {reason}"]
    )


def _best(trainer: Trainer, kept: CheckpointInfo | None) -> str | None:
    """ "eval_loss 0.2667 in epoch 3", of the metric that the run goes by; None where it is not
    known what is better.

    That is the metric of the best kept model, if there is one, as in `RunView.main_metric`.
    """
    directions = trainer.run.metrics.directions
    rows = trainer.history.epochs
    kept_by = kept.metric[:1] if kept is not None and kept.metric else ()
    names = [
        name for name in kept_by or directions.watched if name in trainer.history
    ] or trainer.history.names
    name = headline(names, directions.eval_keys)
    mode = None if name is None else directions.of(name)
    if name is None or mode is None:
        return None
    found = first_best(list(enumerate(rows, start=1)), lambda row: row[1].get(name), mode)
    return None if found is None else f"{name} {number(found[1][name])} in epoch {found[0]}"


def _best_kept(path: Path) -> CheckpointInfo | None:
    from ..run.best import choose

    if any((path / "kept").iterdir()):
        # models by a metric of unknown mode: the run is complete all the same
        with suppress(LoopwrightError):
            return choose(path)
    return None


def _places(path: Path, kept: CheckpointInfo | None) -> list[str]:
    from ..run.directory import shown

    lines = [] if kept is None else [f"Best model: {shown(kept.path)}"]
    run, folder = (shlex.quote(str(shown(place)) or ".") for place in (path, path.parent))
    return [*lines, f"To inspect it: loopwright show {run}, or loopwright ui {folder}"]

"""The display of progress while training: live on a terminal or in a notebook, plain lines
elsewhere, or nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..callback import Callback
from ..errors import ConfigurationError, LoopwrightError, is_notebook
from ..metrics.best import by_importance, first_best, headline
from ..text import clock, counted, listed, number
from .interval import cut_epoch

if TYPE_CHECKING:
    from pathlib import Path

    from ..callback import Trainer
    from ..checkpoint.inspect import CheckpointInfo
    from ..data.open import Stream
    from ..metrics.rows import StepRow
    from .live import NotebookDisplay, TerminalDisplay

STYLES = ("auto", "bar", "lines", "silent")
REFRESH_SECONDS = 0.2  # between two drawings, of a millisecond each
GAP = "  "
NUMBER = 9  # the width of a number on a terminal: -0.001234, 1.234e-05
WIDTHS = {"time": 7, "left": 8}
SHORT_NUMBER = 6  # and the least width in lines, where names take most of the space


class ProgressDisplay(Callback):
    """Shows the epoch, its evaluation and the run with the time they still take, the metrics, and a
    table of epochs.

    It acts at log points and a few times a second in evaluations, so it costs a step nothing. On a
    terminal and in a notebook the display is live, elsewhere it consists of lines.

    Args:
        style: "bar", "lines", "silent", or "auto": live on a terminal and in a notebook, and lines
            elsewhere.
        interval: Seconds between two lines inside an epoch or an evaluation.
        columns: The columns of the table of epochs: names of metrics, "time", "samples/s" and
            "left". Default: on a terminal as many metrics as fit, the most important ones first; in
            lines all.

    >>> from loopwright.callbacks import ProgressDisplay
    >>> ProgressDisplay("lines", interval=60.0, columns=["loss", "eval_loss", "time"]).style
    'lines'
    """

    precedence = 4  # last, when the other callbacks have logged, recorded and saved
    _table: EpochTable
    _left: TimeLeft

    def __init__(
        self, style: str = "auto", *, interval: float = 10.0, columns: Sequence[str] | None = None
    ) -> None:
        if style not in STYLES:
            raise ConfigurationError(
                "progress-style", f"progress={style!r}: use one of {', '.join(STYLES)}."
            )
        self.style = style
        self.interval = interval
        self.columns = columns
        # of the `train` call under way
        self._style = "silent"
        self._live: NotebookDisplay | TerminalDisplay | None = None
        self._row: Mapping[str, float] = {}
        self._evaluation: Evaluation | None = None
        self._spoken = 0.0
        self._shown = 0.0
        self._epoch_began = 0.0
        self._call_began = 0.0
        self._is_resumed = False  # in the middle of the `train` call

    # Events

    def on_train_start(self, trainer: Trainer) -> None:
        now = monotonic()
        self._spoken = now
        self._call_began = now
        self._epoch_began = now
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
        if self._style == "silent":
            return
        was_long = monotonic() - self._epoch_began >= REFRESH_SECONDS
        self._epoch_began = monotonic()
        self._left.begin_epoch(trainer)
        self._refresh(trainer, force=was_long)

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        if self._style == "silent":
            return
        self._row = rows[-1]
        self._refresh(trainer)
        self._line_now(trainer)

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        if self._style != "silent":
            self._evaluation = Evaluation(_name_of(trainer, data), data, 0, monotonic())
            self._refresh(trainer)

    def on_eval_log(self, trainer: Trainer, data: Stream, num_batches: int) -> None:
        if self._evaluation is None:
            return
        label = self._evaluation.label
        began = self._evaluation.began
        is_over = not trainer.run.metrics.phases
        self._evaluation = None if is_over else Evaluation(label, data, num_batches, began)
        self._refresh(trainer, force=is_over and monotonic() - began >= REFRESH_SECONDS)
        if not is_over:
            self._line_now(trainer)

    def on_rewind(self, trainer: Trainer) -> None:
        if self._style != "silent":
            self._left.begin_epoch(trainer)
            self._refresh(trainer, force=True)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        if self._style == "silent":
            return
        self._evaluation = None
        row = self._epoch_row(trainer, metrics, self._epoch_number(trainer, ended=True))
        was_shown = bool(self._table.heading)
        if self._live is None:
            self._line(self._table.line(row))
            return
        if not trainer.run.is_done():
            # the next epoch, with the row of this one
            self._live.show(self._moment(trainer), draw=False)
        self._live.add_epoch(row, self._table)
        if self._table.hidden and not was_shown:
            hidden = listed(self._table.hidden, most=3)
            self._line(
                f"No space for {hidden}: choose columns with ProgressDisplay(columns=[...])."
            )

    def on_train_end(self, trainer: Trainer) -> None:
        if self._style == "silent":
            return
        self._close()  # first, since a line above bars draws them again
        if metrics := cut_epoch(trainer):
            place = f"{self._epoch_number(trainer)} step {self._epoch_bar(trainer).position}"
            self._line(self._table.line(self._epoch_row(trainer, metrics, place)))
        for line in self._last_lines(trainer):
            self._line(line)
        self._style = "silent"

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._close()
        self._style = "silent"

    # What is shown

    def _epoch_number(self, trainer: Trainer, ended: bool = False) -> str:
        total = trainer.run.call.limits.epochs
        number = trainer.progress.epoch + (not ended)
        return f"{number}" if total is None else f"{number}/{total}"

    def _moment(self, trainer: Trainer) -> Moment:
        """The bars and metrics of this moment."""
        evaluation = self._evaluation
        done = done_of(trainer, with_time=True)
        run = None
        if done is not None:
            left = self._left.of_run(trainer)
            if evaluation is not None:
                left = None if done == 1.0 else left  # the bar of the evaluation says it
                done = min(done, 0.99)  # it is not over before its last evaluation
            run = Bar("run", f"{done:.0%}", done, _left_text(left))
        return Moment(
            self._epoch_bar(trainer),
            None if evaluation is None else evaluation.bar(),
            run,
            self._facts(trainer),
        )

    def _epoch_bar(self, trainer: Trainer) -> Bar:
        label = f"epoch {self._epoch_number(trainer)}"
        length = trainer.run.epoch_length()
        return _bar(label, trainer.progress.epoch_step, length, self._left.of_epoch(trainer))

    def _facts(self, trainer: Trainer) -> list[str]:
        """Each metric of the last step, the means of losses over the epoch so far, and the speed.

        Of several processes, the means are those of this one.
        """
        meter: Any = trainer.run.metrics.meter
        losses = {"loss", *meter.losses}
        facts = []
        for name, value in self._row.items():
            fact = f"{name} {number(value)}"
            if name in losses and meter.counts.get(name):
                fact += f" (mean {number(meter.sums[name] / meter.counts[name])})"
            facts.append(fact)
        if trainer.run.updates.num_skipped:
            facts.append(f"skipped_updates {trainer.run.updates.num_skipped}")
        speed = self._left.samples_per_second(trainer)
        if speed is not None:
            facts.append(f"{speed:,.0f} samples/s")
        return facts

    def _epoch_row(self, trainer: Trainer, metrics: Mapping[str, float], place: str) -> EpochRow:
        seconds = monotonic() - self._epoch_began
        speed = self._left.samples_per_second(trainer)
        left = None if trainer.run.is_done() else self._left.of_run(trainer)
        facts = {
            "time": f"{seconds:.1f} s" if seconds < 59.95 else clock(seconds),
            "samples/s": "" if speed is None else f"{speed:,.0f}",
            "left": "" if left is None else clock(left),
        }
        texts = {name: number(value) for name, value in metrics.items()}
        return EpochRow(place, texts, facts, trainer.run.metrics.directions.eval_keys)

    def _last_lines(self, trainer: Trainer) -> list[str]:
        """The lines at the end of a `train` call: how it ended, the best epoch, and the commands to
        look at the run.

        A call without a run directory that trained one epoch has nothing to add to the line of that
        epoch.
        """
        from ..run.directory import shown

        lines = stop_lines(trainer)
        directory = trainer.run.files.directory
        kept = None if directory is None else _best_kept(directory.path)
        best = _best(trainer, kept)
        if directory is None:
            return [*lines, *best] if len(trainer.history) > 1 else lines
        if trainer.stop_reason is None:
            progress = trainer.progress
            length = f"{counted(progress.epoch, 'epoch')}, {counted(progress.update, 'update')}"
            time = clock(monotonic() - self._call_began)
            if self._is_resumed:
                time += " since it was resumed"
            lines.append(" ".join([f"Finished: {length} in {time}.", *best]))
        else:
            lines += best
        if kept is not None:
            lines.append(f"Best model: {shown(kept.path)}")
        places = (directory.path, directory.path.parent)
        run, folder = (shlex.quote(str(shown(place)) or ".") for place in places)
        return [*lines, f"To inspect it: loopwright show {run}, or loopwright ui {folder}"]

    # Output

    def _refresh(self, trainer: Trainer, *, force: bool = False) -> None:
        if self._live is not None and (force or monotonic() - self._shown >= REFRESH_SECONDS):
            self._live.show(self._moment(trainer))
            self._shown = monotonic()

    def _line_now(self, trainer: Trainer) -> None:
        """Print where the run is, if the last line is long enough ago."""
        if self._live is not None or monotonic() - self._spoken < self.interval:
            return
        self._line(line_of(self._moment(trainer)))

    def _line(self, text: str) -> None:
        self._spoken = monotonic()
        if self._live is None:
            print(text.rstrip(), flush=True)
        else:
            self._live.say(text)

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


# What is shown: a moment of the run, and the table of its epochs, in columns and in lines


class Bar(NamedTuple):
    """One bar of the display."""

    label: str
    position: str  # "3/12", or "3" where the length is not known
    fraction: float | None
    time_left: str  # "0:12 left", or nothing


def _bar(label: str, done: int, total: int | None, left: float | None) -> Bar:
    if not total:
        return Bar(label, f"{done}", None, _left_text(left))
    position = f"{done:>{len(str(total))}}/{total}"
    return Bar(label, position, done / total, _left_text(left))


def _left_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{clock(seconds)} left"


class Evaluation(NamedTuple):
    """The evaluation under way."""

    label: str
    data: Stream
    done: int
    began: float

    def bar(self) -> Bar:
        total = self.data.num_batches
        left = None
        if total and 0 < self.done <= total:
            left = (monotonic() - self.began) * (total - self.done) / self.done
        return _bar(self.label, self.done, total, left)


class Moment(NamedTuple):
    """What a live display shows at one moment."""

    epoch: Bar
    evaluation: Bar | None
    run: Bar | None  # None where no limit says how long it is
    facts: list[str]

    @property
    def bars(self) -> list[Bar]:
        """The bars that there are, from the shortest part of the run to the whole."""
        return [bar for bar in (self.epoch, self.evaluation, self.run) if bar is not None]


def line_of(moment: Moment) -> str:
    """The line inside a long epoch, or a long evaluation: the same facts as in the bars."""
    now = moment.evaluation or moment.epoch
    parts = ["epoch " + _padded(moment.epoch.label.removeprefix("epoch "))]
    if moment.evaluation is None:
        parts += [f"step {now.position}", *moment.facts]
    else:
        parts.append(f"{now.label} batch {now.position}")
    parts.append(now.time_left)
    if moment.run is not None and moment.run.time_left:
        parts.append(f"run {moment.run.time_left}")
    return GAP.join(filter(None, parts))


class EpochRow(NamedTuple):
    """An epoch that has ended, as it is shown."""

    number: str  # "2/10"
    metrics: Mapping[str, str]
    facts: Mapping[str, str]  # its time, its speed, and the time that is left
    eval_keys: Collection[str] = ()

    def text(self, column: str) -> str:
        return self.metrics.get(column) or self.facts.get(column, "-")


class EpochTable:
    """The lines of one epoch after another, in columns that stay where they are.

    Args:
        columns: The metrics to show, and "time", "samples/s" or "left". Without them: on a terminal
            as many metrics as fit, the most important ones first; in lines all.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self.columns = columns
        self.heading: list[str] = []  # of the rows so far
        self.hidden: list[str] = []  # metrics of the last row for which the terminal had no space

    def rows(self, row: EpochRow, width: int) -> list[str]:
        """The line of an epoch on a terminal of this width; before it the heading, where columns
        are new."""
        columns = self.names(row)
        if self.columns is None:
            columns = self._fitting(columns, row, width)
        widths = [max(len("epoch"), len(row.number)), *map(_column_width, columns)]
        lines = [[row.number, *map(row.text, columns)]]
        if columns != self.heading:
            self.heading = columns
            lines.insert(0, ["epoch", *columns])
        return [GAP.join(map(str.rjust, cells, widths)).rstrip() for cells in lines]

    def line(self, row: EpochRow) -> str:
        """The line of an epoch with the name before each value."""
        parts = [f"epoch {_padded(row.number)}"]
        for name in [*row.metrics, *row.facts] if self.columns is None else self.names(row):
            text = row.text(name)
            if name in row.metrics or name not in row.facts:
                parts.append(f"{name} {text.ljust(SHORT_NUMBER)}")
            elif text:
                parts.append(text if name == "time" else f"{text} {name}")
        return GAP.join(parts).rstrip()

    def names(self, row: EpochRow) -> list[str]:
        """The columns of a row, whatever the space; bars show the time that is left."""
        if self.columns is None:
            return list(dict.fromkeys([*row.metrics, "time", "samples/s"]))
        return list(self.columns)

    def _fitting(self, columns: list[str], row: EpochRow, width: int) -> list[str]:
        """As many columns as fit: of metrics the most important ones, of an evaluation and of
        training in turn."""
        important = by_importance(row.metrics, row.eval_keys)
        if "loss" in important:
            important.insert(1, important.pop(important.index("loss")))
        facts = [name for name in columns if name not in row.metrics]
        space = width - max(len(row.number), len("epoch"))
        fitting = set()
        for name in [*facts, *important]:
            space -= len(GAP) + _column_width(name)
            if space < 0:
                break
            fitting.add(name)
        self.hidden = [name for name in columns if name not in fitting]
        return [name for name in columns if name in fitting]


def _padded(number: str) -> str:
    """ "2/10" as " 2/10": as wide as the last one will be."""
    total = number.partition("/")[2]
    return number.rjust(2 * len(total) + 1) if total else number


def _column_width(name: str) -> int:
    return max(WIDTHS.get(name, NUMBER), len(name))


# The time that is left


class TimeLeft:
    """Estimates the time that the `train` call and its epoch still take.

    Each part of the call takes as long as those so far, with their evaluations; what an earlier
    process took does not count, and compiling does not, either.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._start = done_of(trainer) or 0.0  # the completed fraction of the call
        self._began = _clock(trainer)
        self._last = (self._start, 0.0)  # when the fraction was last seen to change
        self.begin_epoch(trainer)

    def begin_epoch(self, trainer: Trainer) -> None:
        """Measure the speed from here on."""
        progress = trainer.progress
        self._epoch = (progress.epoch_step, progress.sample, progress.seconds)

    def samples_per_second(self, trainer: Trainer) -> float | None:
        """Samples per second of training in this epoch, without evaluations."""
        samples = trainer.progress.sample - self._epoch[1]
        seconds = trainer.progress.seconds - self._epoch[2]
        return samples / seconds if seconds > 0 and samples else None

    def of_epoch(self, trainer: Trainer) -> float | None:
        """Seconds of training to the end of the epoch; None where that is not known."""
        progress = trainer.progress
        length = trainer.run.epoch_length()
        steps = progress.epoch_step - self._epoch[0]
        seconds = progress.seconds - self._epoch[2]
        if length is None or steps <= 0 or seconds <= 0:
            return None
        return max(length - progress.epoch_step, 0) * seconds / steps

    def of_run(self, trainer: Trainer) -> float | None:
        """Seconds to the end of the `train` call, with its evaluations; None where that is not
        known."""
        limit = trainer.run.call.limits.seconds
        known = [] if limit is None else [max(limit - trainer.progress.seconds, 0.0)]
        done = done_of(trainer)
        if done is not None and done > self._start:
            now = _clock(trainer) - self._began
            # of data without a length, the fraction changes at the ends of epochs only
            if done != self._last[0] or trainer.run.epoch_length() is not None:
                self._last = (done, now)
            took = self._last[1]
            left = took * (1 - done) / (done - self._start)
            known.append(max(left - (now - took), 0.0))
        return min(known, default=None)


def _clock(trainer: Trainer) -> float:
    """Seconds of training and of evaluations."""
    metrics = trainer.run.metrics
    return trainer.progress.seconds + metrics.eval_seconds - metrics.compile_seconds


def done_of(trainer: Trainer, *, with_time: bool = False) -> float | None:
    """Return the completed fraction of the current `train` call, by the nearest limit; None without
    a limit.

    Args:
        trainer: The trainer.
        with_time: Whether a limit in seconds counts.
    """
    progress = trainer.progress
    until = trainer.run.call.limits
    parts = []
    if until.epochs is not None:
        epoch = progress.epoch + _inside_epoch(trainer)
        parts.append(_part(epoch, progress.call_epoch, until.epochs))
    if until.updates is not None:
        parts.append(_part(progress.update, progress.call_update, until.updates))
    if until.samples is not None:
        parts.append(_part(progress.sample, progress.call_sample, until.samples))
    if with_time and until.seconds is not None:
        parts.append(_part(progress.seconds, progress.call_seconds, until.seconds))
    return max(parts, default=None)


def _part(now: float, start: float, limit: float) -> float:
    """The completed fraction of the way from the start of the call to a limit."""
    return min((now - start) / (limit - start), 1.0) if limit > start else 1.0


def _inside_epoch(trainer: Trainer) -> float:
    """Return the completed fraction of the epoch; 0 for data without a length."""
    stream = trainer.run.data.train_stream
    if stream is None:
        return 0.0
    if stream.num_samples:
        return min(trainer.progress.epoch_sample / stream.num_samples, 1.0)
    if stream.num_batches:
        return min(trainer.progress.epoch_step / stream.num_batches, 1.0)
    return 0.0


# How a run ended


def stop_lines(trainer: Trainer) -> list[str]:
    """Return the line on why training was stopped; none where it was not."""
    if trainer.stop_reason is None:
        return []
    updates = counted(trainer.progress.update, "update")
    return [f"Stopped after {updates}: {trainer.stop_reason}"]


def _best(trainer: Trainer, kept: CheckpointInfo | None) -> list[str]:
    """ "Best eval_loss 0.2667 in epoch 3.", of the metric that the run goes by, where it is known
    what is better.

    That is the metric of the best kept model, if there is one, as in `Run.main_metric`.
    """
    directions = trainer.run.metrics.directions
    kept_by = kept.metric[:1] if kept is not None and kept.metric else directions.watched
    names = [name for name in kept_by if name in trainer.history] or trainer.history.names
    name = headline(names, directions.eval_keys)
    mode = None if name is None else directions.of(name)
    if name is None or mode is None:
        return []
    epochs = list(enumerate(trainer.history.epochs, start=1))
    found = first_best(epochs, lambda epoch: epoch[1].get(name), mode)
    return [] if found is None else [f"Best {name} {number(found[1][name])} in epoch {found[0]}."]


def _best_kept(path: Path) -> CheckpointInfo | None:
    from ..run.best import choose

    if any((path / "kept").iterdir()):
        # models by a metric of unknown mode: the run is complete all the same
        with suppress(LoopwrightError):
            return choose(path)
    return None

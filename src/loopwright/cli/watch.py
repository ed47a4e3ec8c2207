"""`loopwright watch [RUN]`: a run as it trains, with its curves in characters; also over ssh."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from ..errors import CheckpointError, check_number
from ..run.curves import MetricCurve
from ..run.reading import Run
from ..run.schema import Level
from ..text import clock
from .charts import Chart, Drawn, Line, metric_groups, pen_of
from .exits import OK
from .output import STYLES as STATE_STYLES
from .output import best_text, print_json, printable, time_text
from .selection import find_run

HEIGHT = 8  # lines of a chart, at least
WIDTH = 50  # columns of a chart, at least, where there are several beside each other
LEAVING = frozenset(b"qQ\x03\x1b")
HINT = "q to quit"
PRINTED = 30  # lines of a picture that is printed


def watch_command(options: argparse.Namespace) -> int:
    check_number("--interval", options.interval, above=0, is_whole=False, of="seconds")
    run = find_run(options.name, options.root)
    _check_metrics(run, options.metric or ())
    if options.json:
        print_json({**run.as_json(), "last": run.last})
        return OK
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if options.once or not can_redraw:
        _print_once(run, options)
        return OK
    show_live(
        lambda console: _Screen(Run(run.path), options, console.size.height, is_live=True),
        options.interval,
    )
    print(printable(f"{run.name}: {summary_text(Run(run.path))}"))
    return OK


def _check_metrics(run: Run, wanted: Sequence[str]) -> None:
    """Refuse a metric that is not there; a run that trains may still come to measure it."""
    if run.state == "running" or not wanted:
        return
    names = [*run.step_names, *run.epoch_names]
    for name in wanted:
        if names and name not in names:
            raise run.metrics.missing(name)


def summary_text(run: Run) -> str:
    """State, progress and best value of a run, in a line."""
    best = best_text(run)
    named = [] if best == "-" else [best if best.endswith("(last)") else f"best {best}"]
    return ", ".join([run.state, str(run.progress), *named])


def _print_once(run: Run, options: argparse.Namespace) -> None:
    size = shutil.get_terminal_size((80, PRINTED))
    height = size.lines - 1 if sys.stdout.isatty() else PRINTED
    Console(highlight=False, width=size.columns).print(_Screen(run, options, height), end="")


class _Screen:
    """One picture of a run, as high as asked for."""

    def __init__(
        self, run: Run, options: argparse.Namespace, height: int, *, is_live: bool = False
    ) -> None:
        self.run = run
        self.options = options
        self.height = height
        self.is_live = is_live

    def __rich_console__(self, console: Console, _: object) -> Any:
        width = console.width
        is_plain = not (console.encoding or "").lower().startswith("utf")
        lines = [*_heading(self.run, width), Text("")]
        space = self.height - len(lines) - self.is_live
        try:
            lines += _charts(self.run, self.options, width, space, is_plain=is_plain)
        except CheckpointError as error:
            if str(error) not in self.run.problems:
                lines += [Text(printable(str(error)), style="red")]
        if self.is_live:
            lines = [*lines[: self.height - 1], Text(HINT, style="dim")]
        for line in lines:
            line.truncate(width, overflow="ellipsis") if line.no_wrap else None
            yield line


def _heading(run: Run, width: int) -> list[Text]:
    """The name and state, the progress with its bar, and what is wrong, if anything is."""
    first = Text(f"{printable(run.name)}  ", style="bold", no_wrap=True)
    first.append(run.state, style=f"not bold {STATE_STYLES.get(run.state, '')}")
    if run.reason is not None:
        first.append(f": {printable(run.reason)}", style="not bold")
    first.append(f"  {printable(str(run.path))}", style="not bold dim")
    lines = [first, Text(_progress_line(run, width), no_wrap=True)]
    _ = run.epoch_names  # what cannot be read of them is a problem
    lines += [Text(printable(problem), style="red") for problem in run.problems]
    if run.state == "crashed":
        lines.append(
            Text(
                "Its process ended without recording a reason. Start the same program to resume "
                "the run."
            )
        )
    return lines


def _progress_line(run: Run, width: int) -> str:
    fraction = run.progress.fraction
    parts = [str(run.progress)]
    parts += (
        []
        if run.progress.update is None or "update" in parts[0]
        else [f"update {run.progress.update}"]
    )
    parts.append(
        f"{time_text(run.seconds)} so far" if run.state == "running" else time_text(run.seconds)
    )
    if (left := run.eta) is not None:
        parts.append(f"{clock(left)} left")
    text = "  ".join(parts)
    space = min(width - len(text) - 4, 40)
    if fraction is None or space < 10:
        return text
    done = round(fraction * space)
    return f"[{'=' * done}{' ' * (space - done)}]  {text}"


# Charts


def _charts(
    run: Run, options: argparse.Namespace, width: int, height: int, *, is_plain: bool
) -> list[Text]:
    """The charts that fit, in rows of one or several; a line names the metrics that have none."""
    metrics = run.metrics
    names = dict.fromkeys((*run.epoch_names, *metrics.names_of("step")))
    if not names:
        waiting = (
            "No metrics yet: they appear with the first steps."
            if run.state == "running"
            else "No metrics."
        )
        return [Text(waiting)]
    panels = (
        [[name] for name in options.metric]
        if options.metric
        else metric_groups(names, run.eval_keys)
    )
    across = max(min(width // WIDTH, len(panels), 3), 1)
    down = max(min(-(-len(panels) // across), max(height - 1, HEIGHT) // HEIGHT), 1)
    shown = panels[: across * down]
    left_out = panels[across * down :]
    each = (width - 2 * (across - 1)) // across
    high = max((height - (1 if left_out else 0)) // down, 4)
    drawn = [_chart(run, panel, each, options.log, is_plain).lines(each, high) for panel in shown]
    charts = [[Text.assemble(*line, no_wrap=True) for line in chart] for chart in drawn]
    lines = [
        line
        for at in range(0, len(charts), across)
        for line in _beside(charts[at : at + across], each)
    ]
    if left_out:
        more = printable(", ".join(name for panel in left_out for name in panel))
        lines.append(
            Text(f"no room for: {more} (choose with --metric NAME)", style="dim", no_wrap=True)
        )
    return lines


def _chart(run: Run, names: Sequence[str], width: int, is_log: bool, is_plain: bool) -> Chart:
    title: Line = []
    curves = []
    of_steps = run.step_names
    for number, name in enumerate(names):
        level: Level = "step" if name in of_steps else "epoch"
        curve = run.metrics.curve(name, level=level, x="update", points=2 * width)
        curves.append(Drawn(name, curve.places, curve.mean, curve.min, curve.max))
        style, mark = pen_of(number)
        label = f"{printable(name)} {mark}" if is_plain and len(names) > 1 else printable(name)
        title += [("  " if number else "", ""), (label, f"bold {style}"), (_note(run, curve), "")]
    return Chart(title, curves, "update", is_log=is_log, is_plain=is_plain)


def _note(run: Run, curve: MetricCurve) -> str:
    """The last value, the best one of epochs, and how many are not drawn."""
    last = run.last_of(curve.name) if curve.level == "epoch" else None
    value = last.value if last is not None else next((mean for mean in reversed(curve.mean)), None)
    best = run.best_of(curve.name) if curve.name in run.epoch_names else None
    odd = sum(curve.nonfinite)
    text = f" {value:.4g}" if value is not None else ": no value yet"
    # the mean of an epoch is no value of a step
    which = "best epoch" if curve.level == "step" else "best"
    text += f" ({which} {best.value:.4g} @{best.epoch})" if best is not None else ""
    return text + (f" ({odd} not finite)" if odd else "")


def _beside(charts: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Charts beside each other, line by line."""
    lines = []
    for number in range(max(map(len, charts))):
        line = Text(no_wrap=True)
        for at, chart in enumerate(charts):
            part = chart[number].copy() if number < len(chart) else Text("")
            part.truncate(width, overflow="ellipsis", pad=True)
            line.append("  " if at else "").append_text(part)
        line.rstrip()
        lines.append(line)
    return lines


# The screen


def show_live(draw: Callable[[Console], RenderableType], seconds: float) -> None:
    """Draw every few seconds on a screen of its own, until a key or Ctrl-C ends it."""
    console = Console(highlight=False)
    try:
        with _keys() as is_over, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(draw(console), refresh=True)
                if is_over(seconds):
                    return
    except KeyboardInterrupt:
        return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Context with a function that waits, and returns whether a key was pressed that leaves."""
    if not sys.stdin.isatty():  # only Ctrl-C leaves
        yield _only_wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _is_left(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> bool:
    select.select([], [], [], seconds)
    return False


def _is_left(descriptor: int, seconds: float) -> bool:
    """Read keys for some seconds; a closed terminal leaves too."""
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if ready:
            pressed = os.read(descriptor, 64)
            if not pressed or LEAVING.intersection(pressed[:1]):
                return True
    return False

"""`loopwright watch [RUN]`: a run as it trains, with its curves in characters; also over ssh."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from functools import partial
from time import sleep

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..errors import CheckpointError, check_number
from ..run.curves import MetricCurve
from ..run.reading import Run
from ..text import clock
from .output import OK, best_text, has_colours, printable, say, time_text
from .output import STYLES as STATE_STYLES
from .plot import chart_lines, charts_of, curve_of, metric_groups
from .selection import find_run

HEIGHT = 8  # lines of a chart, at least
PRINTED = 30  # lines of a picture that is printed


def watch_command(options: argparse.Namespace) -> int:
    check_number("--interval", options.interval, above=0, is_whole=False, of="seconds")
    run = find_run(options.name, options.root)
    names = [*run.step_names, *run.epoch_names]
    for name in options.metric or ():  # a run that trains may still come to measure it
        if run.state != "running" and names and name not in names:
            raise run.metrics.missing(name)
    if options.once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        width = shutil.get_terminal_size((80, PRINTED)).columns
        console = Console(highlight=False, width=width)
        for line in screen_lines(run, options, width, PRINTED):
            console.print(line)
    else:
        show_live(run, options)
        run = Run(run.path)
        best = best_text(run)
        named = [] if best == "-" else [best if best.endswith("(last)") else f"best {best}"]
        say(f"{run.name}: {', '.join([run.state, str(run.progress), *named])}")
    return OK


def screen_lines(run: Run, options: argparse.Namespace, width: int, height: int) -> list[Text]:
    """One picture of a run, as high as asked for."""
    lines = [*_heading(run, width), Text("")]
    try:
        lines += _charts(run, options, width, height - len(lines))
    except CheckpointError as error:
        if str(error) not in run.problems:
            lines.append(Text(printable(str(error)), style="red"))
    for line in lines:
        line.rstrip()
        if line.no_wrap:
            line.truncate(width, overflow="ellipsis")
    return lines


def _heading(run: Run, width: int) -> list[Text]:
    """The name and state, the progress with its bar, and what is wrong, if anything is."""
    first = Text(f"{printable(run.name)}  ", style="bold", no_wrap=True)
    first.append(run.state, style=f"not bold {STATE_STYLES.get(run.state, '')}")
    if run.reason is not None:
        first.append(f": {printable(run.reason)}", style="not bold")
    first.append(f"  {printable(str(run.path))}", style="not bold dim")
    lines = [first, Text(_progress_line(run, width), no_wrap=True)]
    _ = run.epoch_names, run.config_file  # what cannot be read of them is a problem
    lines += [Text(printable(problem), style="red") for problem in run.problems]
    if run.state == "crashed":
        ended = "Its process ended without recording a reason."
        lines.append(Text(f"{ended} Start the same program to resume the run."))
    return lines


def _progress_line(run: Run, width: int) -> str:
    progress = run.progress
    parts = [str(progress)]
    if progress.update is not None and "update" not in parts[0]:
        parts.append(f"update {progress.update}")
    parts.append(time_text(run.seconds) + (" so far" if run.state == "running" else ""))
    if run.eta is not None:
        parts.append(f"{clock(run.eta)} left")
    text = "  ".join(parts)
    space = min(width - len(text) - 4, 40)
    if progress.fraction is None or space < 10:
        return text
    done = "=" * round(progress.fraction * space)
    return f"[{done:<{space}}]  {text}"


def _charts(run: Run, options: argparse.Namespace, width: int, height: int) -> list[Text]:
    """The charts that fit; a line names the metrics that have none."""
    names = dict.fromkeys((*run.epoch_names, *run.step_names))
    if not names:
        later = " yet: they appear with the first steps." if run.state == "running" else "."
        return [Text(f"No metrics{later}")]
    panels = [[name] for name in options.metric or ()] or metric_groups(names, run.eval_keys)
    if not has_colours():  # which tell the curves of a chart apart
        panels = [[name] for panel in panels for name in panel]
    num_shown = max(min(len(panels), max(height - 1, HEIGHT) // HEIGHT), 1)
    left_out = [name for panel in panels[num_shown:] for name in panel]
    high = max((height - bool(left_out)) // num_shown, 4)
    lines = []
    for panel in panels[:num_shown]:
        curves = {name: curve_of(run, name, 2 * width) for name in panel}
        for title, drawn in charts_of(curves, partial(_best, run)):
            lines += chart_lines(title, drawn, width, high, is_log=options.log)
    if left_out:
        text = f"no room for: {printable(', '.join(left_out))} (choose with --metric NAME)"
        lines.append(Text(text, style="dim", no_wrap=True))
    return lines


def _best(run: Run, curve: MetricCurve) -> str:
    """The best value, of a metric of epochs."""
    best = run.best_of(curve.name) if curve.name in run.epoch_names else None
    return "" if best is None else f" (best epoch {best.value:.4g} @{best.epoch})"


def show_live(run: Run, options: argparse.Namespace) -> None:
    """Draw every few seconds on a screen of its own, until Ctrl-C ends it."""
    console = Console(highlight=False)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                size = console.size
                height = size.height - 1
                lines = screen_lines(Run(run.path), options, size.width, height)[:height]
                hint = Text("Ctrl-C quits", style="dim")
                live.update(Text("\n").join([*lines, hint]), refresh=True)
                sleep(options.interval)
    except KeyboardInterrupt:
        return

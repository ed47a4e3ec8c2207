"""The film in the README, an SVG that plays itself: a training is killed and started again, and its
curve goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

START_PAGE = Path(__file__).parent.parent / "docs" / "start.md"
EPOCHS, KILLED_AT = 30, 13
LINES, LINE_HEIGHT, WIDTH = 15, 17, 980


@dataclass(frozen=True)
class Take:
    """What one process of the film printed, with the seconds since it began, and how it ended."""

    lines: list[tuple[float, str]]
    code: int


def program() -> str:
    """The program of the start page, trained for longer and saved after every epoch, however
    short."""
    block = re.search(
        r"<!-- file: digits.py -->\n```python\n(.*?)^```", START_PAGE.read_text(), re.M | re.S
    )
    assert block is not None
    text = block[1].replace("import BestModel", "import BestModel, Checkpoints")
    text = text.replace("callbacks=[", "callbacks=[Checkpoints(every_epochs=1), ")
    return text.replace("num_epochs=20", f"num_epochs={EPOCHS}")


def record(folder: Path, *, is_killed: bool = False) -> Take:
    """Run the program to its end, or kill it when it prints the line of an epoch in its middle."""
    (folder / "digits.py").write_text(program())
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "digits.py"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    began, lines = time.monotonic(), []
    with subprocess.Popen(command, cwd=folder, env=environment, **pipe) as process:
        for line in process.stdout:
            lines.append((time.monotonic() - began, line.rstrip()))
            if is_killed and line.startswith(f"epoch {KILLED_AT}/"):
                process.send_signal(signal.SIGKILL)
    return Take(lines, process.returncode)


def draw(takes: Iterable[Take], losses: list[float]) -> str:
    """The film: a terminal on the left, the loss of each epoch on the right, both as they came."""
    script: list[tuple[float, str, str]] = []  # when, what, and its colour
    clock, points = 0.5, []
    for number, take in enumerate(takes):
        script.append((clock, "$ python digits.py", "#8ec07c"))
        first = take.lines[0][0] if take.lines else 0.0
        scale = 5.5 / max(take.lines[-1][0] - first, 0.1)
        for seconds, line in take.lines:
            at = clock + 0.7 + (seconds - first) * scale
            script.append((at, line, "#d5d9e0"))
            if found := re.match(r"epoch +(\d+)/", line):
                points.append((at, int(found[1]), number))
        clock = script[-1][0] + 0.6
        if take.code == -signal.SIGKILL:
            script.append((clock, "Killed: kill -9", "#fb6a5a"))
            clock += 1.6
    duration = clock + 4.0
    return _svg(script, points, losses, duration)


def _svg(
    script: list[tuple[float, str, str]],
    points: list[tuple[float, int, int]],
    losses: list[float],
    duration: float,
) -> str:
    height = 40 + LINES * LINE_HEIGHT + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="monospace"',
        ' font-size="12">',
        "<title>A training is killed with kill -9 and started again; its curve goes on</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#1b1e25"/>',
        '<clipPath id="screen"><rect x="14" y="28" width="570" '
        f'height="{LINES * LINE_HEIGHT + 2}"/></clipPath>',
        '<g clip-path="url(#screen)"><g>' + _scroll(script, duration),
    ]
    for number, (at, line, colour) in enumerate(script):
        shown = escape(line if len(line) <= 76 else line[:75] + "…")
        place = f'x="20" y="{40 + number * LINE_HEIGHT}"'
        out.append(
            f'<text {place} fill="{colour}" '
            f'xml:space="preserve">{shown}{_appears(at, duration)}</text>'
        )
    out.append("</g></g>")
    out += _curve(points, losses, duration, height)
    return "\n".join([*out, "</svg>"]) + "\n"


def _appears(at: float, duration: float) -> str:
    return (
        f'<animate attributeName="opacity" values="0;1" keyTimes="0;{at / duration:.4f}" '
        f'calcMode="discrete" dur="{duration:.1f}s" repeatCount="indefinite"/>'
    )


def _scroll(script: list[tuple[float, str, str]], duration: float) -> str:
    moves = [
        (at, (number - LINES + 1) * LINE_HEIGHT)
        for number, (at, _, _) in enumerate(script)
        if number >= LINES
    ]
    if not moves:
        return ""
    values = ";".join(["0,0", *(f"0,{-offset}" for _, offset in moves)])
    times = ";".join(["0", *(f"{at / duration:.4f}" for at, _ in moves)])
    return (
        f'<animateTransform attributeName="transform" type="translate" values="{values}" '
        f'keyTimes="{times}" calcMode="discrete" dur="{duration:.1f}s" repeatCount="indefinite"/>'
    )


def _curve(
    points: list[tuple[float, int, int]], losses: list[float], duration: float, height: int
) -> list[str]:
    left, right, top, bottom = 630, WIDTH - 30, 50, height - 60
    highest = max(losses)

    def place(epoch: int) -> tuple[float, float]:
        return left + (right - left) * (epoch - 1) / (EPOCHS - 1), bottom - (bottom - top) * losses[
            epoch - 1
        ] / highest

    out = [
        f'<path d="M{left} {top}V{bottom}H{right}" stroke="#565d6b" fill="none"/>',
        f'<text x="{left}" y="{top - 14}" fill="#d5d9e0">eval loss</text>',
        f'<text x="{(left + right) / 2}" y="{bottom + 20}" fill="#d5d9e0" '
        'text-anchor="middle">epoch</text>',
    ]
    before: int | None = None
    for at, epoch, process in points:
        x, y = place(epoch)
        colour = ("#5aa9fb", "#fbb45a")[process]
        if before is not None and epoch == before + 1:
            from_x, from_y = place(before)
            line = f"M{from_x:.1f} {from_y:.1f}L{x:.1f} {y:.1f}"
            out.append(
                f'<path d="{line}" stroke="{colour}" '
                f'stroke-width="2">{_appears(at, duration)}</path>'
            )
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" '
            f'fill="{colour}">{_appears(at, duration)}</circle>'
        )
        before = epoch
    end = f"{_appears(points[-1][0] + 1.0, duration)}"
    out.append(
        f'<text x="{(left + right) / 2}" y="{height - 16}" fill="#8ec07c" text-anchor="middle">'
        f"every bit as without the kill{end}</text>"
    )
    return out

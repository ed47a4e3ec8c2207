"""One HTML file with the page, its charts and the runs in it: it needs no server and loads nothing.

Modules of the page become `data:` addresses in an import map, since a file may not import other
files.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from os.path import commonpath
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import CheckpointError, ConfigurationError
from ..run.metrics_view import MediaItem, MetricsView
from ..run.reading import Run
from ..run.schema import AXES
from . import comparison, detail
from .answers import KINDS, PLOTLY, STATIC, find_plotly, plain, to_json
from .curves import LEVELS, curve_json, rounded
from .folder import RunEntry, open_metrics, own_file, read_entry, stamp_of

Json = dict[str, Any]
MARK = "<!-- made by loopwright report -->"
MAX_COLUMNS = 150_000  # of all curves together
# of a curve, unless the user says
FEWEST_POINTS = 100
MOST_POINTS = 2_000
MAX_IMAGE_BYTES = 24_000_000  # of all images together
MAX_CONTENTS = 60  # histograms, texts or tables of a name
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"\./([\w-]+\.js)"')
SHEET = re.compile(r'<link\s[^>]*href="/static/([\w.-]+)\.css"[^>]*>')
ICON = re.compile(r'(<link\s[^>]*href=")/static/([\w-]+\.(?:svg|png))("[^>]*>)')
TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)
SCRIPT = re.compile(r'<script\s[^>]*src="/static/([\w.-]+\.js)"[^>]*></script>')


@dataclass(slots=True)
class ReportDraft:
    """A report while it is made: what it holds, and what was left out."""

    points: int
    notes: list[str] = field(default_factory=list)
    image_bytes: int = 0
    num_thinned: int = 0
    num_left_out: int = 0


def find_entries(runs: Sequence[Run]) -> list[RunEntry]:
    """The runs of a report, under their paths below the folder that holds them all."""
    paths = list(dict.fromkeys(run.path for run in runs))
    root = commonpath([path.parent for path in paths])
    entries = [
        read_entry(path.relative_to(root).as_posix(), path, stamp_of(path)) for path in paths
    ]
    found = [entry for entry in entries if entry is not None]
    if broken := next((entry for entry in found if entry.problem is not None), None):
        raise ConfigurationError(
            "unreadable-run",
            f"{broken.path} cannot be in a report. {broken.problem}",
        )
    return found


def build_report(entries: Sequence[RunEntry], points: int | None = None) -> tuple[str, list[str]]:
    """The HTML of a report about runs, and sentences about what is not in it whole.

    Args:
        entries: The runs.
        points: The most points of a curve; by default as many as keep the file small.
    """
    num_curves = sum(len(e.summary["step_names"]) + len(e.summary["epoch_names"]) for e in entries)
    fitting = max(FEWEST_POINTS, min(MOST_POINTS, MAX_COLUMNS // max(num_curves, 1)))
    report = ReportDraft(points or fitting)
    data = _collect(report, entries)
    data["notes"] = _notes(report)
    title = entries[0].summary["name"] if len(entries) == 1 else f"{len(entries)} runs"
    return render(f"{title} · Loopwright", data), data["notes"]


def _notes(report: ReportDraft) -> list[str]:
    if report.num_thinned:
        report.notes.append(
            f"{report.num_thinned} curves have more than {report.points:,} points and are thinned "
            "to the mean, smallest and largest value of each group of points."
        )
    if report.num_left_out:
        report.notes.append(
            f"{report.num_left_out} images are not included: the report has the newest of each "
            "name."
        )
    return report.notes


def _collect(report: ReportDraft, entries: Sequence[RunEntry]) -> Json:
    details: dict[str, Json] = {}
    curves: dict[str, list[Json]] = {}
    media: dict[str, Json] = {}
    contents: dict[str, Json] = {}
    views = [(entry.id, Run(entry.path)) for entry in entries]
    for entry, (run, view) in zip(entries, views, strict=True):
        curves[run] = []
        media[run] = {}
        contents[run] = {}
        with open_metrics(entry.path) as metrics:
            # without what says more of the machine than a reader of the report needs
            details[run] = detail.describe(entry, view, metrics) | {"path": entry.id}
            if problems := details[run]["problems"]:
                report.notes.append(f"{run} is damaged: {' '.join(problems)}")
            if entry.summary["problems"]:
                continue
            curves[run] = _curves(report, entry, metrics)
            with suppress(CheckpointError):  # which is among the problems
                items = metrics.media()
                media[run] = _images(report, entry.path, items)
                others = dict.fromkeys(item.name for item in items if item.kind != "image")
                contents[run] = {
                    name: detail.contents(metrics, name, MAX_CONTENTS) for name in others
                }
        for group in details[run]["media"]:  # only images that are in the report
            if group["kind"] == "image":
                group["items"] = [item for item in group["items"] if str(item["id"]) in media[run]]
        details[run]["media"] = [group for group in details[run]["media"] if group["items"]]
    head = {"root": "report", "is_single": len(entries) == 1, "exists": True}
    compared = views[: comparison.MAX_RUNS]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "runs": {**head, "runs": [entry.summary for entry in entries]},
        "run": details,
        "curves": curves,
        "media": media,
        "contents": contents,
        "compare": comparison.compare(dict(compared)) if len(compared) > 1 else None,
        "sweep": comparison.sweep(entries, ""),
    }


def _curves(report: ReportDraft, entry: RunEntry, metrics: MetricsView) -> list[Json]:
    """Every curve with its places on every axis; an axis on which not all points have a place is
    left out."""
    found = []
    for level in LEVELS:
        for name in entry.summary[f"{level}_names"]:
            axes = {
                axis: metrics.curve(name, level=level, x=axis, points=report.points)
                for axis in AXES
            }
            base = axes["step"] if axes["step"].places else axes["epoch"]
            answer = curve_json(base)
            report.num_thinned += answer["every"] > 1
            for axis, curve in axes.items():
                if len(curve.places) == len(base.places) and not curve.unplaced:
                    answer["columns"][axis] = rounded(curve.places)
            found.append(answer)
    return found


def _images(report: ReportDraft, run: Path, items: Sequence[MediaItem]) -> Json:
    """Images as data addresses, the newest first, as long as there is room for them."""
    found: dict[str, str] = {}
    images = [item for item in items if item.kind == "image"]
    images.sort(key=lambda item: (-(item.step or 0), item.position))
    for item in images:
        path = None if item.file is None else own_file(run, item.file)
        size = 0 if path is None else path.stat().st_size
        if path is None or not 0 < size <= MAX_IMAGE_BYTES - report.image_bytes:
            report.num_left_out += 1
            continue
        report.image_bytes += size
        found[str(item.id)] = _address(path, "image/png")
    return found


def render(title: str, data: Json) -> str:
    """The page with everything that it loads inside it."""
    scripts: list[str] = []
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    text = SHEET.sub(lambda found: _sheet(f"{found[1]}.css"), text)
    text = ICON.sub(lambda found: f"{found[1]}{_icon(found[2])}{found[3]}", text)
    text = SCRIPT.sub(lambda found: _script(found[1], scripts), text)
    embedded = to_json(plain(data)).replace("<", "\\u003c")
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes} data:; style-src 'unsafe-inline'; img-src data: "
        "blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'{MARK}<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<script type="application/json" id="loopwright-report">{embedded}</script>'
    )
    text = TITLE.sub(lambda _: f"<title>{escape(title)}</title>", text, count=1)
    return text.replace("<head>", f"<head>{head}", 1)


def _hash(script: str) -> str:
    return base64.b64encode(sha256(script.encode()).digest()).decode()


def _sheet(name: str) -> str:
    text = (STATIC / name).read_text(encoding="utf-8").replace("</", "<\\/")
    return f"<style>{text}</style>"


def _script(name: str, scripts: list[str]) -> str:
    """Scripts inside the file; a module brings all other modules with it."""
    if name == PLOTLY:
        scripts.append(_inside(find_plotly().read_text(encoding="utf-8")))
        return f"<script>{scripts[-1]}</script>"
    modules = {path.name: path.read_text(encoding="utf-8") for path in sorted(STATIC.glob("*.js"))}
    imports = {f"loopwright/{own}": _module(text) for own, text in modules.items()}
    scripts.append(_inside(to_json({"imports": imports})))
    scripts.append(f'import "loopwright/{name}";')
    return (
        f'<script type="importmap">{scripts[-2]}</script><script '
        f'type="module">{scripts[-1]}</script>'
    )


def _module(text: str) -> str:
    """A module as an address, whose imports are names of the import map."""
    named = IMPORT.sub(r'\1"loopwright/\2"', text)
    return f"data:text/javascript;base64,{base64.b64encode(named.encode()).decode()}"


def _inside(text: str) -> str:
    """A script that does not end before its end; in strings and patterns, a backslash changes
    nothing."""
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)


def _icon(name: str) -> str:
    path = STATIC / name
    return _address(path, KINDS[path.suffix])


def _address(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"

"""The plots of docs/benchmarks.md, as SVG that is the same for the same figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interleaved import ratio

COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed")
STYLE = {
    "axes.edgecolor": "#94a3b8",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.prop_cycle": plt.cycler(color=COLORS),
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.color": "#e2e8f0",
    "legend.frameon": False,
    "lines.marker": "o",
    "lines.markersize": 4,
    "svg.hashsalt": "loopwright",
}
LABELS = {
    "callbacks": ("callbacks", "CPU time of a step, µs"),
    "metrics": ("values logged in every step", "CPU time of a step, µs"),
    "optimizers": ("optimizers", "CPU time of a step, µs"),
    "parameters": ("parameter tensors", "CPU time of a step, µs"),
}
Found = Mapping[str, Any]


def draw(results: Found | None, growth: Found | None, folder: Path) -> None:
    """Draw what there is."""
    with plt.rc_context(STYLE):
        if results and "W1" in results["workloads"]:
            _save(_peers(results["workloads"]["W1"]), folder / "bench-peers.svg")
        for part in growth or ():
            drawn = {"steps": _steps, "seek": _seek}.get(part)
            figure = drawn(growth[part]) if drawn else _sweep(part, growth[part])
            _save(figure, folder / f"bench-{part}.svg")


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _peers(found: Found) -> Figure:
    """Bars of everything that is run as a new user runs it."""
    names = [name for name in found["times"] if name.endswith(":default")]
    names += ["naive", "tight", "ours_own_optimizer", "ours_factory", "ours_compiled"]
    ratios = {
        name: ratio(found["times"], name, "naive") for name in names if name in found["times"]
    }
    ordered = sorted(ratios, key=lambda name: -ratios[name].median)
    figure, axes = plt.subplots(figsize=(7, 0.32 * len(ordered) + 0.8))
    for place, name in enumerate(ordered):
        of = ratios[name]
        color = (
            COLORS[0]
            if name.startswith("ours")
            else "#334155"
            if name in ("naive", "tight")
            else "#cbd5e1"
        )
        axes.barh(
            place,
            of.median,
            color=color,
            xerr=[[of.median - of.low], [of.high - of.median]],
            ecolor="#64748b",
        )
    axes.set_yticks(range(len(ordered)), [_label(name) for name in ordered])
    axes.axvline(1, color="#334155", linewidth=0.8, marker="")
    axes.set_xlabel("CPU time of a step on W1, × the naive loop (shorter is faster)")
    axes.grid(axis="y", visible=False)
    return figure


def _label(name: str) -> str:
    known = {
        "naive": "naive loop",
        "tight": "tight loop",
        "ours_own_optimizer": "Loopwright, own optimizer",
        "ours_factory": "Loopwright, factory",
        "ours_compiled": "Loopwright, compiled step",
    }
    return known.get(name, name.removesuffix(":default").replace("_", "-"))


def _axes(columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(
        1, columns, figsize=(4.6 * columns if columns > 1 else 6, 3), squeeze=False
    )
    return figure, list(axes[0])


def _steps(found: Found) -> Figure:
    figure, (time, memory) = _axes(2)
    millions = [step / 1e6 for step in found["step"]]
    time.plot(millions, found["microseconds"])
    time.set(
        xlabel="steps, millions",
        ylabel="CPU time of a step, µs",
        ylim=(0, max(found["microseconds"]) * 1.2),
    )
    memory.plot(millions, found["megabytes"], color=COLORS[1])
    memory.set(
        xlabel="steps, millions",
        ylabel="memory resident, MB",
        ylim=(0, max(found["megabytes"]) * 1.2),
    )
    return figure


def _seek(found: Found) -> Figure:
    figure, (axes,) = _axes()
    kinds = {kind: times for kind, times in found.items() if kind != "samples"}
    for kind, times in kinds.items():
        axes.plot([place / 1e6 for place in found["samples"]], times, label=kind)
    axes.set(xlabel="resumed at sample, millions", ylabel="time to the next batch, ms")
    axes.set_ylim(0, max(max(times) for times in kinds.values()) * 1.4)
    axes.legend()
    return figure


def _sweep(part: str, found: Found) -> Figure:
    figure, (axes,) = _axes()
    for kind, times in found.items():
        if kind != "number":
            axes.plot(found["number"], times, label=kind)
    across, up = LABELS[part]
    axes.set(xlabel=across, ylabel=up)
    axes.set_xscale("symlog" if 0 in found["number"] else "log")
    if part in ("optimizers", "parameters"):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0)
    axes.legend()
    return figure

"""What a chart of the page shows, read from plotly's own state."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page

# of events
HAS_LINES = "(plot) => plot.data.some((trace) => trace.yaxis === 'y2' && trace.mode === 'lines')"


def panel(page: Page, name: str) -> Locator:
    return page.locator(f'[data-panel="{name}"]')


def wait_for_chart(page: Page, name: str) -> Locator:
    """The panel of a metric, once it has drawn a curve."""
    wait_for_plot(
        page,
        name,
        "(plot) => plot.data.some((trace) => trace.yaxis !== 'y2' && trace.x.length > 1)",
    )
    return panel(page, name)


def wait_for_plot(page: Page, name: str, condition: str, arg: Any = None) -> None:
    """Wait until a condition `(plot, arg) => …` on what plotly drew for a metric is true."""
    plot = """document.querySelector(`[data-panel="${name}"] .plot`)"""
    found = f"const plot = {plot}; return Boolean(plot?._fullLayout) && ({condition})(plot, arg);"
    page.wait_for_function(f"([name, arg]) => {{ {found} }}", arg=[name, arg])


def traces(page: Page, name: str) -> list[dict[str, Any]]:
    """The traces of a panel: x, y, kind of line, colour; the axis of marks is `y2`."""
    return page.evaluate(
        """(name) => document.querySelector(`[data-panel="${name}"] .plot`).data.map((trace) => ({
            x: [...trace.x], y: [...trace.y], fill: trace.fill ?? null, axis: trace.yaxis ?? "y", mode: trace.mode,
            dash: trace.line?.dash ?? null, colour: trace.line?.color ?? null, width: trace.line?.width ?? null,
            symbol: trace.marker?.symbol ?? null}))""",
        name,
    )


def lines(page: Page, name: str) -> list[dict[str, Any]]:
    return [trace for trace in traces(page, name) if trace["axis"] == "y" and not trace["fill"]]


def x_range(page: Page, name: str) -> list[float]:
    return page.evaluate(
        """(name) => [...document.querySelector(`[data-panel="${name}"] .plot`)._fullLayout.xaxis.range]""",
        name,
    )


def drag(page: Page, name: str, start: float, end: float) -> None:
    """Draw a range over a chart with the mouse, from one share of its width to another."""
    box = panel(page, name).locator(".plot .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + (start + end) / 2 * box["width"], y, steps=4)
    page.mouse.move(box["x"] + end * box["width"], y, steps=4)
    page.mouse.up()

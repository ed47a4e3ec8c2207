"""The generated parts of docs/scaling.md: figures, the check against counts, and the table of
models.

`python -m tests.scaling.page` writes them into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loopwright.scaling import DEVICES, LINKS, Comparison, ModelShape, compare, transformer
from loopwright.scaling.estimate import TITLES
from loopwright.text import size
from tests.scaling.test_counts import CASES

PAGE = Path(__file__).parent.parent.parent / "docs" / "scaling.md"
NUMBERS = (8, 64, 256, 512, 1024, 2048, 4096)
BATCH = 1024


def models() -> list[ModelShape]:
    return [
        transformer(12, 768, sequence=2048, parameters=125e6, name="125M"),
        transformer(24, 2048, sequence=2048, parameters=1.3e9, name="1.3B"),
        transformer(32, 4096, sequence=4096, parameters=7e9, name="7B"),
        transformer(80, 8192, sequence=4096, parameters=70e9, name="70B"),
    ]


def lines_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def devices_part() -> Iterator[str]:
    rows = []
    for key, one in DEVICES.items():
        memory, speed = f"{one.memory / 1e9:.0f} GB", f"{one.bandwidth / 1e12:.2f} TB/s"
        rows.append([f"`{key}`", one.name, f"{one.flops / 1e12:,.0f}", memory, speed])
    yield from lines_of(
        ["name", "device", "dense bf16 TFLOP/s", "memory", "memory bandwidth"], rows
    )
    yield ""
    links = [[f"`{key}`", one.name, f"{one.bandwidth / 1e9:g} GB/s", f"{one.latency * 1e6:.1f} µs"]
             for key, one in LINKS.items()]  # fmt: skip
    yield from lines_of(["name", "link", "one way", "assumed latency of a hop"], links)


def counts_part() -> Iterator[str]:
    rows = []
    for name, case in CASES.items():
        one = case.estimate()
        mesh = f"{case.mesh.replicate} x {case.mesh.shard} x {case.mesh.tensor}"
        kinds = {
            kind: sum(each.count for each in one.collectives if each.kind == kind) for kind in KINDS
        }
        payload = sum(each.count * each.payload for each in one.collectives)
        rows.append(
            [
                name,
                mesh,
                *map(str, kinds.values()),
                f"{payload:,}",
                f"{one.wire:,.0f}",
                f"{one.memory.state:,}",
            ]
        )
    yield from lines_of(
        ["case", "mesh", *KINDS.values(), "payload", "sent", "state of rank 0"], rows
    )


KINDS = {
    "all-reduce": "all-reduces",
    "all-gather": "all-gathers",
    "reduce-scatter": "reduce-scatters",
}


def models_part() -> Iterator[str]:
    for model in models():
        yield from model_part(compare(model, devices=NUMBERS, batch=BATCH))


def model_part(table: Comparison) -> Iterator[str]:
    model = table.model
    yield (
        f"**{model.name}**: {model.num_parameters:,} parameters, samples of {model.tokens:,} tokens"
    )
    yield ""
    rows = []
    for number in table.devices:
        cells = [_cell(table, strategy, number) for strategy in TITLES]
        rows.append([f"{number:,}", *cells, *_best(table, number)])
    yield from lines_of(["devices", *TITLES.values(), "best", "tokens/s"], rows)
    yield ""
    for each in table.ranges:
        yield f"- {each.text}"
    yield ""


def _best(table: Comparison, number: int) -> tuple[str, str]:
    """The strategy to use and its speed, or that there are too few or too many devices."""
    best = table.best(number)
    if best is None or not best.is_sensible:
        fits = any(one.fits for (_, n), one in table.estimates.items() if n == number)
        return ("fewer devices" if fits else "more devices"), ""
    name = best.sizes.runtime.removeprefix("runtime=").replace(", plan=...", "")
    return f"`{name}`", f"{best.tokens_per_second / 1e3:,.0f}k"


def _cell(table: Comparison, strategy: str, number: int) -> str:
    one = table.estimates.get((strategy, number))
    if one is None:
        return ""
    if not one.fits:
        return f"{size(one.memory.total)}, no"
    return f"{size(one.memory.total)}, {one.communication_share:.0%}, {one.efficiency:.0%}"


PARTS = {"devices": devices_part, "counts": counts_part, "models": models_part}


def renewed(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, part in PARTS.items():
        before, begin, rest = page.partition(f"<!-- {name}: generated -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        page = "".join((before, begin, "\n".join(part()).rstrip(), "\n", end, after))
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

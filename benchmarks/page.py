"""Writes the measured parts of docs/benchmarks.md, each between its two markers, and leaves the
text around them."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interleaved import ratio
from loop import FIRST_STEP_TARGET, IMPORT_TARGET, TARGETS
from peers.environments import FOLDER, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
SAME = 1e-6
TITLES = {
    "ignite": "ignite",
    "poutyne": "Poutyne",
    "skorch": "skorch",
    "accelerate": "accelerate",
    "pytorch_accelerated": "pytorch-accelerated",
    "lightning": "Lightning",
    "transformers": "transformers Trainer",
    "fastai": "fastai",
    "keras": "Keras on torch",
}
OURS = {  # title: everything off, as a new user runs it
    "**Loopwright**, own optimizer object": ("ours_bare_own", "ours_own_optimizer"),
    "**Loopwright**, optimizer as a factory": ("ours_bare", "ours_factory"),
    '**Loopwright**, `compile="step"`, own optimizer object': (None, "ours_compiled_own"),
    '**Loopwright**, `compile="step"`, factory': ("ours_compiled_bare", "ours_compiled"),
}
WORKLOADS = {
    "W1": "W1: MLP 10-64-1, Adam, batches of 32: nothing but the loop",
    "W2": "W2: small CNN on 28×28, Adam, batches of 64",
    "W3": "W3: GPT of four layers, width 128, AdamW, 8 sequences of 128: nothing but compute",
}
Found = Mapping[str, Any]


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table(*head: str) -> list[str]:
    return [row(*head), "|" + "---|" * len(head)]


# Us and the peers


def versus(found: Found, name: str | None, base: str) -> str:
    """A ratio with the middle half of it, or why there is none."""
    if name in found["failures"]:
        return f"failed: {found['failures'][name]}"
    if name not in found["times"]:
        return "–"
    of = ratio(found["times"], name, base)
    return f"{of.median:.2f} ({of.low:.2f}–{of.high:.2f})"


def sorted_peers(results: Found, found: Found) -> list[str]:
    """Those that are fastest as a new user runs them first; those without times last."""

    def place(peer: str) -> float:
        name = f"{peer}:default"
        return (
            ratio(found["times"], name, "naive").median if name in found["times"] else float("inf")
        )

    return sorted((peer for peer in results["environments"] if peer != "loopwright"), key=place)


def title(results: Found, peer: str) -> str:
    version = results["environments"][peer].get("version")
    return f"{TITLES.get(peer, peer)} {version}" if version else TITLES.get(peer, peer)


def workload_table(results: Found, workload: str) -> Iterator[str]:
    found = results["workloads"][workload]
    step = statistics.median(found["times"]["naive"]) * 1e6
    yield f"\n### {WORKLOADS[workload]}\n"
    yield (
        f"A step of the naive loop takes {step:,.0f} µs of CPU; the table has multiples of that.\n"
    )
    yield from table("", "everything off", "as a new user runs it")
    yield row("naive loop", "", "1.00")
    yield row("tight loop", versus(found, "tight", "naive"), "")
    for name, (off, default) in OURS.items():
        if {off, default} & (found["times"].keys() | found["failures"].keys()):
            yield row(name, versus(found, off, "naive"), versus(found, default, "naive"))
    for peer in sorted_peers(results, found):
        if reason := results["environments"][peer].get("failed"):
            yield row(title(results, peer), f"not installable here: {reason}", "")
        else:
            yield row(
                title(results, peer),
                *(versus(found, f"{peer}:{kind}", "naive") for kind in ("off", "default")),
            )


def interfaces_table(results: Found) -> Iterator[str]:
    found = results["workloads"]["W1"]
    rows = [entry for entry in TARGETS if entry[0].startswith("interface_")]
    if not any(name in found["times"] for name, *_ in rows):
        return
    yield "\n### The five interfaces on W1\n"
    yield "Each against the native trainer that does the same, both without a display.\n"
    yield from table("interface", "× the native trainer", "target")
    for name, base, _, target in rows:
        yield row(
            name.removeprefix("interface_").replace("_", ", ", 1).replace("_", " "),
            versus(found, name, base),
            target,
        )


def additions_table(results: Found) -> Iterator[str]:
    yield "\n### What comes with it\n"
    yield (
        "A call is what the training function does at its start and its end, on W1 as a new "
        "user runs it.\n"
    )
    yield from table(
        "", "import on top of torch, CPU s", "packages added", "MB added", "a call, CPU ms"
    )
    found, calls = results["environments"], results["workloads"]["W1"]["calls"]
    for peer in sorted(found, key=lambda peer: found[peer].get("import", float("inf"))):
        own = found[peer]
        name = "**Loopwright**" if peer == "loopwright" else title(results, peer)
        if "failed" in own:
            yield row(name, f"not installable here: {own['failed']}", "", "", "")
        else:
            call = calls.get("ours_own_optimizer" if peer == "loopwright" else f"{peer}:default")
            shown = "–" if call is None else f"{max(call, 0) * 1e3:.0f}"
            yield row(
                name, f"{own['import']:.2f}", own["packages"], f"{own['megabytes']:.0f}", shown
            )


def verdict(found: Found, name: str) -> str:
    """Whether a contender's loss is the naive loop's, or why not."""
    loss, differs = found["losses"].get(name, (None, None))
    if loss is None:
        return "–"
    distance = abs(loss - found["losses"]["naive"][0])
    if distance <= SAME:
        return "same"
    return f"{distance:.0e}: {differs}" if differs else f"{distance:.0e}"


def losses_table(results: Found) -> Iterator[str]:
    workloads = results["workloads"]
    steps = ", ".join(
        f"{number} steps of {name}"
        for name, number in results["checked"].items()
        if name in workloads
    )
    yield "\n### The same training?\n"
    yield (
        f"The loss after {steps}, with the same start and samples in the same order: within "
        f"{SAME:g} of the naive"
    )
    yield "loop's, or how far away and why.\n"
    yield from table("", *workloads)
    names = ["tight", *(name for pair in OURS.values() for name in pair if name)]
    names += [
        f"{peer}:{kind}"
        for peer in sorted_peers(results, workloads["W1"])
        for kind in ("off", "default")
    ]
    for name in names:
        if any(name in found["losses"] for found in workloads.values()):
            yield row(f"`{name}`", *(verdict(found, name) for found in workloads.values()))


def peers_part(results: Found) -> str:
    where = results["machine"]
    lines = [
        f"{where['date']}: {where['processor']}, {where['cores']} cores, {where['system']}, "
        f"Python {where['python']},",
        f"torch {where['torch']}, one thread. Median of {results['rounds']} interleaved rounds, "
        "in brackets the middle",
        f"half of them. The measurement took {results['minutes']:.0f} minutes; the machine's load "
        f"was {results['load']:.1f} over the last 15 of them",
        "(1 is the measurement itself).",
    ]
    for workload in results["workloads"]:
        lines += workload_table(results, workload)
    if "W1" in results["workloads"]:
        lines += [*interfaces_table(results), *additions_table(results), *losses_table(results)]
    return "\n".join(lines)


def targets_part() -> str:
    lines = table("what", "on", "at most")
    for name, base, workloads, target in TARGETS:
        if target is not None:
            lines.append(row(f"`{name}`", ", ".join(workloads), f"{target:.2f} × `{base}`"))
    lines.append(row("import of `Trainer`", "", f"{IMPORT_TARGET:.2f} × `import torch`"))
    lines.append(row("`train()` to the first step", "W1", f"{FIRST_STEP_TARGET} ms"))
    return "\n".join(lines)


# Growth

PLOTS = {  # what is shown; whether it grows is for the figures to say
    "steps": "A step and the memory in a long run",
    "seek": "Resuming at several places of an epoch",
    "callbacks": "Callbacks without an event in the loop, and with one",
    "metrics": "Values logged in every step",
    "optimizers": "Several optimizers, against the same by hand",
    "parameters": "Many parameter tensors, against the same by hand",
}


def growth_part(growth: Found) -> str:
    lines = []
    for part, sentence in PLOTS.items():
        if part in growth:
            lines += [
                f"![{sentence}](images/bench-{part}.svg)\n",
                f"{sentence}: {said(part, growth[part])}\n",
            ]
    return "\n".join(lines)


def said(part: str, found: Found) -> str:
    """The figures of a plot in a sentence."""
    if part == "steps":
        half = len(found["step"]) // 2
        early, late = (
            statistics.median(found["microseconds"][at]) for at in (slice(half), slice(half, None))
        )
        few, many = found["starts"].items()
        return (
            f"{early:.0f} µs in the first half of {found['step'][-1]:,} steps, {late:.0f} µs in "
            f"the second; {found['megabytes'][0]:.0f} MB resident after a twentieth of it, "
            f"{found['megabytes'][-1]:.0f} MB at the end. With the {int(many[0]):,} points that "
            f"it stored ({found['store_megabytes']:.0f} MB) the run goes on {many[1]:.0f} ms "
            f"after `train` was called; with {int(few[0]):,} points it was {few[1]:.0f} ms."
        )
    if part == "seek":
        kinds = {kind: times for kind, times in found.items() if kind != "samples"}
        each = (f"{kind} {min(times):.1f} to {max(times):.1f} ms" for kind, times in kinds.items())
        return f"{'; '.join(each)}, at seven places of {found['samples'][-1]:,} samples."
    numbers = found["number"]
    each = (
        f"{kind} {times[0]:,.0f} µs with {numbers[0]} and {times[-1]:,.0f} µs with {numbers[-1]:,}"
        for kind, times in found.items()
        if kind != "number"
    )
    return f"{'; '.join(each)}."


# The page


def replaced(text: str, part: str, lines: str) -> str:
    """The page with another text between the two markers of a part."""
    begin, end = f"<!-- measured: {part} -->", "<!-- end -->"
    found = re.search(re.escape(begin) + ".*?" + end, text, re.S)
    if found is None:
        raise ValueError(f"docs/benchmarks.md has no {begin}")
    return text[: found.start()] + f"{begin}\n{lines.strip()}\n{end}" + text[found.end() :]


def written(text: str, results: Found | None, growth: Found | None) -> str:
    """The page with everything that is known put in."""
    text = replaced(text, "targets", targets_part())
    if results:
        text = replaced(text, "peers", peers_part(results))
    if growth:
        text = replaced(text, "growth", growth_part(growth))
    return text


def write_stored(page: Path = PAGE) -> None:
    """Write page and plots from what the last measurements left."""
    results, growth = (
        json.loads(file.read_text()) if file.exists() else None
        for file in (FOLDER / "results.json", FOLDER / "growth.json")
    )
    from plots import draw

    draw(results, growth, IMAGES)
    page.write_text(written(page.read_text(), results, growth))
    print(f"written: {page.relative_to(ROOT)}")

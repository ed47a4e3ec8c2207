"""A verdict for each target in about two minutes, without peers; on a busy machine it takes longer
and says less.

    python benchmarks/quick.py [--rounds 5]

It ends with 0 whatever it finds: a machine with other work on it must not fail a build.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time

from interleaved import Contender, Ratio, measure_all, ratio
from loop import FIRST_STEP_TARGET, IMPORT_TARGET, TARGETS, measure_first_step, measure_import

NOISE = 0.05
ROUNDS = {"W1": 1.0, "W2": 0.6, "W3": 0.6}  # of those asked for
# compiling alone takes longer than all the others
LEFT_OUT = (
    "compiled",
    "records",
    "own_loop",
    "profile",
)


def judged(found: Ratio, target: float) -> str:
    """The verdict on a ratio: noise is no miss."""
    if found.median <= target:
        return "met"
    return "met within noise" if found.median <= target + NOISE or found.low <= target else "MISSED"


def show(what: str, found: object, target: object, verdict: str) -> None:
    print(f"  {what:44s} {found!s:22s} target <= {target!s:6s} {verdict}", flush=True)


def quick_rows(workload: str) -> list[tuple[str, str, float]]:
    return [
        (name, base, target)
        for name, base, workloads, target in TARGETS
        if workload in workloads
        and target is not None
        and not any(part in name for part in LEFT_OUT)
    ]


def report_workload(workload: str, num_rounds: int) -> None:
    rows = quick_rows(workload)
    names = list(dict.fromkeys(["naive", *(name for row in rows for name in (row[1], row[0]))]))
    measured = measure_all(names, workload, num_rounds)
    print(f"{workload}, {num_rounds} rounds")
    for name, base, target in rows:
        if failed := [one for one in (name, base) if one in measured.failures]:
            print(f"  {name:44s} failed: {measured.failures[failed[0]]}")
            continue
        found = ratio(measured.times, name, base)
        show(f"{name} / {base}", found, target, judged(found, target))
    left_out = [
        row[0]
        for row in TARGETS
        if workload in row[2] and row[3] is not None and row[0] not in names
    ]
    if left_out:
        print(f"  left out, see `make bench`: {', '.join(left_out)}")


def report_data(num_rounds: int) -> None:
    """W4, where its benchmark is there: CPU time of the training and its workers together."""
    if importlib.util.find_spec("data") is None:
        return print("W4: no benchmarks/data.py")
    import data

    print(f"W4, {num_rounds} rounds")
    for workload in ("plain/0", "plain/2", "augmented/0", "augmented/2"):
        contenders = {name: Contender(name, workload, module="data") for name in ("naive", "bar")}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(num_rounds):
            for name, contender in contenders.items():
                times[name].append(contender.time_round()[1])
        for contender in contenders.values():
            contender.close()
        found = ratio(times, "bar", "naive")
        show(f"ours / naive, {workload} workers", found, data.TARGET, judged(found, data.TARGET))
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    began = time.monotonic()
    for workload, part in ROUNDS.items():
        report_workload(workload, max(int(options.rounds * part), 2))
    report_data(2)
    print("start")
    found = ratio(measure_import(3), "loopwright", "torch")
    show("import of Trainer / import torch", found, IMPORT_TARGET, judged(found, IMPORT_TARGET))
    first = measure_first_step(3)
    verdict = "met" if first <= FIRST_STEP_TARGET else "MISSED"
    show("train() to the first step, W1", f"{first:.0f} ms", f"{FIRST_STEP_TARGET} ms", verdict)
    print(
        f"\n{time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f} (1 is this benchmark "
        "itself)"
    )


if __name__ == "__main__":
    main()

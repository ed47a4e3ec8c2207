"""Measures us, our interfaces, two hand-written loops and every peer on W1 to W3, and writes
docs/benchmarks.md.

    python benchmarks/table.py [--rounds 7] [--workloads W1 W2 W3] [--peers lightning ...]
    [--page-only]

The environments must be there (`python benchmarks/peers/environments.py`; `make bench-peers` does
both). Results are kept in `.bench/results.json` after each workload, and a contender that fails
leaves its reason there instead of times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contenders import CONTENDERS
from interface_contenders import INTERFACES
from interleaved import measure_all
from loop import TARGETS
from peers.environments import FOLDER, ROOT, Environment, megabytes, sections

RESULTS = FOLDER / "results.json"
KINDS = ("off", "default")
NUM_CHECKED = {"W1": 50, "W2": 10, "W3": 5}
HAND_WRITTEN = ["naive", "tight"]
LEFT_OUT = {"ours_bare_idle", "ours_bare_profile"}  # these are for loop.py
IMPORT_TIME = """
import sys, time
sys.path.insert(0, {folder!r})
import torch, workloads
before = time.process_time()
{statement}
print(time.process_time() - before)
"""


def contenders_of(workload: str, peers: list[str]) -> list[str]:
    """In the order of a round: hand-written, ours, interfaces on W1, peers that have an
    environment."""
    ours = [name for name in CONTENDERS if name.startswith("ours_") and name not in LEFT_OUT]
    interfaces = [
        name
        for name in INTERFACES
        if any(name in row[:2] and workload in row[2] for row in TARGETS)
    ]
    theirs = [f"{peer}:{kind}" for peer in peers if not Environment(peer).failure for kind in KINDS]
    return [*HAND_WRITTEN, *ours, *interfaces, *theirs]


class Progress:
    """Prints where the measurement is and, from the second round on, how long the rest of it
    takes."""

    def __init__(self, workload: str, num_contenders: int, num_rounds: int) -> None:
        self.workload, self.num_contenders, self.num_rounds = workload, num_contenders, num_rounds
        self.began = time.monotonic()

    def __call__(self, name: str, round_number: int, number: int) -> None:
        what = "starting" if round_number == 0 else f"round {round_number} of {self.num_rounds}"
        if round_number == 1 and number == 1:
            self.began = time.monotonic()
        done = (round_number - 1) * self.num_contenders + number
        left = ""
        if round_number > 1:
            seconds = (
                (time.monotonic() - self.began)
                / done
                * (self.num_rounds * self.num_contenders - done)
            )
            left = f", {seconds:.0f} s of rounds left"
        print(
            f"{self.workload}: {what}, {number} of {self.num_contenders}: {name}{left}", flush=True
        )


def measure_workload(workload: str, peers: list[str], num_rounds: int) -> dict[str, Any]:
    names = contenders_of(workload, peers)
    measured = measure_all(
        names,
        workload,
        num_rounds,
        interpreters={
            name: Environment(name.split(":")[0]).python for name in names if ":" in name
        },
        num_checked=NUM_CHECKED[workload],
        report=Progress(workload, len(names), num_rounds),
    )
    return {
        "times": measured.steps,
        "calls": {name: statistics.median(times) for name, times in measured.calls.items()},
        "losses": measured.losses,
        "failures": measured.failures,
    }


def import_seconds(peer: str) -> float:
    """CPU seconds of importing what a contender uses, with torch imported before."""
    statement = "from loopwright import Trainer" if peer == "loopwright" else f"import peers.{peer}"
    code = IMPORT_TIME.format(folder=str(Path(__file__).parent), statement=statement)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if peer == "loopwright":
        environment["PYTHONPATH"] = str(ROOT / "src")
    result = subprocess.run(
        [str(Environment(peer).python), "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(result.stdout.split()[-1])


def measure_environments(peers: list[str], num_rounds: int) -> dict[str, Any]:
    """What each peer adds: packages, megabytes, seconds of import; or why it is not there."""
    found: dict[str, Any] = {}
    for peer in ["loopwright", *peers]:
        environment = Environment(peer)
        if environment.failure:
            found[peer] = {"failed": environment.failure}
            continue
        print(f"import: {peer}", flush=True)
        own = megabytes(ROOT / "src") if peer == "loopwright" else 0.0
        packages = environment.packages()
        found[peer] = {
            "version": version("loopwright") if peer == "loopwright" else _version(peer, packages),
            "packages": len(packages) + (peer == "loopwright"),
            "megabytes": environment.megabytes() + own,
            "import": statistics.median(import_seconds(peer) for _ in range(num_rounds)),
        }
    return found


def _version(peer: str, packages: dict[str, str]) -> str:
    """The version of what the section of versions.txt asks for first."""
    asked = sections()[peer][0].split("==")[0].split("[")[0]
    return packages[asked]


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": date.today().isoformat(),
    }


def save(results: dict[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1))


def measure(workloads: list[str], peers: list[str], num_rounds: int) -> None:
    began = time.monotonic()
    results: dict[str, Any] = {
        "machine": machine(),
        "rounds": num_rounds,
        "checked": NUM_CHECKED,
        "workloads": {},
    }
    results["environments"] = measure_environments(peers, 3)
    for workload in workloads:
        results["workloads"][workload] = measure_workload(workload, peers, num_rounds)
        results |= {"load": os.getloadavg()[2], "minutes": (time.monotonic() - began) / 60}
        save(results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workloads", nargs="*", default=list(NUM_CHECKED))
    parser.add_argument(
        "--peers", nargs="*", default=[peer for peer in sections() if peer != "loopwright"]
    )
    parser.add_argument(
        "--page-only", action="store_true", help="write the page from the results that are there"
    )
    options = parser.parse_args()
    if not options.page_only:
        measure(options.workloads, options.peers, options.rounds)
    if not RESULTS.exists():
        sys.exit(f"no results in {RESULTS.relative_to(ROOT)}: run it without --page-only")
    from page import write_stored

    write_stored()


if __name__ == "__main__":
    main()

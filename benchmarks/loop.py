"""What the loop costs: W1 to W3 against hand-written loops, the interfaces against the trainer,
import and the first step.

    python benchmarks/loop.py [--rounds 11] [--workloads W1 W2 W3]

Only ratios within one run mean anything; within 0.05 of 1 is "the same".
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from interleaved import measure, ratio

TARGETS = [
    # contender, compared with, workloads, at most
    ("tight", "naive", ("W1",), None),
    ("ours_own_optimizer", "naive", ("W1",), 0.80),
    ("ours_factory", "naive", ("W1",), 0.65),
    ("ours_bare", "tight", ("W1",), 1.05),
    ("ours_compiled_own", "naive", ("W1",), 0.40),
    ("ours_compiled", "naive", ("W1",), 0.40),
    ("ours_compiled_bare", "naive", ("W1",), 0.40),
    ("ours_compiled_own", "ours_own_optimizer", ("W2", "W3"), 1.00),
    ("ours_bare_idle", "ours_bare", ("W1",), 1.02),
    ("ours_bare_profile", "ours_bare", ("W1", "W2"), None),
    ("ours_own_optimizer", "naive", ("W2", "W3"), 1.00),
    ("interface_simple", "native_plain", ("W1",), 1.15),
    ("interface_lifecycle", "native_plain", ("W1",), 1.15),
    ("interface_configured", "native_plain", ("W1",), 1.15),
    ("interface_configured_records", "native_records", ("W1",), 1.15),
    ("interface_modular", "native_plain", ("W1",), 1.15),
    ("interface_modular_own_loop", "native_plain", ("W1",), 1.15),
    ("interface_adversarial", "native_paired", ("W1",), 1.15),
]
IMPORT_TARGET = 1.05  # of `Trainer`, compared with torch alone
FIRST_STEP_TARGET = 25  # milliseconds
IMPORTS = {
    "torch": "import torch",
    "loopwright": "import torch, loopwright; loopwright.Trainer",
}
FIRST_STEP = """
import tempfile, time, torch
from torch.utils.data import DataLoader
import sys; sys.path.insert(0, "benchmarks")
from workloads import WORKLOADS
from loopwright import Trainer
class Timed(Trainer):
    def train_step(self, batch):
        self.first = getattr(self, "first", None) or time.perf_counter()
        return super().train_step(batch)
work = WORKLOADS["W1"]
model, data = work.build_model(), work.build_data()
trainer = Timed(model, work.build_optimizer(model.parameters()), work.loss_fn, run_dir=tempfile.mkdtemp() + "/run",
                progress="silent")
loader = DataLoader(data, batch_size=32, shuffle=True)
began = time.perf_counter()
trainer.train(loader, num_updates=2)
print((trainer.first - began) * 1000)
"""
CPU_OF = "import time; {code}; print(time.process_time())"


def printed_number(code: str) -> float:
    # as an installed package
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return float(result.stdout.split()[-1])


def report_loops(workload: str, num_rounds: int) -> None:
    rows = [row for row in TARGETS if workload in row[2]]
    names = list(dict.fromkeys(name for row in rows for name in (row[1], row[0])))
    times = measure(names, workload, num_rounds)
    print(
        f"\n{workload}: CPU time per step, median of {num_rounds} interleaved rounds (middle half)"
    )
    for name in names:
        print(f"  {name:24s} {statistics.median(times[name]) * 1e6:10.0f} us")
    for name, base, _, target in rows:
        verdict = "" if target is None else f"   target <= {target:.2f}"
        print(f"  {name:24s} / {base:14s} {ratio(times, name, base)}{verdict}")


def measure_import(num_rounds: int) -> dict[str, list[float]]:
    """CPU seconds of importing torch, and the trainer with it."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(num_rounds):
        for name, code in IMPORTS.items():
            times[name].append(printed_number(CPU_OF.format(code=code)))
    return times


def report_import(num_rounds: int) -> None:
    times = measure_import(num_rounds)
    print(
        "\nimport, CPU seconds: "
        f"{', '.join(f'{n} {statistics.median(t):.2f}' for n, t in times.items())}"
    )
    print(
        f"  with Trainer / torch alone  {ratio(times, 'loopwright', 'torch')}   target <= "
        f"{IMPORT_TARGET:.2f}"
    )


def measure_first_step(num_rounds: int) -> float:
    """Milliseconds from `train` to the first step."""
    return statistics.median(printed_number(FIRST_STEP) for _ in range(num_rounds))


def report_first_step(num_rounds: int) -> None:
    found, target = measure_first_step(num_rounds), FIRST_STEP_TARGET
    print(
        f"\ntrain() to the first step, W1 with a run directory: {found:.0f} ms   target <= "
        f"{target} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workloads", nargs="*", default=["W1", "W2", "W3"])
    options = parser.parse_args()
    for workload in options.workloads:
        report_loops(workload, options.rounds)
    report_import(max(options.rounds // 2, 3))
    report_first_step(5)


if __name__ == "__main__":
    main()

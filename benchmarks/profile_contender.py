"""Where the time of a contender's step goes, by function, in µs a step; a peer runs in its own
environment.

    python benchmarks/profile_contender.py lightning:default [--workload W1] [--steps 1000] [--lines
    25]

A profile makes small functions look dearer than they are; shares of a step are what it is for.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
from pathlib import Path
from time import process_time

from peers.environments import Environment


def label(function: tuple[str, int, str]) -> str:
    """The last parts of the path, and the name."""
    path, line, name = function
    return f"{'/'.join(Path(path).parts[-3:])}:{line} {name}" if line else name


def show(profile: cProfile.Profile, num_steps: int, num_lines: int) -> None:
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for what, place in (("with what it calls", 3), ("in itself", 2)):
        print(f"\n{what}, µs a step (calls a step)", file=sys.stderr)
        for function, values in sorted(stats.items(), key=lambda item: -item[1][place])[:num_lines]:
            cost, calls = values[place] / num_steps * 1e6, values[1] / num_steps
            print(f"  {cost:8.0f}  ({calls:6.2f})  {label(function)}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", help="of contenders.py or interface_contenders.py, or PEER:off, PEER:default"
    )
    parser.add_argument("--workload", default="W1")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=25)
    options = parser.parse_args()
    python = str(Environment(options.name.split(":")[0]).python)
    if ":" in options.name and sys.executable != python:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        os.execve(python, [python, *sys.argv], environment)

    import torch

    from contender import find
    from workloads import WORKLOADS

    torch.set_num_threads(1)
    run = find(options.name)[0](WORKLOADS[options.workload])
    run(20)
    profile = cProfile.Profile(process_time)
    profile.runcall(run, options.steps)
    show(profile, options.steps, options.lines)


if __name__ == "__main__":
    main()

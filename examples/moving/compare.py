"""Run the programs before and after moving to Loopwright, and compare what they print.

    python examples/moving/compare.py [NAME ...]        (or `make moving`)

Each program from another library runs in that library's environment, which
`benchmarks/peers/environments.py` makes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".bench"


def interpreter(name: str) -> str:
    own = ENVIRONMENTS / name / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def printed_loss(program: Path, python: str) -> float | str:
    """The loss that a program prints, or the last line of its error."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        result = subprocess.run(
            [python, str(program)], cwd=folder, env=environment, capture_output=True, text=True
        )
    found = re.search(r"eval loss ([\d.]+)", result.stdout)
    return (
        float(found[1])
        if found
        else (result.stderr.strip().splitlines() or ["it printed no loss"])[-1]
    )


def main() -> int:
    names = sys.argv[1:] or sorted(path.parent.name for path in HERE.glob("*/before.py"))
    num_different = 0
    for name in names:
        before = printed_loss(HERE / name / "before.py", interpreter(name))
        after = printed_loss(HERE / name / "after.py", sys.executable)
        is_same = (
            isinstance(before, float) and isinstance(after, float) and abs(before - after) < 1e-5
        )
        num_different += not is_same
        print(
            f"{name:14s} before {before}   after {after}   "
            f"{'the same' if is_same else 'DIFFERENT'}",
            flush=True,
        )
    return min(num_different, 1)


if __name__ == "__main__":
    raise SystemExit(main())

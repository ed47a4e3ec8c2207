"""The example for several processes trains the same model with each way to start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.forked import run_forked

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "distributed.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def test_loss_moves_from_shards_on_two_processes_to_one_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    options = ("--run-dir", "run", "--epochs")
    result = subprocess.run(
        [*TORCHRUN, "2", str(EXAMPLE), *options, "1", "--runtime", "fsdp"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("2 process(es), test loss ")
    moved = run_forked(EXAMPLE, tmp_path, *options, "2").splitlines()[-1]
    alone = run_forked(EXAMPLE, tmp_path, "--epochs", "2").splitlines()[-1]
    assert moved == alone
    assert re.fullmatch(r"1 process\(es\), test loss 0\.\d{4}", alone)

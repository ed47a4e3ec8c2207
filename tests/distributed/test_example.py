"""The example for several processes trains the same model with each way to start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "distributed.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def test_loss_moves_from_shards_on_two_processes_to_one_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def last_line(*command: str) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            [*command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()[-1]

    program = (str(EXAMPLE), "--run-dir", "run", "--epochs")
    first = last_line(*TORCHRUN, "2", *program, "1", "--runtime", "fsdp")
    moved = last_line(sys.executable, *program, "2")
    alone = last_line(sys.executable, str(EXAMPLE), "--epochs", "2")
    assert first.startswith("2 process(es), test loss ")
    assert moved == alone
    assert re.fullmatch(r"1 process\(es\), test loss 0\.\d{4}", alone)

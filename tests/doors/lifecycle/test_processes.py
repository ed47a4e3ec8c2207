"""Gathering over real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch
from torch import distributed as dist
from torch import nn
from loopwright.doors.lifecycle import Trainer

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=())
rows = torch.full((1 + rank, 2), float(rank))
trainer.print(trainer.gather(rows).tolist())
trainer.print(trainer.gather(rows, padding_value=-1).tolist())
trainer.print(trainer.gather(torch.tensor(rank)).tolist())
dist.destroy_process_group()
"""


def test_gather_puts_the_rows_of_all_processes_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    rows = "[[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]"
    padded = "[[0.0, 0.0], [-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]"
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == [f"{rows}\n{padded}\n[0, 1]\n", ""]

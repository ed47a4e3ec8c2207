"""Gathering over real processes."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import torch
from torch import distributed as dist
from torch import nn

from loopwright.doors.lifecycle import Trainer

from ...distributed.ranks import run_ranks


def gathered(rank: int) -> str:
    """What a process prints; they meet before there is a trainer."""
    dist.init_process_group("gloo")
    trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=())
    rows = torch.full((1 + rank, 2), float(rank))
    with redirect_stdout(StringIO()) as printed:
        trainer.print(trainer.gather(rows).tolist())
        trainer.print(trainer.gather(rows, padding_value=-1).tolist())
        trainer.print(trainer.gather(torch.tensor(rank)).tolist())
    dist.destroy_process_group()
    return printed.getvalue()


def test_gather_puts_the_rows_of_all_processes_together() -> None:
    rows = "[[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]"
    assert run_ranks(gathered, 2) == [f"{rows}\n{rows}\n[0, 1]\n", ""]

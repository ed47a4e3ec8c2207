"""A training for torchrun with one or two hosts, of which the second is lost.

Arguments: the name of the host, and a folder for the run and for what the test wants to know. It
waits in the middle until the test has done its work, and the first process leaves its results as
`result.pt`.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from loopwright import Callback
from tests.distributed.test_resuming import train


class Pause(Callback):
    """Goes on from update 7 when it is told to; a file that does not come ends the program."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def on_update_end(self, trainer: Any) -> None:
        end = time.monotonic() + 100
        while trainer.progress.update == 7 and not self.sign.exists() and time.monotonic() < end:
            time.sleep(0.05)


if __name__ == "__main__":
    host, place = sys.argv[1], Path(sys.argv[2])
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    (place / f"pid-{host}").write_text(str(os.getpid()))
    if rank == "0":
        with (place / "worlds").open("a") as file:
            file.write(f"{world}\n")
    result = train(int(rank), "ddp", place / "run", 12, callbacks=[Pause(place / "go")])
    if rank == "0":
        torch.save(result, place / "result.pt")

"""A small program for torchrun in which rank 1 raises, or is killed, in the middle of training.

Arguments: how ("raise" or "kill"), and a file for the time of it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from loopwright.runtime.consensus import RequestConsensus
from loopwright.runtime.process_group import RankGroup
from loopwright.runtime.signals import Signals
from loopwright.runtime.watchdog import watched


def fail(how: str, note: Path) -> None:
    note.write_text(repr(time.time()))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a bad sample")


def main() -> None:
    how, note = sys.argv[1], Path(sys.argv[2])
    group = RankGroup.join()
    consensus = RequestConsensus(group.host_group)
    gradient = torch.ones(1000)
    # torchrun's SIGTERM is only a flag, as in training
    with (
        watched(group) as heartbeat,
        Signals(),
    ):
        for update in range(100_000):
            dist.all_reduce(gradient)
            gradient /= group.world
            consensus.exchange((0, 0, 0, 0))
            heartbeat.beat()
            if update == 20 and group.rank == 1:
                fail(how, note)
        consensus.finish()


if __name__ == "__main__":
    main()

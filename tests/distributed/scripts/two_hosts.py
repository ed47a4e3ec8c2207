"""A small program for two hosts, one of which is cut off while it runs.

Arguments: a folder, where each rank counts its updates in `rank0` and `rank1` and says its process number in `pid0` and
`pid1`; and the number of updates. The loop inside `guarded` stands for a training.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from loopwright.runtime.agreement import Agreement
from loopwright.runtime.group import Group
from loopwright.runtime.guard import guarded
from loopwright.runtime.signals import Signals

TIMEOUT = 5.0


def main() -> None:
    folder, num_updates = Path(sys.argv[1]), int(sys.argv[2])
    group = Group.join(timeout=TIMEOUT)
    (folder / f"pid{group.rank}").write_text(str(os.getpid()))
    agreement = Agreement(group.host_group)
    total = torch.zeros(1)
    with guarded(group) as guard, Signals():
        for update in range(1, num_updates + 1):
            part = torch.full((1,), float(group.rank + 1))
            dist.all_reduce(part)
            total += part
            agreement.exchange((0, 0, 0, 0))
            guard.beat()
            time.sleep(0.01)
            (folder / f"rank{group.rank}").write_text(str(update))
        agreement.finish()
    (folder / f"total{group.rank}").write_text(str(total.item()))


if __name__ == "__main__":
    main()

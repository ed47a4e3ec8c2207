"""A training for two hosts, one of which is cut off while it runs.

Arguments: the run directory, and the number of updates. Each rank writes its process number to
`pid{rank}` beside the run directory, and at the end a digest of all it has come to as
`digest{rank}`.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import DistributedRuntime, Trainer
from loopwright.callbacks import Checkpoints

TIMEOUT = 12.0  # also for processes to meet, whose start may take long


def train(rank: int, folder: Path, num_updates: int) -> str:
    """Train with dropout and accumulation; a digest of weights, optimizer, losses and generator."""
    runtime = DistributedRuntime("ddp", timeout=TIMEOUT)
    (folder.parent / f"pid{runtime.rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(64, 6)
    trainer = Trainer(
        model,
        optimizer,
        nn.MSELoss(),
        runtime=runtime,
        accumulate=2,
        callbacks=[Checkpoints(every_updates=20, keep=3)],
        run_dir=folder,
        progress="silent",
    )
    history = trainer.train(
        TensorDataset(x, x.sum(1, keepdim=True)), num_updates=num_updates, batch_size=8
    )
    digest = hashlib.sha256()
    for tensor in [
        *model.state_dict().values(),
        *(s["exp_avg_sq"] for s in optimizer.state.values()),
    ]:
        digest.update(tensor.numpy().tobytes())
    digest.update(repr(list(history.steps["loss"])).encode())
    digest.update(trainer.run.generators.state()["torch"].numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place.parent / f"digest{os.environ['RANK']}").write_text(train(0, place, int(sys.argv[2])))

"""Train a digits CNN on one process or on many; the program is the same.

python examples/distributed.py
torchrun --nproc-per-node 2 examples/distributed.py
torchrun --nproc-per-node 2 examples/distributed.py --runtime fsdp
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runtime", choices=("ddp", "fsdp"), default="ddp", help="copies of the model, or shards"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--run-dir", default=None, help="where checkpoints go; run again to continue from there"
    )
    options = parser.parse_args()

    digits = load_digits()
    images, labels = (
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16,
        torch.tensor(digits.target),
    )
    train_data, test_data = (
        TensorDataset(images[360:], labels[360:]),
        TensorDataset(images[:360], labels[:360]),
    )
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )

    trainer = Trainer(
        model,
        partial(torch.optim.AdamW, lr=2e-3),
        nn.CrossEntropyLoss(),
        runtime=options.runtime,
        run_dir=options.run_dir,
    )
    history = trainer.train(
        train_data, num_epochs=options.epochs, eval_data=test_data, batch_size=64
    )
    trainer.say(f"{trainer.runtime.world} process(es), test loss {history.last('eval_loss'):.4f}")


if __name__ == "__main__":
    main()

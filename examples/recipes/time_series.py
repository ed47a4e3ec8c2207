"""Forecast a recorded EEG: a recurrent network sees 60 points of four channels and predicts the
next one.

python time_series.py [--epochs 30]
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from torch import Tensor, nn

from loopwright import Trainer, seed_everything
from loopwright.callbacks import BestModel
from loopwright.schedules import Cosine

WINDOW = 60


def load_signal() -> Tensor:
    """Four channels of an EEG, 800 points each, as matplotlib ships it; standardised by the first
    600 points."""
    with get_sample_data("eeg.dat") as file:
        signal = torch.from_numpy(np.frombuffer(file.read(), float).reshape(800, 4).copy()).float()
    return (signal - signal[:600].mean(0)) / signal[:600].std(0)


def windows(signal: Tensor) -> tuple[Tensor, Tensor]:
    """Every window, and the point that follows it; views of one tensor, so nothing is copied."""
    return signal.unfold(0, WINDOW, 1)[:-1].transpose(1, 2), signal[WINDOW:]


class Forecaster(nn.Module):
    def __init__(self, channels: int = 4, width: int = 32) -> None:
        super().__init__()
        self.memory = nn.GRU(channels, width, batch_first=True)
        self.change = nn.Linear(width, channels)

    def forward(self, points: Tensor) -> Tensor:
        states, _ = self.memory(points)
        return points[:, -1] + self.change(states[:, -1])  # the last point and a change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    signal = load_signal()
    train_data = windows(signal[:600])
    # later than the training data; chooses the best epoch
    eval_data = windows(signal[600 - WINDOW : 700])
    # later still; only used to measure the result
    inputs, targets = windows(signal[700 - WINDOW :])
    trainer = Trainer(
        Forecaster(),
        partial(torch.optim.AdamW, lr=3e-3),
        nn.MSELoss(),
        scheduler=Cosine(end=0.05),
        clip_norm=1.0,
        callbacks=[BestModel("eval_loss", restore=True)],
        run_dir="runs/eeg",
    )
    history = trainer.train(train_data, num_epochs=epochs, eval_data=eval_data, batch_size=32)
    history.plot("runs/eeg/curves.png")
    naive = (inputs[:, -1] - targets).square().mean().item()
    print(
        "Mean squared error on the last 100 points: "
        f"{trainer.evaluate((inputs, targets))['loss']:.4f}"
    )
    print(f"Predicting that nothing changes: {naive:.4f}")


if __name__ == "__main__":
    main()

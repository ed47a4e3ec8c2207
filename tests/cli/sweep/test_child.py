"""The process of one run of a sweep: what it reports to the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.cli.sweep.child import Reporter


class Scores(Callback):
    """Logs a metric after every update."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def on_update_end(self, trainer: Trainer) -> None:
        trainer.log({"score": self.values[trainer.progress.update - 1]})


class Listener:
    """Records the messages of a run to its sweep, and lets it go on."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def ask(self, message: Mapping[str, Any]) -> bool:
        self.messages.append(f"{message['update']}: {message['value']}")
        return True


def test_a_metric_that_is_no_number_is_reported_once():
    model, listener = nn.Linear(1, 1), Listener()
    callbacks = [Scores(1.0, nan, nan, nan, 2.0), Reporter("score", listener)]  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, nn.MSELoss(), callbacks=callbacks, progress="silent")
    trainer.train(TensorDataset(torch.ones(5, 1), torch.ones(5, 1)), 1, batch_size=1)
    assert listener.messages == ["1: 1.0", "2: nan", "5: 2.0"]

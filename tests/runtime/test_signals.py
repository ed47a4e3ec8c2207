"""Signals that come too late for the loop to act on take effect when training is over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
from torch import nn

from loopwright import Callback, DistributedRuntime, Trainer
from loopwright.runtime import Signals
from tests.distributed.ranks import start_ranks


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The SIGTERMs that reach the handler of the program itself."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_a_signal_after_the_last_check_reaches_the_handler_of_the_program(
    received: list[int],
) -> None:
    with Signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == []
    assert received == [signal.SIGTERM]


def test_an_interrupt_after_the_last_check_raises_as_without_training() -> None:
    signals = Signals()
    with pytest.raises(KeyboardInterrupt), signals:
        os.kill(os.getpid(), signal.SIGINT)
    assert not signals.is_handling


def test_an_exception_that_leaves_training_is_not_followed_by_the_signal(
    received: list[int],
) -> None:
    def leave() -> None:
        with Signals():
            os.kill(os.getpid(), signal.SIGTERM)
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        leave()
    assert received == []


class SignalAtEnd(Callback):
    """The second process gets SIGTERM when no update follows that could tell the others."""

    def on_train_end(self, trainer: Any) -> None:
        if trainer.runtime.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def train(rank: int, folder: Path) -> str:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    runtime = DistributedRuntime("ddp")
    x = torch.ones(8, 1)
    trainer = Trainer(
        model,
        optimizer,
        nn.functional.mse_loss,
        runtime=runtime,
        callbacks=SignalAtEnd(),
        progress="silent",
    )
    trainer.train((x, x), 1, batch_size=4)
    (folder / f"returned-{rank}").touch()
    return "returned"


def test_a_signal_that_one_process_gets_after_the_last_update_ends_that_process(
    tmp_path: Path,
) -> None:
    first, second = start_ranks(train, 2, tmp_path)
    assert first.value == "returned"
    assert second.code == -signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["returned-0"]

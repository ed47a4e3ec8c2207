"""Data that has state of its own is in the same order after an interruption at any moment of a run
as without one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from loopwright import Callback, Trainer
from loopwright.callbacks import EarlyStopping
from loopwright.errors import Interrupted

LENGTH, SIZE, EPOCHS = 9, 2, 3
Make = Callable[[], Any]


class Remembering(Sampler[int]):
    """Each epoch begins where the one before it ended, which only its state knows."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length, self.start = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = [(self.start + 4 * place) % self.length for place in range(self.length)]
        self.start = (self.start + 1) % self.length
        yield from order

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["start"]


class Hard(Remembering):
    """Begins each epoch with the samples that were noted in the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def __iter__(self) -> Iterator[int]:
        noted, self.noted = self.noted, []
        yield from [*noted, *super().__iter__()][: self.length]

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "noted": self.noted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.noted = state["start"], state["noted"]


class Points(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)), torch.rand(1)


class Endless(IterableDataset[Any]):
    """Goes on where it was, in every epoch; shuffled anew each time through."""

    def __init__(self) -> None:
        self.place = self.round = 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < LENGTH:
            self.place += 1
            yield torch.full((2,), float((self.round + 4 * self.place) % LENGTH)), torch.rand(1)
        self.place, self.round = 0, self.round + 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "round": self.round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.round = state["place"], state["round"]


KINDS: dict[str, Make] = {
    "sampler": lambda: DataLoader(Points(), SIZE, sampler=Remembering()),
    "sampler that hooks change": lambda: DataLoader(Points(), SIZE, sampler=Hard()),
    "iterable data set": lambda: DataLoader(Endless(), SIZE),
}


class Watching(Callback):
    """Notes the samples of every step and evaluation, and sends SIGTERM at one moment of the
    run."""

    def __init__(self, seen: list[Any], moment: int | None, loader: Any) -> None:
        self.seen, self.moment, self.loader = seen, moment, loader
        self.moments = 0

    def _pass(self) -> None:
        self.moments += 1
        if self.moments == self.moment:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_start(self, trainer: Trainer) -> None:
        self._pass()

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        self.seen.append(
            (trainer.progress.step, batch[0][:, 0].tolist(), batch[1].flatten().tolist())
        )
        if isinstance(getattr(self.loader, "sampler", None), Hard):
            self.loader.sampler.noted.append(int(batch[0][0, 0]))

    def on_update_end(self, trainer: Trainer) -> None:
        self._pass()

    def on_eval_end(self, trainer: Trainer, stream: Any) -> None:
        self._pass()

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        self._pass()

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments}

    def load_state_dict(self, state: Any) -> None:
        self.moments = state["moments"]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x / LENGTH)


def run(make: Make, run_dir: Path, moment: int | None) -> tuple[list[Any], int, Trainer]:
    torch.manual_seed(0)
    loader, seen = make(), []
    watching = Watching(seen, moment, loader)
    # which looks at an evaluation batch before the first step
    callbacks = [
        watching,
        EarlyStopping(patience=9),
    ]
    sgd = lambda params: torch.optim.SGD(params, lr=0.1)  # noqa: E731
    trainer = Trainer(
        Net(), sgd, torch.nn.MSELoss(), callbacks=callbacks, run_dir=run_dir, progress="silent"
    )
    try:
        trainer.train(loader, EPOCHS, eval_data=make())
    except Interrupted:
        assert moment is not None
    return seen, watching.moments, trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_sees_the_same_samples_wherever_it_was_interrupted(kind: str, tmp_path: Path) -> None:
    expected, moments, whole = run(KINDS[kind], tmp_path / "whole", None)
    # epochs differ
    assert len({str([values for _, values, _ in expected[at : at + 5]]) for at in (0, 5, 10)}) > 1
    for moment in range(1, moments + 1):
        first, *_ = run(KINDS[kind], tmp_path / str(moment), moment)
        rest, _, resumed = run(KINDS[kind], tmp_path / str(moment), None)
        assert first + rest == expected, f"interrupted at moment {moment} of {moments}"
        assert resumed.history.epochs == whole.history.epochs, (
            f"interrupted at moment {moment} of {moments}"
        )

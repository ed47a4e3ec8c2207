"""A fresh run of a trainer for an experiment; the trainer's state is restored afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..callback import Callback
from ..callbacks.freezing import Freeze
from ..data.open import Stream
from ..data.random import all_preserved
from ..errors import DataError
from ..initializers import Initializer
from ..metrics.progress import Limits
from ..training.program import Program
from ..training.restore import Keeper
from ..training.run import TrainingRun
from ..training.train_call import run_training

ESSENTIAL = (Initializer, Freeze)  # callbacks that decide what is trained, and from which weights


@contextmanager
def fresh_run(trainer: Program, callbacks: Iterable[Callback]) -> Iterator[Keeper]:
    """Context in which the trainer has a fresh run, with its weights; its state is restored
    afterwards.

    Its optimizers begin without state. Of its own callbacks, initialisers and `Freeze` stay;
    `callbacks` are added.
    """
    trainer.setup()
    keeper = Keeper()
    essential = [c for c in trainer.run.callbacks or trainer.callbacks if isinstance(c, ESSENTIAL)]
    for owner in (trainer, trainer._components, *essential):
        keeper.keep(owner)
    for module in trainer.modules.values():
        keeper.keep_model(module)
    for optimizer in trainer.optimizers.values():
        keeper.keep_optimizer(optimizer)
        optimizer.state = defaultdict(dict)
    for param in trainer._components.parameters():
        param.grad = None
    trainer.callbacks = [*essential, *callbacks]
    start_again(trainer)
    with all_preserved():
        try:
            yield keeper
        finally:
            keeper.restore()


def use_run(trainer: Program, run: TrainingRun, compiled: str | None) -> None:
    """Let the trainer train another run, with the components and the runtime of that run."""
    trainer.run = run
    trainer._components = run.components
    trainer.runtime = run.runtime
    trainer.compile_mode = compiled


def start_again(trainer: Program) -> None:
    """Give the trainer a fresh run; weights and optimizers are not changed."""
    use_run(trainer, trainer.run.fresh(), trainer.compile_mode)
    trainer.run.bind(trainer.callbacks)


def train_for_a_while(
    trainer: Program, data: Any, num_updates: int, batch_size: int | None
) -> None:
    """Train a number of updates in a fresh run; restore the position of data that has one."""
    with kept_position(trainer, data, batch_size):
        run_training(
            trainer.run,
            data,
            None,
            Limits(updates=num_updates),
            batch_size=batch_size,
            resume=False,
        )


@contextmanager
def kept_position(trainer: Program, data: Any, batch_size: int | None) -> Iterator[Stream]:
    """Context after which data that has a position is where it was; gives the stream that was
    opened to know it."""
    stream = data if isinstance(data, Stream) else trainer._open(data, batch_size, shuffle=True)
    position = _position(stream)
    stream.close()
    try:
        yield stream
    finally:
        if position is not None:
            stream.load_state_dict(position)
            stream.close()


def _position(stream: Stream) -> dict[str, Any] | None:
    """Return the position of a stream that continues over epochs; None if every epoch begins
    anew."""
    try:
        stream.check_resumable()
    except DataError:
        return None
    return stream.state_dict() if stream.spans_epochs else None

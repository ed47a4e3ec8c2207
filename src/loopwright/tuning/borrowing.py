"""A trainer lent for an experiment: it trains as if it had never trained, and is given back exactly as it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..callbacks.freezing import Freeze
from ..data.seeding import rng_state, set_rng_state
from ..data.stream import Stream
from ..errors import DataError
from ..history import History
from ..hooks import Callback
from ..initializers import Initializer
from ..meter import Meter
from ..optimization import Optimization, Window
from ..progress import Limits, Progress
from ..runtime import Signals
from ..trainer import Trainer
from ..training import run_training
from .keeping import Keeper

ESSENTIAL = (Initializer, Freeze)  # callbacks that decide what is trained, and from which weights


@contextmanager
def borrowed(trainer: Trainer, callbacks: Iterable[Callback]) -> Iterator[None]:
    """The trainer with its weights, without a past, a run directory or schedules; afterwards exactly as it was.

    Its optimizers begin without state. Of its own callbacks, initialisers and `Freeze` go on; `callbacks` are added.
    """
    trainer.setup()
    keeper, generators = Keeper(), rng_state()
    essential = [c for c in trainer.active_callbacks or trainer.callbacks if isinstance(c, ESSENTIAL)]
    for owner in (trainer, *essential):
        keeper.keep(owner)
    for module in trainer.modules.values():
        keeper.keep_model(module)
    for optimizer in trainer.optimizers.values():
        keeper.keep_optimizer(optimizer)
        optimizer.state = defaultdict(dict)
    for param in trainer.parameters():
        param.grad = None
    forget_past(trainer)
    trainer.callbacks = [*essential, *callbacks]
    trainer.bind_hooks(trainer.callbacks)
    try:
        yield
    finally:
        keeper.restore()
        set_rng_state(generators)


def forget_past(trainer: Trainer) -> None:
    """As if it had never trained; weights and optimizers stay as they are."""
    trainer.progress, trainer.history, trainer.meter, trainer.until = Progress(), History(), Meter(), Limits()
    trainer.window = Window()
    trainer.optimization = Optimization({}, trainer.window)
    trainer.signals = Signals()
    trainer.signals.is_shared = trainer.runtime.world > 1
    trainer.schedules = {}
    trainer.eval_stream = trainer.train_stream = trainer.train_data = None
    trainer.run = trainer.run_dir = trainer.mark = trainer.stop_reason = trainer.accord = None
    trainer.num_calls, trainer.num_pieces = 0, 1
    trainer.progress_style = "silent"


def train_for_a_while(trainer: Trainer, data: Any, num_updates: int, batch_size: int | None) -> None:
    """So many updates of a borrowed trainer; data that knows its position is put back there."""
    stream = data if isinstance(data, Stream) else trainer.open(data, batch_size, shuffle=True)
    position = _position(stream)
    stream.close()
    try:
        limits = Limits(updates=num_updates)
        run_training(trainer, data, None, limits, batch_size=batch_size, resume=False)
    finally:
        if position is not None:
            stream.load_state_dict(position)
            stream.close()


def _position(stream: Stream) -> dict[str, Any] | None:
    """Where a stream is that goes on from there in the next epoch; None where the next begins anew anyway."""
    try:
        stream.check_resumable()
    except DataError:
        return None
    return stream.state_dict() if stream.spans_epochs else None

"""Less than the whole: fewer batches an epoch, or a limit on the time of the run."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from ..data.limited import LimitedStream
from ..errors import ConfigurationError
from ..hooks import Callback
from ..progress import seconds_of

if TYPE_CHECKING:
    from ..data.stream import Stream
    from ..trainer import Trainer

ENVIRONMENT = "LOOPWRIGHT_LIMIT_BATCHES"


class LimitBatches(Callback):
    """Uses the first batches of every epoch only, to try out a program quickly.

    `train` limits training; `eval` limits `evaluate` and `predict` too. Without arguments, both limits come from the
    environment variable LOOPWRIGHT_LIMIT_BATCHES; where it is not set, nothing is limited.
    """

    def __init__(self, train: int | None = None, eval: int | None = None) -> None:  # noqa: A002  (our word for it)
        if train is None and eval is None:
            train = eval = _from_environment()  # noqa: A001
        for name, value in (("train", train), ("eval", eval)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"LimitBatches({name}={value!r}): use a number of batches, 1 or more.")
        self.train = train
        self.eval = eval

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        limit = self.train if is_training else self.eval
        return stream if limit is None else LimitedStream(stream, limit)


def _from_environment() -> int | None:
    given = os.environ.get(ENVIRONMENT, "").strip()
    if not given:
        return None
    if not given.isdecimal() or int(given) < 1:
        raise ConfigurationError(f"{ENVIRONMENT}={given!r}: set it to a number of batches, 1 or more, or unset it.")
    return int(given)


class TimeLimit(Callback):
    """Stops when the run has trained for so long: a number of seconds, a text such as "1h30m", or a `timedelta`.

    Evaluations do not count; the time of earlier, interrupted parts of the run does. `train(max_time=)` limits a single
    call instead.
    """

    def __init__(self, limit: float | str | timedelta) -> None:
        seconds = seconds_of(limit, "limit") if isinstance(limit, (str, timedelta)) else limit
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ConfigurationError(
                f"TimeLimit({limit!r}): use a number of seconds above 0, a text such as '1h30m', or a timedelta."
            )
        self.seconds = float(seconds)

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.seconds >= self.seconds:
            trainer.stop(f"the time limit of {timedelta(seconds=self.seconds)} is over")

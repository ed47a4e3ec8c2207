"""The value of a learning rate, or of anything else, after so many updates of so many in all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

DecayShape = Literal["inverse", "sqrt", "linear"]


def warmup_cosine(
    update: int,
    total: int,
    *,
    peak: float,
    floor: float = 0.0,
    warmup: int = 0,
    start: float = 0.0,
    cooldown: int = 0,
    k_decay: float = 1.0,
) -> float:
    """Linear from `start` to `peak` over `warmup` updates, half a cosine to `floor`, and `cooldown` updates there.

    All of it takes `total` updates; after that the value stays at `floor`. `k_decay` above 1 keeps it high for longer.
    """
    if update < warmup:
        return start + (peak - start) * update / warmup
    length = total - warmup - cooldown
    done = 1.0 if update - warmup >= length else (update - warmup) / length
    return floor + (peak - floor) * (1 + math.cos(math.pi * done**k_decay)) / 2


def warmup_stable_decay(
    update: int,
    ends: Sequence[int],
    *,
    peak: float,
    floor: float = 0.0,
    warmup: int = 0,
    start: float = 0.0,
    decay_ratio: float = 0.1,
    shape: DecayShape = "inverse",
) -> float:
    """Linear from `start` to `peak`, `peak` for most of the time, and a quick decay to `floor` before each of `ends`.

    A decay takes `decay_ratio` of the updates since the end before it; right after an end the value is `peak` again,
    and after the last one it stays at `floor`. "inverse" lets 1 / value grow evenly, which needs a floor above 0.
    """
    if update < warmup:
        return start + (peak - start) * update / warmup
    begin = 0
    for end in ends:
        if update < end:
            decay = max(round(decay_ratio * (end - begin)), 1)
            return _decayed(max(update - (end - decay), 0) / decay, peak, floor, shape)
        begin = end
    return floor


def _decayed(done: float, peak: float, floor: float, shape: DecayShape) -> float:
    if shape == "inverse":
        return 1 / (done / floor + (1 - done) / peak)
    remaining = 1 - math.sqrt(done) if shape == "sqrt" else 1 - done
    return floor + (peak - floor) * remaining

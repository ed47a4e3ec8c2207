"""Data: streams of batches over every kind of data, with a known sample order, position and
randomness."""

from .open import Batch, Stream, batch_size_of, open_stream
from .order import derive_seed, permutation
from .random import preserved_rng, rng_state, seed_everything, seed_sample, set_rng_state

__all__ = [
    "Batch",
    "Stream",
    "batch_size_of",
    "derive_seed",
    "open_stream",
    "permutation",
    "preserved_rng",
    "rng_state",
    "seed_everything",
    "seed_sample",
    "set_rng_state",
]

"""What a data set is, for the record: its class, its length, and a fingerprint of a few samples."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from ...data.fetch import Fetcher, peek_samples
from ...training.fingerprint import hash_samples


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Samples are read as with a fixed seed, and nothing that is random afterwards is another for it."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return {"kind": kind, "length": None, "fingerprint": None}
    samples = peek_samples(Fetcher(dataset, default_collate, 0))
    return {"kind": kind, "length": len(dataset), "fingerprint": hash_samples(samples)}

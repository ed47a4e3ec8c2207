"""What a data set is, for the record: its class, its length, and a fingerprint of a few samples."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, TensorDataset

from ...data.seeding import preserved_rng, seed_everything
from ...run.fingerprint import fingerprint

NUM_SAMPLES = 8


def describe_dataset(dataset: Any) -> dict[str, Any]:
    """Samples are read as with a fixed seed, and nothing that is random afterwards is another for it."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return {"kind": kind, "length": None, "fingerprint": None}
    length = len(dataset)
    if isinstance(dataset, TensorDataset):
        return {"kind": kind, "length": length, "fingerprint": fingerprint(dataset.tensors)}
    indices = sorted({number * (length - 1) // max(NUM_SAMPLES - 1, 1) for number in range(NUM_SAMPLES)})
    samples: list[Any] = []
    with preserved_rng():
        for index in indices if length else ():
            seed_everything(0)
            samples.append(dataset[index])  # type: ignore[index]  # a map-style data set
    return {"kind": kind, "length": length, "fingerprint": fingerprint([length, samples])}

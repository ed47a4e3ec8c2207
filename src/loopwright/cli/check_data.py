"""The data sets of a config: that they have samples, that all can be read and put together, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from ..config.tree import near_names
from ..data.random import preserved_rng, seed_sample
from ..training.supervised import describe
from .check_findings import Findings

if TYPE_CHECKING:
    from ..doors.configured.trainer import BaseTrainer

MAX_READ = 8


def check_dataset(findings: Findings, key: str, dataset: Any) -> Any:
    """Look at a data set; a sample of it, or None where it gave none."""
    place = f"datasets.{key}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return None
    with findings.collecting(place, "its length cannot be asked for") as succeeded:
        length = len(dataset)
    if not succeeded:
        return None
    if length == 0:
        findings.mistake(place, f"{type(dataset).__name__} has no samples (its length is 0).")
        return None
    indices = sorted({0, length - 1, *(number * (length - 1) // (MAX_READ - 1) for number in range(MAX_READ))})
    samples = [sample for index in indices if (sample := _read(findings, place, dataset, index, length)) is not None]
    if len(samples) == len(indices):
        _check_together(findings, place, dataset, samples, indices)
        _check_again(findings, place, dataset, samples[0])
        _check_numbers(findings, place, samples[0])
    return samples[0] if samples else None


def _read(findings: Findings, place: str, dataset: Any, index: int, length: int) -> Any:
    found: Any = None
    with findings.collecting(place, f"sample {index} (of {length}) cannot be read"), preserved_rng():
        seed_sample(index)
        found = dataset[index]
        if found is None:
            findings.mistake(place, f"sample {index} is None: return the sample from __getitem__.")
    return found


def _check_together(
    findings: Findings, place: str, dataset: Any, samples: Sequence[Any], indices: Sequence[int]
) -> None:
    """All of them as one batch; where that fails, the first that does not go with the one before it."""
    collate = getattr(dataset, "collate_fn", default_collate)
    try:
        collate(list(samples))
    except Exception as error:
        for at in range(1, len(samples)):
            try:
                collate([samples[at - 1], samples[at]])
            except Exception as pair:
                which = f"samples {indices[at - 1]} and {indices[at]} cannot be put into one batch"
                shapes = f"{describe(samples[at - 1])} and {describe(samples[at])}"
                findings.mistake(place, f"{which}: {pair}\n  they are {shapes}\n-> {_ALIKE}")
                return
        findings.failed(place, "samples cannot be put into one batch", error)


_ALIKE = "Give all samples the same keys and shapes, or the data set a method `collate_fn(samples)` that pads them."


def _check_again(findings: Findings, place: str, dataset: Any, first: Any) -> None:
    """The first sample once more, with the same seed."""
    before = [leaf.clone() for leaf in leaves(first)]
    again = _read(findings, place, dataset, 0, len(dataset))
    if again is None or same(before, leaves(again)):
        return
    findings.mistake(
        place,
        "sample 0 is another when it is read again with the same seed, so a resumed run would not be the same run.\n-> "
        "Look for operations in place (x -= mean changes what the data set keeps), and draw from the global generators "
        "of torch, numpy or random, which are seeded for every sample.",
    )


def _check_numbers(findings: Findings, place: str, sample: Any) -> None:
    if not isinstance(sample, Mapping):
        return
    bad = [str(name) for name, value in sample.items() if any(not finite(leaf) for leaf in leaves(value))]
    if bad:
        findings.note(place, f"sample 0 has values that are not finite in {', '.join(bad)}.")


def check_properties(findings: Findings, trainer: BaseTrainer, key: str, sample: Any) -> None:
    """That a sample has what the trainer is told to take from it."""
    from ..doors.configured.trainer import BaseTrainer

    if type(trainer)._split_batch is not BaseTrainer._split_batch:
        return
    if not isinstance(sample, Mapping):
        findings.mistake(
            f"datasets.{key}",
            f"a sample is {describe(sample)}, and forward_properties are keys of a dict: let the data set give dicts, "
            "or override `_split_batch` in the trainer.",
        )
        return
    names = list(map(str, sample))
    for setting in ("forward_properties", "target_properties"):
        for number, name in enumerate(getattr(trainer, setting)):
            is_known = any(mistake.key == f"trainer.{setting}.{number}" for mistake in findings.mistakes)
            if name not in sample and not is_known:
                near = near_names(name, names)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                findings.mistake(
                    f"trainer.{setting}.{number}",
                    f"{name!r} is not in the samples of data set {key!r}, which have: {', '.join(names)}.{hint}",
                )


def check_sizes(findings: Findings, trainer: BaseTrainer, train: Any) -> None:
    """Batches that are larger than the data, where somebody asked for them."""
    if isinstance(train, IterableDataset) or not isinstance(train, Sized):
        return
    length, config = len(train), findings.config
    for name in ("max_batch_size", "effective_batch_size"):
        size = getattr(trainer.config, name)
        if size is None or size <= length or length == 0:
            continue
        message = f"{size} samples, and the data set `train` has {length}: every batch would be of {length}."
        if config.get(f"trainer.{name}") is not None:
            findings.mistake(f"trainer.{name}", f"{message}\n-> Use {length} or fewer, or more data.")
        else:
            findings.note("trainer", f"{name} is {message}")


def leaves(value: Any) -> list[Tensor]:
    """The tensors in nested containers; numbers as tensors."""
    if isinstance(value, Tensor):
        return [value.detach()]
    if isinstance(value, bool | int | float):
        return [torch.tensor(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def same(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    """Bit for bit, with NaN the same as NaN."""
    return len(before) == len(now) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(before, now, strict=True)
    )


def finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())

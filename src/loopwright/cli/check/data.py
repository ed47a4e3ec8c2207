"""Checks of data sets: samples can be read and collated, are reproducible, and have the keys the
trainer needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from ...data.random import preserved_rng, seed_sample
from ...text import near_names
from ...training.supervised import describe
from .report import ConfigReport

if TYPE_CHECKING:
    from ...interfaces.configured.trainer import BaseTrainer

MAX_READ = 8


def check_dataset(report: ConfigReport, key: str, dataset: Any) -> Any:
    """Check a data set; return a sample of it, or None where none could be read."""
    place = f"datasets.{key}"
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return None
    with report.collecting(place, "its length cannot be read") as succeeded:
        length = len(dataset)
    if not succeeded:
        return None
    if length == 0:
        report.mistake(place, f"{type(dataset).__name__} has no samples (its length is 0).")
        return None
    indices = sorted(
        {0, length - 1, *(number * (length - 1) // (MAX_READ - 1) for number in range(MAX_READ))}
    )
    samples = [
        sample
        for index in indices
        if (sample := _read(report, place, dataset, index, length)) is not None
    ]
    if len(samples) == len(indices):
        _check_together(report, place, dataset, samples, indices)
        _check_again(report, place, dataset, samples[0])
        _check_numbers(report, place, samples[0])
    return samples[0] if samples else None


def _read(report: ConfigReport, place: str, dataset: Any, index: int, length: int) -> Any:
    found: Any = None
    with report.collecting(place, f"sample {index} (of {length}) cannot be read"), preserved_rng():
        seed_sample(index)
        found = dataset[index]
        if found is None:
            report.mistake(place, f"sample {index} is None: return the sample from __getitem__.")
    return found


def _check_together(
    report: ConfigReport, place: str, dataset: Any, samples: Sequence[Any], indices: Sequence[int]
) -> None:
    """Collate all samples; where that fails, report the first two neighbours that cannot be
    collated."""
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
                report.mistake(place, f"{which}: {pair}\n  they are {shapes}\n-> {_ALIKE}")
                return
        report.failed(place, "samples cannot be put into one batch", error)


_ALIKE = (
    "Give all samples the same keys and shapes, or the data set a method "
    "`collate_fn(samples)` that pads them."
)


def _check_again(report: ConfigReport, place: str, dataset: Any, first: Any) -> None:
    """Check that the first sample is the same when it is read again with the same seed."""
    before = [leaf.clone() for leaf in leaves(first)]
    again = _read(report, place, dataset, 0, len(dataset))
    if again is None or same(before, leaves(again)):
        return
    report.mistake(
        place,
        "sample 0 differs when it is read twice with the same seed, so a resumed run would differ "
        "from an uninterrupted one.\n-> Look for in-place operations (x -= mean changes the data "
        "set itself), and use the global generators of torch, numpy or random, which are seeded "
        "for every sample.",
    )


def _check_numbers(report: ConfigReport, place: str, sample: Any) -> None:
    if not isinstance(sample, Mapping):
        return
    bad = [
        str(name)
        for name, value in sample.items()
        if any(not finite(leaf) for leaf in leaves(value))
    ]
    if bad:
        report.note(place, f"sample 0 has values that are not finite in {', '.join(bad)}.")


def check_properties(report: ConfigReport, trainer: BaseTrainer, key: str, sample: Any) -> None:
    """Check that a sample has the keys that the trainer takes from it."""
    from ...interfaces.configured.trainer import BaseTrainer

    if type(trainer)._split_batch is not BaseTrainer._split_batch:
        return
    if not isinstance(sample, Mapping):
        report.mistake(
            f"datasets.{key}",
            f"a sample is {describe(sample)}, but forward_properties are keys of a dict: return "
            "dicts from the data set, or override `_split_batch` in the trainer.",
        )
        return
    names = list(map(str, sample))
    for setting in ("forward_properties", "target_properties"):
        for number, name in enumerate(getattr(trainer, setting)):
            is_known = any(
                mistake.key == f"trainer.{setting}.{number}" for mistake in report.mistakes
            )
            if name not in sample and not is_known:
                near = near_names(name, names)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                report.mistake(
                    f"trainer.{setting}.{number}",
                    f"{name!r} is not in the samples of data set {key!r}, which have: "
                    f"{', '.join(names)}.{hint}",
                )


def check_sizes(report: ConfigReport, trainer: BaseTrainer, train: Any) -> None:
    """Check for batch sizes that are larger than the data set."""
    if isinstance(train, IterableDataset) or not isinstance(train, Sized):
        return
    length = len(train)
    config = report.config
    for name in ("max_batch_size", "effective_batch_size"):
        size = getattr(trainer.config, name)
        if size is None or size <= length or length == 0:
            continue
        message = (
            f"{size} samples, and the data set `train` has {length}: every batch would be of "
            f"{length}."
        )
        if config.get(f"trainer.{name}") is not None:
            report.mistake(f"trainer.{name}", f"{message}\n-> Use {length} or fewer, or more data.")
        else:
            report.note("trainer", f"{name} is {message}")


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
    """Whether tensors are equal bit for bit, with NaN equal to NaN."""
    return len(before) == len(now) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(before, now, strict=True)
    )


def finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())

"""Example triplets: what a network makes of some images, beside what it got and what it should have made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ...data.open import open_stream
from ...data.order import permutation
from ...data.random import preserved_rng
from ...training.components import evaluating
from .images import write_image

PARTS = ("input", "output", "target")


def write_examples(
    directory: Path,
    network: nn.Module,
    loader: Any,
    *,
    epoch: int,
    count: int,
    seed: int,
    device: torch.device,
) -> list[Path]:
    """Write three files for each of `count` images; modes and random generators are left as they were."""
    paths = []
    with evaluating([network], ()), torch.no_grad(), preserved_rng():
        for number, (x, y) in enumerate(choose_pairs(loader, count, seed, epoch), start=1):
            output = network(x.unsqueeze(0).to(device))[0]
            for part, image in zip(PARTS, (x, output, y), strict=True):
                paths.append(directory / f"epoch{epoch}_{number}_{part}.png")
                write_image(paths[-1], image)
    return paths


def choose_pairs(loader: Any, count: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some pairs, which ones following from the seed and the epoch; of data without an order, the first ones."""
    dataset: Any = loader.dataset if isinstance(loader, DataLoader) else None
    if dataset is not None and not isinstance(dataset, IterableDataset):
        for index in permutation(seed, epoch, len(dataset))[:count].tolist():
            yield dataset[index]
        return
    stream = open_stream(loader, seed=seed, shuffle=False)
    stream.begin(0)
    pairs = (pair for batch, _, _ in stream for pair in zip(*batch, strict=True))
    yield from islice(pairs, count)
    stream.close()

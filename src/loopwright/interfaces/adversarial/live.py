"""Pictures of a training: examples, and the newest images and loss curves in the folder `live`, as
files that are always whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from html import escape
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ...checkpoint.atomic import staged_file
from ...data.open import open_stream
from ...data.order import permutation
from ...data.random import preserved_rng
from ...metrics.history import Series
from ...runtime.modes import evaluating
from .dataset import pillow

if TYPE_CHECKING:
    from .trainer import Trainer

PARTS = ("input", "output", "target")
WIDTH = 640
HEIGHT = 320
MARGIN = 44
LEGEND = 110
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")


def as_bytes(image: Tensor) -> Tensor:
    """An image with values in -1...1 as channels of bytes, in the host's memory."""
    values = image.detach().float().clamp(-1, 1).add(1).mul(127.5).round()
    return values.to("cpu", torch.uint8)


def write_image(path: Path, image: Tensor) -> None:
    """Write channels of bytes, or values in -1...1, so that a reader finds a complete picture or
    the one before."""
    Image = pillow()  # noqa: N806
    pixels = image if image.dtype == torch.uint8 else as_bytes(image)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    with staged_file(path) as staging:
        Image.fromarray(array).save(
            staging, format="JPEG" if path.suffix in (".jpg", ".jpeg") else "PNG"
        )


def side_by_side(rows: Sequence[Sequence[Tensor]], *, gap: int = 2, scale: int = 1) -> Tensor:
    """Rows of equally large images as one picture of bytes, with white between them."""
    lines = [_joined([as_bytes(image) for image in row], gap, dim=2) for row in rows]
    picture = _joined(lines, gap, dim=1)
    return picture.repeat_interleave(scale, 1).repeat_interleave(scale, 2)


def _joined(parts: Sequence[Tensor], gap: int, dim: int) -> Tensor:
    size = list(parts[0].shape)
    size[dim] = gap
    space = torch.full(size, 255, dtype=torch.uint8)
    spaced = [column for part in parts for column in (part, space)]
    return torch.cat(spaced[:-1], dim)


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
    """Write three files for each of `count` images; modes and random generators are left as they
    were."""
    paths = []
    with evaluating([network], ()), torch.no_grad(), preserved_rng():
        for number, (x, y) in enumerate(choose_pairs(loader, count, seed, epoch), start=1):
            output = network(x.unsqueeze(0).to(device))[0]
            for part, image in zip(PARTS, (x, output, y), strict=True):
                paths.append(directory / f"epoch{epoch}_{number}_{part}.png")
                write_image(paths[-1], image)
    return paths


def choose_pairs(loader: Any, count: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some pairs, which ones following from the seed and the epoch; of data without an order, the
    first ones."""
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


def draw_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One picture with a line for each name, through its (epoch, value) points."""
    points = [point for line in curves.values() for point in line if isfinite(point[1])]
    first, last = _span([x for x, _ in points])
    low, high = _span([y for _, y in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN} 10V{HEIGHT - MARGIN}H{WIDTH - LEGEND}" fill="none" stroke="#999"/>',
        f'<text x="{MARGIN - 4}" y="16" text-anchor="end">{high:.3g}</text>',
        f'<text x="{MARGIN - 4}" y="{HEIGHT - MARGIN}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 16}">{first:.3g}</text>',
        f'<text x="{WIDTH - LEGEND}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">{last:.3g} '
        "epochs</text>",
    ]
    for number, (name, line) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{MARGIN + (x - first) / (last - first) * (WIDTH - LEGEND - MARGIN):.1f},"
            f"{HEIGHT - MARGIN - (y - low) / (high - low) * (HEIGHT - MARGIN - 10):.1f}"
            for x, y in line
            if isfinite(y)
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{WIDTH - LEGEND + 8}" y="{20 + 16 * number}" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and largest of some values, never the same."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low, low + 1.0)


MAX_POINTS = 500
Points = Mapping[str, list[tuple[float, float]]]


class Curves:
    """Takes the calls of the published program to its Visdom client, and writes to the folder
    `live`.

    `points` are the curves it was given; what the loss manager has by the same name is shown in
    their place.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.points: dict[str, list[tuple[float, float]]] = {}

    def update_images(
        self, x: Tensor, y: Tensor, z: Tensor, title: str = "", image_size: int | None = None
    ) -> None:
        """Write the first image of three batches side by side, unless the config turns it off."""
        if self._trainer.live is not None:
            self._trainer.live.image_size = image_size or self._trainer.live.image_size
            self._trainer.live.update_images(x, y, z)

    def update_loss_graphs(
        self,
        graph_step: float,
        losses_G: Mapping[str, float],  # noqa: N803
        losses_D: Mapping[str, float],  # noqa: N803
    ) -> None:
        """Add a point at `graph_step`, in epochs, to the curve of each loss."""
        for name, value in (*losses_G.items(), *losses_D.items()):
            self.points.setdefault(name, []).append((float(graph_step), float(value)))
        if self._trainer.live is not None:
            self._trainer.live.update_losses(
                {name: list(line) for name, line in self.points.items()}
            )

    def clear_env(self) -> None:
        """Delete the curves."""
        self.points.clear()

    def start_thread(self) -> None:
        """Do nothing: `train_paired` starts the thread that writes."""

    def stop_thread(self) -> None:
        """Do nothing: `train_paired` ends the thread that writes."""


class LiveView:
    """Writes `live/images.png`, `live/losses.svg` and `live/losses.json`, from a thread of its own
    if `multithreaded`.

    The thread writes the newest there is and skips what it had no time for; training never waits
    for it, and an error in it is raised at the next update or at the end.
    """

    def __init__(self, directory: Path, *, image_size: int, multithreaded: bool) -> None:
        self.directory = directory
        self.image_size = image_size
        self.multithreaded = multithreaded
        self._newest: dict[str, Callable[[], None]] = {}  # of each kind, not written yet
        self._thread: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []

    def update_images(self, x: Tensor, y_fake: Tensor, y: Tensor) -> None:
        """Show the first image of a batch: input, output and target."""
        images = [_whole(part[0]) for part in (x, y_fake, y)]
        self._put("images", lambda: self.write_images(images))

    def update_losses(self, points: Points) -> None:
        """Show the losses by name, each as (epoch, value) pairs."""
        self._put("losses", lambda: self.write_losses(points))

    def write_images(self, images: list[Tensor]) -> None:
        scale = max(1, self.image_size // images[0].shape[-1])
        write_image(self.directory / "images.png", side_by_side([images], scale=scale))

    def write_losses(self, points: Points) -> None:
        for name, text in (
            ("losses.json", json.dumps(points)),
            ("losses.svg", draw_curves(points)),
        ):
            with staged_file(self.directory / name) as staging:
                staging.write_text(text)

    def flush(self) -> None:
        """Return when everything is written, or raise what went wrong."""
        wait(self._writing)
        self._raise()

    def _put(self, kind: str, job: Callable[[], None]) -> None:
        self._raise()
        if self._thread is None:
            job()
            return
        self._newest[kind] = job
        self._writing.append(self._thread.submit(self._write_newest, kind))

    def _write_newest(self, kind: str) -> None:
        job = self._newest.pop(kind, None)
        if job is not None:  # else it was written in the place of an older one
            job()

    def _raise(self) -> None:
        """Raise what went wrong in the thread."""
        over = [writing for writing in self._writing if writing.done()]
        self._writing = [writing for writing in self._writing if writing not in over]
        for writing in over:
            writing.result()

    def __enter__(self) -> Self:
        if self.multithreaded:
            self._thread = ThreadPoolExecutor(1, "loopwright-live")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if kind is None:
            self._raise()


def _whole(image: Tensor) -> Tensor:
    """A copy in the host's memory that nothing changes any more."""
    return torch.empty_like(image, device="cpu").copy_(image.detach())


def thinned(series: Series, epoch_length: int) -> list[tuple[float, float]]:
    """(epochs, value) for a limited number of steps of a series, evenly spaced, the last one among
    them."""
    stride = -(-len(series) // MAX_POINTS) or 1
    pairs = zip(series.steps[::-1][::stride], series.values[::-1][::stride], strict=True)
    return [(step / epoch_length, value) for step, value in pairs][::-1]

"""Runs for the tests of trackers: a program with media, a tracker that keeps what it is given, and
SIGKILL."""

from __future__ import annotations

import csv
import json
import os
import signal
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from time import time
from typing import Any

import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import Checkpoints
from loopwright.metrics.media import Histogram, Images, Media, Table

from ..loops import build_net

UPDATES_PER_EPOCH = 5  # 40 points in batches of 8


def png(color: tuple[int, int, int] = (255, 0, 0), width: int = 4, height: int = 3) -> bytes:
    """The bytes of a PNG file of one color."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = (b"\x00" + bytes(color) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


IMAGE = png()
CONTENTS = {
    "samples": Images((IMAGE, png((0, 0, 255))), ("red", "blue")),
    "weights": Histogram((0.0, 1.0, 2.0), (3, 4)),
    "note": "a <b>text</b>",
    "errors": Table(("word", "count"), (("a|b", 1), ("c", None))),
}


class LogMedia(Callback):
    """Logs media of every kind after the third update of the run."""

    def __init__(self, at: int = 3) -> None:
        self.at = at

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.at:
            place = trainer.progress
            for name, content in CONTENTS.items():
                at = (place.update, place.step, place.epoch, place.sample, place.seconds)
                trainer.run.emit("on_media", Media(name, content, *at, time()))


class KillAfter(Callback):
    """Ends the process by SIGKILL after an update, once trackers have written what log points gave
    them."""

    precedence = 9

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            trainer.run.flush()
            for callback in trainer.run.callbacks:
                if (background := getattr(callback, "_background", None)) is not None:
                    assert background.wait(60)
            os.kill(os.getpid(), signal.SIGKILL)


class Recorded:
    """A tracker that keeps what it is given, and nothing of it can be taken back."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.rows: list[Any] = []
        self.kept_media: list[Media] = []
        self.ends: list[tuple[str, str | None]] = []
        self.order: list[tuple[str, int]] = []

    def start(self, run: Any) -> None:
        self.runs.append(run)

    def log(self, rows: Any) -> None:
        self.rows.extend(rows)
        self.order += [(row.kind, row.step) for row in rows]

    def log_media(self, media: Media) -> None:
        self.kept_media.append(media)
        self.order.append((media.kind, media.step))

    def finish(self, state: str, reason: str | None) -> None:
        self.ends.append((state, reason))


def points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(8 * UPDATES_PER_EPOCH, 6, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def build(
    callbacks: Iterable[Any] = (),
    run_dir: Path | None = None,
    every_updates: int = 4,
    **options: Any,
) -> Trainer:
    net = build_net()
    saving = (
        [Checkpoints(every_updates=every_updates, every_epochs=None, asynchronous=False)]
        if run_dir
        else []
    )
    return Trainer(
        net,
        torch.optim.Adam(net.parameters(), lr=0.01),
        nn.functional.cross_entropy,
        callbacks=[*callbacks, *saving],
        run_dir=run_dir,
        progress="silent",
        **options,
    )


def train(trainer: Trainer, num_epochs: int = 2) -> Trainer:
    data = points()
    trainer.train(data, num_epochs, eval_data=data, batch_size=8)
    return trainer


def step_losses(trainer: Trainer) -> dict[int, float]:
    series = trainer.history.steps["loss"]
    return dict(zip(series.steps, series, strict=True))


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses_in_csv(path: Path) -> list[tuple[int, float]]:
    return [
        (int(row["step"]), float(row["loss"])) for row in read_csv(path) if row["kind"] == "step"
    ]

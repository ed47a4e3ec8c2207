"""Runs as a training writes them, made in a moment: for tests of what shows runs, and for
benchmarks."""

from __future__ import annotations

import math
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from loopwright.metrics.media import Histogram, Images, Media, Table
from loopwright.metrics.rows import StepRow
from loopwright.run import MetricsStore, RunManifest
from tests.runs import steps_of

NAMES = ("loss", "accuracy", "lr", "train/grad_norm", "train/throughput")
BATCH, SECONDS_PER_STEP, LOG_POINT, PAUSE = 32, 0.01, 512, 600.0
CONFIG = {
    "name": "digits",
    "model": {"name": "mlp", "width": 32, "depth": 2, "dropout": 0.1},
    "optimizer": {"name": "Adam", "lr": 0.001, "betas": [0.9, 0.999]},
    "data": {"name": "digits", "batch_size": BATCH},
}


def make_demo_run(
    folder: str | Path,
    *,
    steps: int = 2000,
    names: Sequence[str] = NAMES,
    epochs: int = 5,
    seed: int = 0,
    media: bool = True,
    resumed: bool = True,
    nan_spikes: bool = True,
    state: str = "finished",
    name: str | None = None,
    tags: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    image_size: int = 64,
    started: float | None = None,
) -> Path:
    """A run directory with metrics of steps and epochs, events, media and log lines.

    Args:
        folder: The run directory.
        steps: The number of steps; with the number of names, that of the values.
        names: The metrics of steps. Names with a part of those of `NAMES` have curves like them.
        epochs: The number of epochs; each has eval_loss and eval_accuracy too.
        seed: Different numbers make different curves.
        media: Whether there are images, histograms, texts and tables at every epoch.
        resumed: Whether the run was killed in the middle, and went on from an earlier step.
        nan_spikes: Whether there are NaN, infinite values, and single spikes.
        state: How the run ended: finished, running (nothing holds the lock: it is shown as
            crashed), failed, ...
        name: The name of the run; by default that of the folder.
        tags: The tags of the run.
        config: Settings that differ from `CONFIG`, by dotted keys: {"optimizer.lr": 0.1}.
        image_size: The width of the images.
        started: When the run began; by default so that it ends now.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = _settings(name or folder.name, epochs, config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    manifest = RunManifest.collect(
        device="cpu", seed=seed, name=name or folder.name, tags=list(tags)
    ).changed(facts={"planned": {"limit": ["epoch", epochs]}})
    manifest.write(folder / "run.json")
    began = (
        time.time() - steps * SECONDS_PER_STEP * 1.1 - PAUSE * resumed
        if started is None
        else started
    )
    run = DemoRun(
        folder,
        names,
        steps,
        epochs,
        seed,
        nan_spikes=nan_spikes,
        began=began,
        image_size=image_size,
    )
    run.event("started", "Training on cpu", 0)
    run.write_until(steps * 3 // 5 if resumed else steps, media=media)
    if resumed:
        run.resume(steps // 2)
        run.write_until(steps, media=media)
    run.end(state)
    _note_end(folder, manifest, run, state)
    return folder


def make_demo_runs(root: str | Path, count: int, **options: Any) -> list[Path]:
    """Several runs with different learning rates and widths, in folders of two sweeps."""
    folders = []
    for number in range(count):
        lr, width = 10 ** -(1 + number % 4), 16 << number // 4 % 3
        config = {"optimizer.lr": lr, "model.width": width}
        name = f"sweep-{number // 12}/lr={lr:g}-width={width}-{number}"
        options = {**options, "seed": number, "config": config}
        folders.append(make_demo_run(Path(root) / name, **options, name=f"digits-{number}"))
    return folders


def grow(folder: str | Path, steps: int) -> None:
    """Add steps to a demo run, as a training that goes on."""
    store = MetricsStore(Path(folder) / "metrics.sqlite")
    first = 1 + max(row[1] for row in steps_of(store))
    names = sorted({row[2] for row in steps_of(store)})
    store.close()
    run = DemoRun(
        Path(folder), names, first + steps, 1, 0, nan_spikes=False, began=time.time() - first * 0.01
    )
    run.step = first - 1
    run.write_steps(first + steps - 1)
    run.store.close()


class DemoRun:
    """A run that is being written."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        steps: int,
        epochs: int,
        seed: int,
        *,
        nan_spikes: bool,
        began: float,
        image_size: int = 64,
    ) -> None:
        self.store = MetricsStore(folder / "metrics.sqlite")
        self.names, self.steps, self.seed, self.nan_spikes = names, steps, seed, nan_spikes
        self.began, self.image_size = began, image_size
        self.epoch_steps = max(steps // epochs, 1)
        self.step = 0
        self.pause = 0.0  # seconds in which nothing ran

    def write_until(self, last: int, *, media: bool) -> None:
        while self.step < last:
            end = min((self.step // self.epoch_steps + 1) * self.epoch_steps, last)
            self.write_steps(end)
            if end % self.epoch_steps == 0:
                self.end_epoch(end // self.epoch_steps, media=media)

    def write_steps(self, last: int) -> None:
        for first in range(self.step + 1, last + 1, 1 << 16):
            end = min(first + (1 << 16) - 1, last)
            values = {name: self.curve(name, first, end).tolist() for name in self.names}
            columns = list(zip(*values.values(), strict=True))
            for at in range(0, len(columns), LOG_POINT):
                part = columns[at : at + LOG_POINT]
                self._add([self._row(first + at + index, row) for index, row in enumerate(part)])
            self.store.flush()
        self.step = last

    def _add(self, rows: list[StepRow]) -> None:
        from loopwright.run.metrics_store import LogPoint

        self.store._add(LogPoint(rows, self.wall(rows[-1].step)))

    def _row(self, step: int, values: tuple[float, ...]) -> StepRow:
        update, step, epoch, samples, seconds = self.place(step)
        return StepRow(
            update, step, epoch, samples, seconds, dict(zip(self.names, values, strict=True))
        )

    def place(self, step: int) -> tuple[int, int, int, int, float]:
        return (
            step,
            step,
            max(step - 1, 0) // self.epoch_steps,
            step * BATCH,
            step * SECONDS_PER_STEP,
        )

    def wall(self, step: int) -> float:
        return self.began + self.pause + step * SECONDS_PER_STEP

    def curve(self, name: str, first: int, last: int) -> np.ndarray:
        """The values of a metric from a step to another; the same for the same step, whenever it is
        asked."""
        steps = np.arange(first, last + 1)
        done = steps / self.steps
        noise = (
            np.sin(steps * 12.9898 + zlib.crc32(name.encode()) % 97 + self.seed) * 43758.5453 % 1.0
            - 0.5
        )
        if "lr" in name:
            values = 0.001 * (1 + self.seed % 5) * 0.5 * (1 + np.cos(math.pi * done))
        elif "acc" in name:
            values = 1 - 0.9 * np.exp(-4 * done) + 0.05 * noise
        elif "throughput" in name:
            values = 3000 + 200 * noise
        else:
            values = (
                (2.3 + 0.1 * (self.seed % 7)) * np.exp(-3 * done)
                + 0.05
                + 0.1 * noise * np.exp(-done)
            )
        if self.nan_spikes and "loss" in name:
            values = np.where(steps % max(self.steps // 4, 2) == 3, 40.0, values)
            values = np.where(steps % max(self.steps // 3, 2) == 5, np.nan, values)
            values = np.where(steps == self.steps // 2 + 7, np.inf, values)
        return values

    def end_epoch(self, epoch: int, *, media: bool) -> None:
        update, step, _, samples, seconds = self.place(self.step)
        means = {
            name: float(self.curve(name, max(step - 10, 1), step).mean()) for name in self.names
        }
        quality = {
            "eval_loss": 2.2 * math.exp(-2.5 * step / self.steps)
            + 0.1
            + 0.02 * math.sin(epoch + self.seed)
        }
        quality["eval_accuracy"] = 1 - 0.9 * math.exp(-3.5 * step / self.steps)
        where = {"samples": samples, "seconds": seconds, "wall": self.wall(step) + 0.5}
        self.store.add_epoch(epoch, update, means | quality, step=step, **where)
        self.event("evaluation", f"eval_loss {quality['eval_loss']:.4f}", step, {"seconds": 0.5})
        self.event(
            "checkpoint", f"update-{update:09d}", step, {"path": f"checkpoints/update-{update:09d}"}
        )
        if epoch % 2 == 1:
            self.event(
                "best",
                f"eval_loss {quality['eval_loss']:.4f}",
                step,
                {"metric": "eval_loss"} | quality,
            )
        self.store.add_log_line(
            "INFO", f"epoch {epoch}: eval_loss {quality['eval_loss']:.4f}", wall=self.wall(step)
        )
        if media:
            self.add_media(epoch)

    def add_media(self, epoch: int) -> None:
        update, step, at, samples, seconds = self.place(self.step)
        images = [demo_image(self.image_size, number, epoch) for number in range(3)]
        weights = np.random.default_rng(epoch).normal(0, 1 / epoch, 1000)
        counts, edges = np.histogram(weights, 32)
        rows = tuple(
            (index, f"class {index}", bool(index % 2), None, epoch / (index + 1))
            for index in range(4)
        )
        contents = {
            "samples/triplet": Images(tuple(images), ("input", "generated", "target")),
            "samples/first": Images((demo_image(self.image_size, 7, epoch),), ("",)),
            "weights/layer1": Histogram(tuple(edges.tolist()), tuple(counts.tolist())),
            "notes": f"After epoch {epoch}: <b>all</b> is well & good.",
            "predictions": Table(("index", "label", "right", "nothing", "score"), rows),
        }
        for name, content in contents.items():
            self.store.add_media(
                Media(name, content, update, step, at, samples, seconds, self.wall(step))
            )

    def event(
        self, kind: str, text: str, step: int, detail: Mapping[str, Any] | None = None
    ) -> None:
        self.store.add_event(
            kind, text, place=self.place(step), detail=detail, wall=self.wall(step)
        )

    def resume(self, step: int) -> None:
        """Go on from a step after a pause of ten minutes, as a run that was killed."""
        self.store.truncate(step=step, epoch=step // self.epoch_steps)
        self.step, self.pause = step, self.pause + PAUSE
        self.event("resumed", f"at update {step}", step)
        self.store.add_log_line("WARNING", f"resumed at update {step}", wall=self.wall(step))

    def end(self, state: str) -> None:
        reason = "RuntimeError: boom" if state == "failed" else ""
        if state == "failed":
            self.store.add_log_line(
                "ERROR", "Traceback (most recent call last):\n  ...\nRuntimeError: boom"
            )
        if state in ("finished", "failed", "stopped"):
            self.event(state, reason, self.step)
        self.store.close()


def demo_image(size: int, number: int, epoch: int) -> bytes:
    """A picture that becomes sharper with the epochs."""
    y, x = np.mgrid[0:size, 0:size] / size
    wave = np.sin((x * (number + 2) + y * 3) * 6) * min(epoch / 5, 1)
    colors = np.stack([wave, np.roll(wave, size // 4, 0), x - y], axis=2) * 127 + 128
    return png(colors.clip(0, 255).astype(np.uint8))


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of (height, width, 3) bytes."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunks(chunks))


def _chunks(chunks: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for kind, data in chunks:
        yield (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )


def _settings(name: str, epochs: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        key: dict(part) if isinstance(part, dict) else part for key, part in CONFIG.items()
    }
    settings |= {"name": name, "trainer": {"max_epochs": epochs}}
    for key, value in changes.items():
        part, _, last = key.rpartition(".")
        (settings.setdefault(part, {}) if part else settings)[last] = value
    return settings


def _note_end(folder: Path, manifest: RunManifest, run: DemoRun, state: str) -> None:
    update, step, _, samples, seconds = run.place(run.step)
    progress = {
        "epoch": step // run.epoch_steps,
        "step": step,
        "update": update,
        "sample": samples,
        "seconds": seconds,
    }
    noted = {
        "metric_modes": {"eval_loss": "min", "eval_accuracy": "max", "loss": "min"},
        "watched": ["eval_loss"],
    }
    reason = "RuntimeError: boom" if state == "failed" else None
    manifest.changed(state=state, reason=reason, progress=progress, **noted).write(
        folder / "run.json"
    )

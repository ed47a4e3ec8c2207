"""Run directories as a training run leaves them, written without one."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

from loopwright.metrics.media import Histogram, Images, Media, Table
from loopwright.metrics.rows import StepRow
from loopwright.run import MetricsStore, RunManifest


def png(level: int = 0) -> bytes:
    """A gray picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    body = (
        chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes([0, level])))
        + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + body


def step_rows(first: int, last: int, offset: float = 0.0) -> list[StepRow]:
    """Steps with a loss that is NaN at step 7, and a learning rate."""
    return [
        StepRow(
            update=step,
            step=step,
            epoch=(step - 1) // 25,
            samples=8 * step,
            seconds=step / 100,
            values={
                "loss": math.nan if step == 7 else 1 / step + (offset if step > 17 else 0.0),
                "lr": 0.1,
            },
        )
        for step in range(first, last + 1)
    ]


def write_run(
    path: Path,
    *,
    steps: int = 50,
    state: str = "finished",
    name: str | None = None,
    lr: float = 0.1,
    width: int = 32,
    offset: float = 0.0,
    media: bool = True,
) -> Path:
    """A run of some steps and two epochs, with a config, events, media and a log."""
    path.mkdir(parents=True)
    progress = {
        "epoch": 2,
        "step": steps,
        "update": steps,
        "sample": 8 * steps,
        "seconds": steps / 100,
    }
    manifest = RunManifest.collect(
        seed=0, name=name, tags=["small"], data={"train": {"samples": 400}}
    )
    planned = {"limit": ["epoch", 4]}
    manifest = manifest.changed(state=state, progress=progress, facts={"planned": planned})
    manifest.write(path / "run.json")
    path.joinpath("config.yaml").write_text(
        f"model: {{width: {width}}}\noptimizer: {{lr: {lr}}}\ntrainer: {{max_epochs: 4}}\n"
    )
    store = MetricsStore(path / "metrics.sqlite")
    store.add_event("started")
    store.add_steps(step_rows(1, steps, offset))
    for epoch in (1, 2):
        place = {
            "step": epoch * steps // 2,
            "samples": 4 * epoch * steps,
            "seconds": epoch * steps / 200,
        }
        store.add_epoch(
            epoch, epoch * steps // 2, {"eval_loss": 0.5 / epoch, "loss": 0.9 / epoch}, **place
        )
    if media:
        for step in (10, 20):
            store.add_media(
                _media("samples", Images((png(step), png(step + 1)), ("input", "output")), step)
            )
            store.add_media(_media("weights", Histogram((0.0, 1.0, 2.0), (3, step)), step))
            store.add_media(_media("words", f"step {step} </script>", step))
            store.add_media(_media("table", Table(("a", "b"), ((1, math.inf), ("x", None))), step))
    store.add_log_line("INFO", "it begins")
    store.add_event("finished")
    store.close()
    return path


def _media(name: str, content: Images | Histogram | Table | str, step: int) -> Media:
    return Media(name, content, step, step, 0, 8 * step, step / 100, 1_700_000_000.0 + step)

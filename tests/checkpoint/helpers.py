"""Trees, comparisons and processes that the checkpoint tests share."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import struct
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

from loopwright.checkpoint import CheckpointStore, update_name, write_checkpoint

processes = multiprocessing.get_context("fork")


def start(
    target: Callable[[str, Connection], None], directory: Path
) -> tuple[BaseProcess, Connection]:
    """A process that calls a function with a directory and a connection to us; both."""
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=target, args=(str(directory), theirs))
    process.start()
    theirs.close()
    return process, ours


class TiedModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)))


def training_state() -> dict:
    """The state of a small training after one update: what a trainer saves."""
    torch.manual_seed(0)
    model = TiedModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    model(torch.arange(7)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return {
        "models": {"default": model.state_dict()},
        "optimizers": {"default": optimizer.state_dict()},
        "schedulers": {"default": scheduler.state_dict()},
        "rng": {"torch": torch.get_rng_state(), "numpy": np.random.RandomState(3).get_state()},
        "history": [0.5, float("nan"), float("inf"), -0.0],
    }


def same(first: object, second: object) -> bool:
    """Equal to the last bit and of the same types."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and raw(first) == raw(second)
        )
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        is_alike = first.dtype == second.dtype and first.shape == second.shape
        return is_alike and first.tobytes() == second.tobytes()
    if isinstance(first, dict) and isinstance(second, dict):
        if isinstance(first, Counter) != isinstance(second, Counter) or len(first) != len(second):
            return False
        pairs = zip(first.items(), second.items(), strict=True)
        return all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.generic):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(first, float):
        return struct.pack(">d", first) == struct.pack(">d", second)
    if isinstance(first, complex):
        return same(first.real, second.real) and same(first.imag, second.imag)
    return first == second


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def resign(
    directory: Path, changes: dict | None = None, *, files: dict[str, bytes] | None = None
) -> None:
    """Change a checkpoint the way somebody with bad intentions would: hashes and all."""
    manifest = json.loads((directory / "manifest.json").read_text())
    for name, data in (files or {}).items():
        (directory / name).write_bytes(data)
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.update(changes or {})
    manifest.pop("sha256")
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (directory / "manifest.json").write_text(json.dumps(manifest))


def numbered_state(number: int, size: int = 50_000) -> dict:
    """A state in which every part says which one it is."""
    value = float(number)
    return {
        "models": {"default": {"weight": torch.full((size,), value)}},
        "optimizers": {"default": {"state": {0: {"exp_avg": torch.full((size,), value)}}}},
        "update": number,
    }


def save_forever(directory: str, connection: Connection) -> None:
    """A process that saves until it is killed, starting after what is there; tells when it
    begins."""
    torch.set_num_threads(1)
    store = CheckpointStore(directory, keep=2)
    newest = store.newest()
    start = 0 if newest is None else newest.tree["update"]
    connection.send(start)
    for update in range(start + 1, start + 100_000):
        store.save(update_name(update), numbered_state(update), {"update": update})


def save_under_size_limit(directory: str, connection: Connection) -> None:
    """A process that may not write files above 64 kB: the second save must fail, the first must
    stay."""
    import resource

    torch.set_num_threads(1)
    store = CheckpointStore(directory, keep=1)
    store.save("update-00000001", numbered_state(1, 10), {"update": 1}, wait=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    store.save("update-00000002", numbered_state(2), {"update": 2})
    try:
        store.writer.wait()
    except Exception as error:
        connection.send((type(error).__name__, str(error)))
    else:
        connection.send(("nothing", "was raised"))


def die_while_writing(directory: str, connection: Connection) -> None:
    """A process that is gone after staging part of a checkpoint."""
    from loopwright.checkpoint.atomic import staged_directory

    with staged_directory(Path(directory) / "update-00000009") as staging:
        (staging / "state.json").write_text("{")
        connection.send(staging.name)
        os._exit(9)


def write_numbered(path: Path, number: int) -> None:
    write_checkpoint(path, numbered_state(number, 100), {"update": number})

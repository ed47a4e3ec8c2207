"""What checkpoints cost: the stall of an asynchronous save, its memory, and resuming at any place
of an epoch.

    python benchmarks/checkpoint.py [--params 100] [--samples 10] [--rounds 5] [--dir /tmp]

Rounds are interleaved and medians are compared; only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from loopwright.checkpoint import CheckpointStore, snapshot, update_name
from loopwright.data.open import open_stream

STALL, COPIES, SEEK = 0.15, 1.1, 1.25
PLACES = (0.1, 0.5, 0.9)
WIDTH = 1024


class Squares(Dataset[Tensor]):
    """A map-style data set without tensors of its own, which is not on the fast path."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index) ** 2)


def seconds(action: Callable[[], object]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


def build_state(num_params: int) -> dict[str, Any]:
    """Layers of a million parameters, and an Adam that has made one step with them."""
    layers = max(num_params // (WIDTH * WIDTH), 1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.zero_grad()
    return {
        "models": {"model": model.state_dict()},
        "optimizers": {"optimizer": optimizer.state_dict()},
    }


def bytes_of(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.nbytes
    parts = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    )
    return sum(map(bytes_of, parts))


def memory(field: str) -> int:
    """A line of /proc/self/status in bytes: VmRSS now, VmHWM at its highest."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def check_room(size: int, folder: Path) -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < 4 * size or shutil.disk_usage(folder).free < 5 * size:
        raise SystemExit(
            f"{size / 1e9:.1f} GB of state need {4 * size / 1e9:.0f} GB of memory and as much "
            "disk: --params"
        )


def report_stall(num_params: int, num_rounds: int, folder: Path) -> None:
    check_room(num_params * 12, folder)
    state = build_state(num_params)
    size = bytes_of(state)
    store = CheckpointStore(folder / "checkpoints", keep=1)
    file = folder / "whole.pt"
    Path("/proc/self/clear_refs").write_text("5")  # starts VmHWM anew
    before = memory("VmRSS")
    preparing = seconds(lambda: store.writer.prepare(state))
    store.writer.wait()
    first = seconds(lambda: store.save(update_name(0), state, {"update": 0}))
    store.writer.wait()
    peak, kept = memory("VmHWM") - before, memory("VmRSS") - before
    stalls, whole, behind = [], [], []
    for number in range(1, num_rounds + 1):
        os.sync()
        whole.append(seconds(lambda: torch.save(state, file)))
        file.unlink()
        os.sync()
        stalls.append(
            seconds(
                lambda number=number: store.save(update_name(number), state, {"update": number})
            )
        )
        behind.append(seconds(store.wait))
    # into new memory: last, since it may leave some behind
    unprepared = seconds(lambda: snapshot(state))
    middle = statistics.median
    ratio = middle(stall / other for stall, other in zip(stalls, whole, strict=True))
    print(f"\nSaving {size / 1e9:.2f} GB, median of {num_rounds} interleaved rounds")
    print(f"  torch.save, synchronous            {middle(whole):7.3f} s")
    print(f"  asynchronous save, what it stalls  {middle(stalls):7.3f} s")
    print(
        f"  the first save, memory prepared    {first:7.3f} s   (preparing stalls {preparing:.3f} "
        "s)"
    )
    print(f"  the first save, memory not there   {unprepared:7.3f} s")
    print(
        f"  and goes on behind the training    {middle(behind):7.3f} s   (hashed and synced to "
        "disk)"
    )
    print(f"  stall / torch.save                 {ratio:7.2f}     target <= {STALL:.2f}")
    print(f"  memory kept, copies of the state   {kept / size:7.2f}     target <= {COPIES:.2f}")
    print(f"  memory at its highest, copies      {peak / size:7.2f}     target <= {COPIES:.2f}")


def resume_time(data: Any, position: int) -> float:
    """From opening the data to the first batch after a position."""
    with closing(open_stream(data, batch_size=32, seed=0, shuffle=True)) as stream:
        stream.begin(0)
        state = stream.state_dict() | {"position": position}
    with closing(open_stream(data, batch_size=32, seed=0, shuffle=True)) as stream:
        return seconds(lambda: (stream.load_state_dict(state), stream.take(1)))


def report_resume(num_samples: int, num_rounds: int) -> None:
    tensors = TensorDataset(
        torch.zeros(num_samples, 1), torch.zeros(num_samples, dtype=torch.int64)
    )
    print(
        f"\nResuming in an epoch of {num_samples / 1e6:g} M samples, median of {num_rounds} "
        "interleaved rounds"
    )
    for name, data in (("TensorDataset", tensors), ("map-style data set", Squares(num_samples))):
        times: dict[float, list[float]] = {place: [] for place in PLACES}
        for _ in range(num_rounds):
            for place, taken in times.items():
                taken.append(resume_time(data, int(num_samples * place) // 32 * 32))
        medians = {place: statistics.median(taken) for place, taken in times.items()}
        listed = "   ".join(
            f"at {place:.0%} {median * 1000:6.1f} ms" for place, median in medians.items()
        )
        ratio = medians[PLACES[-1]] / medians[PLACES[0]]
        print(f"  {name:19s} {listed}   last / first {ratio:.2f}     target <= {SEEK:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--params", type=float, default=100, help="millions of parameters")
    parser.add_argument(
        "--samples", type=float, default=10, help="millions of samples in the epoch"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where to write; its disk is what is measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        report_stall(int(options.params * 1e6), options.rounds, Path(folder))
    report_resume(int(options.samples * 1e6), options.rounds)


if __name__ == "__main__":
    main()

"""Memory over many steps: no object, no tensor and no file stays behind from a step."""

from __future__ import annotations

import gc
import json
import sys
import threading
import tracemalloc
from collections import Counter
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import History, StepResult, Trainer
from loopwright.metrics.meter import Meter
from loopwright.metrics.progress import Progress
from loopwright.training.steps import FLUSH_STEPS
from tests.forked import call_forked

from .programs import PROGRAMS

BYTES_OF_A_POINT = 16  # of a metric: the number of its step and its value, up to 131,072 of them
STEPS = 500


def build_tiny() -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        nn.Linear(1, 1),
        lambda params: torch.optim.SGD(params, 1e-3),
        nn.MSELoss(),
        progress="silent",
    )


def kinds_of_objects() -> Counter[str]:
    gc.collect()
    return Counter(type(value).__qualname__ for value in gc.get_objects())


def test_no_object_stays_behind_from_3_000_steps():
    trainer, data = build_tiny(), TensorDataset(torch.zeros(4096, 1), torch.zeros(4096, 1))
    for _ in range(2):  # what the first calls prepare stays
        trainer.train(data, num_updates=500, batch_size=4)
        before = kinds_of_objects()
    trainer.train(data, num_updates=2000, batch_size=4)
    growth = kinds_of_objects() - before
    assert growth.total() <= 10, f"objects that stayed: {growth.most_common(10)}"
    assert trainer.progress.step == 3000


def test_the_memory_of_meter_and_history_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """20,000 steps, in a history that keeps 1,024 points of a metric instead of 131,072."""
    monkeypatch.setattr("loopwright.metrics.history.MAX_POINTS", 1024)
    meter, history, progress, sizes = Meter(), History(), Progress(), []
    loss = torch.ones(())
    for _ in range(5):
        for _ in range(4000):
            progress.next_step(4)
            meter.add(StepResult(loss=loss, size=4), progress)
            if meter.num_pending >= FLUSH_STEPS:
                history.add_steps(meter.flush_rows(progress))
        history.add_steps(meter.flush_rows(progress))
        sizes.append(
            (kinds_of_objects().total(), sum(len(series) for series in history.steps.values()))
        )
    assert max(points for _, points in sizes) <= 1024
    assert sizes[-1][0] - sizes[1][0] <= 10, sizes
    assert history.steps["loss"].num_seen == 20_000


def test_python_memory_grows_by_the_points_of_the_history_and_by_nothing_else():
    """In the best of three calls: a cache that another thread or library fills once is no growth
    per step."""
    tracemalloc.start()
    try:
        trainer, data = build_tiny(), [(torch.zeros(4, 1), torch.zeros(4, 1))] * STEPS
        for _ in range(2):
            trainer.train(data)
        calls = []
        for _ in range(3):
            before = _snapshot()
            trainer.train(data)
            calls.append(_snapshot().compare_to(before, "lineno"))
    finally:
        tracemalloc.stop()
    growth, changes = min(
        ((sum(change.size_diff for change in call), call) for call in calls), key=itemgetter(0)
    )
    assert growth <= 1.5 * BYTES_OF_A_POINT * STEPS, f"{growth} bytes:\n" + "\n".join(
        map(str, changes[:10])
    )


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(False, tracemalloc.__file__)]
    )


# Files and threads

FILE_EVENTS = (
    "open",
    "os.",
    "sqlite3.",
    "fcntl.",
    "pathlib.",
    "shutil.",
    "subprocess.",
    "socket.",
    "tempfile.",
    "import",
)


def count_events(name: str, steps: int) -> dict[str, int]:
    """What a run does with files and threads, after one that has imported all it needs."""
    counts: Counter[str] = Counter()
    main, is_counting, start = threading.get_ident(), False, threading.Thread.start

    def note(event: str, arguments: object) -> None:
        if is_counting and event.startswith(FILE_EVENTS):
            whose = "of the training" if threading.get_ident() == main else "of another thread"
            counts[f"{event} {whose}: {arguments}"] += 1

    def note_start(thread: threading.Thread) -> None:
        counts[f"thread {thread.name.rpartition('-')[0] or thread.name}"] += is_counting
        start(thread)

    train = PROGRAMS[name]()
    sys.addaudithook(note)  # it stays for the life of the process, which is a forked one
    threading.Thread.start = note_start  # type: ignore[method-assign]
    is_counting = True
    train(steps)
    is_counting = False
    return counts


def _without_names(counts: dict[str, int]) -> Counter[str]:
    short: Counter[str] = Counter()
    for name, count in counts.items():
        short[name.partition(":")[0]] += count
    return short


@pytest.mark.parametrize(
    "name", ["native", "recorded", "simple", "lifecycle", "configured", "modular"]
)
def test_no_step_opens_a_file_imports_a_module_or_starts_a_thread(name: str, tmp_path: Path):
    """By comparing runs of 20 and of 120 steps, in which every eighth step is a log point."""

    def events(steps: int) -> dict[str, int]:
        def program() -> None:
            from loopwright.training import steps as loop

            loop.FLUSH_SECONDS, loop.FLUSH_STEPS = 1e9, 8
            PROGRAMS[name]()(2)
            Path(f"{steps}.json").write_text(json.dumps(count_events(name, steps)))

        ended = call_forked(program, tmp_path)
        assert ended.code == 0, ended.err
        return json.loads((tmp_path / f"{steps}.json").read_text())

    short, long = events(20), events(120)
    more = _without_names(long) - _without_names(short)
    # fewer are chance: a thread was faster
    new = {name: count for name, count in more.items() if count >= 100 // 8}
    assert not new, (
        f"{new}, among them {[event for event in long if event.partition(':')[0] in new][:10]}"
    )

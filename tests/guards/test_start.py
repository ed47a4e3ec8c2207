"""What a `train` call does before its first step and besides its steps, in counts: durable writes,
files, calls."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loopwright import Callback, Trainer
from loopwright.run import MetricsStore, StepRow
from tests.runs import steps_of

from .counting import SOURCE
from .programs import BATCH, adam, build_data, build_model, mse


class FirstStep(Callback):
    """Takes the counts of this moment when the first step of a call begins."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.before: Counter[str] | None = None

    def on_train_step_start(self, trainer: Any, batch: Any) -> None:
        self.before = Counter(self._counts) if self.before is None else self.before


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often files were made durable and stores of metrics opened, by all threads."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str, label: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            counts[label] += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(os, "fsync", "durable")
    counted(sqlite3, "connect", "opened")
    return counts


def calls_of(train: Any) -> int:
    """Calls of Python functions of ours and of rich, in all threads."""
    number = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        file = frame.f_code.co_filename
        number += event == "call" and (file.startswith(SOURCE) or "rich" in Path(file).parts)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return number


def test_before_the_first_step_the_manifest_is_made_durable_and_nothing_else(
    tmp_path: Path, counts: Counter[str]
):
    first = FirstStep(counts)
    trainer = Trainer(
        build_model(), adam, mse, callbacks=[first], run_dir=tmp_path / "run", progress="silent"
    )
    trainer.train(build_data(32), num_updates=2, batch_size=BATCH)
    assert first.before == {"durable": 2}, "run.json and its name in the directory"
    assert counts["opened"] > 0, "counting works"


def test_a_later_call_opens_no_store_before_its_first_step(tmp_path: Path, counts: Counter[str]):
    first, data = FirstStep(counts), build_data(32)
    trainer = Trainer(
        build_model(), adam, mse, callbacks=[first], run_dir=tmp_path / "run", progress="silent"
    )
    trainer.train(data, num_updates=2, batch_size=BATCH)
    first.before = None
    counts.clear()
    trainer.train(data, num_updates=1, batch_size=BATCH)
    assert first.before == {"durable": 2}
    assert counts == {"durable": 11, "opened": 1}, (
        "the manifest twice, the resume point, and one file of metrics"
    )


def test_a_call_makes_few_calls_besides_its_steps(tmp_path: Path):
    """As a new user runs it: a bar, a run directory, the history."""
    trainer, data = (
        Trainer(build_model(), adam, mse, run_dir=tmp_path / "run", progress="bar"),
        build_data(64),
    )
    trainer.train(data, num_updates=2, batch_size=BATCH)
    trainer.train(data, num_updates=1, batch_size=BATCH)
    number = calls_of(lambda: trainer.train(data, num_updates=1, batch_size=BATCH))
    # 62 of them exchange the random generators of the program and the run, 30 watch over waits for
    # data and workers
    assert number <= 3260, number


def test_rows_that_another_process_added_between_two_calls_are_removed(tmp_path: Path):
    trainer, data = (
        Trainer(build_model(), adam, mse, run_dir=tmp_path / "run", progress="silent"),
        build_data(32),
    )
    trainer.train(data, num_updates=2, batch_size=BATCH)
    other = MetricsStore(tmp_path / "run" / "metrics.sqlite")
    other.add_steps(
        [StepRow(update=9, step=9, epoch=0, samples=72, seconds=1.0, values={"loss": 7.0})]
    )
    other.close()
    trainer.train(data, num_updates=1, batch_size=BATCH)
    store = MetricsStore(tmp_path / "run" / "metrics.sqlite")
    assert [step for _, step, _, _ in steps_of(store, "loss")] == [1, 2, 3]
    store.close()

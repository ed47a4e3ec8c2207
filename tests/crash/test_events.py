"""Events of a run that was killed: those of the run that was not, each once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import BestModel, Checkpoints
from loopwright.run import MetricsStore, Run
from loopwright.run.metrics_store import PROCESS_EVENTS

from ..forked import call_forked
from ..loops import build_net
from ..runs import adam, cross_entropy


class Logs(Callback):
    """Logs a text in every step and in every evaluation."""

    def on_update_end(self, trainer: Trainer) -> None:
        trainer.log_text("step", str(trainer.progress.step))

    def on_eval_end(self, trainer: Trainer, stream: Any) -> None:
        trainer.log_text("evaluation", str(trainer.progress.step))


def two_calls(points: TensorDataset) -> None:
    """An epoch of two updates with a resume point at each, at its end and at the end of its call;
    then another one."""
    torch.manual_seed(0)
    saving = Checkpoints(every_updates=1, every_epochs=1, asynchronous=False)
    callbacks = [Logs(), BestModel("eval_loss", keep=9), saving]
    trainer = Trainer(
        build_net(), adam, cross_entropy, run_dir="run", callbacks=callbacks, progress="silent"
    )
    for _ in range(2):
        trainer.train(points, num_epochs=1, eval_data=points, batch_size=20)


def killed_at(number: int, program: Callable[[], None]) -> None:
    """Run a program until a number of times events were committed or a file was about to be
    renamed; then SIGKILL."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    flush = MetricsStore.flush

    def flush_and_count(store: MetricsStore) -> None:
        flush(store)
        count()

    # of this process, which is forked
    MetricsStore.flush = flush_and_count  # type: ignore[method-assign]
    sys.addaudithook(lambda event, arguments: count() if event == "os.rename" else None)
    program()


def recorded(run: Path) -> list[object]:
    metrics = Run(run).metrics
    events = [(e.kind, e.text, e.update, e.step, e.epoch, e.samples) for e in metrics.events()]
    media = [(item.name, item.step, item.position, item.content) for item in metrics.media()]
    return [[event for event in events if event[0] not in PROCESS_EVENTS], media]


def test_a_run_that_was_killed_at_any_write_has_the_events_and_media_of_one_that_was_not(
    points, tmp_path
):
    (whole := tmp_path / "whole").mkdir()
    assert call_forked(lambda: two_calls(points), whole).code == 0
    expected = recorded(whole / "run")
    assert [kind for kind, *_ in expected[0]].count("finished") == 2
    different, number, code = [], 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        number += 1
        (folder := tmp_path / str(number)).mkdir()
        code = call_forked(
            lambda number=number: killed_at(number, lambda: two_calls(points)), folder
        ).code
        again = call_forked(lambda: two_calls(points), folder)
        assert again.code == 0, again.err
        if (found := recorded(folder / "run")) != expected:
            different.append((number, found))
    assert code == 0
    assert number > 20
    assert not different, different

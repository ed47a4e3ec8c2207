"""What tests of runs share: processes, runs whose epochs log given values, and the check of
summaries."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.errors import ConfigurationError
from loopwright.run import RunDirectory, RunManifest
from tests.runs import steps_of

processes = multiprocessing.get_context("fork")


def start(target, *arguments):
    """A process that runs a function with a connection to us as its last argument; both."""
    ours, theirs = processes.Pipe()

    def run() -> None:
        ours.close()  # or nobody would notice when the tests close it
        target(*map(str, arguments), theirs)

    process = processes.Process(target=run)
    process.start()
    theirs.close()
    return process, ours


def hold_lock(path: str, connection: Connection) -> None:
    """Lock a run, say so, and hold it until told to stop."""
    with RunDirectory(path):
        connection.send("locked")
        connection.recv()


def hold_lock_with_a_child(path: str, connection: Connection) -> None:
    """Lock a run and fork a child that stays, as the workers of a killed process do for a while."""
    import os

    RunDirectory(path).lock()
    child = os.fork()
    if child == 0:
        try:
            connection.recv()  # until the test closes its end
        finally:
            os._exit(0)
    connection.send(child)
    os.waitpid(child, 0)


def try_lock(path: str, connection: Connection) -> None:
    try:
        with RunDirectory(path):
            connection.send("locked")
    except ConfigurationError as error:
        connection.send(str(error))


def take_fresh(path: str, connection: Connection) -> None:
    """Take a fresh directory as soon as told, start a run in it, and keep it until told to stop."""
    connection.send("ready")
    connection.recv()
    directory = RunDirectory.fresh(path)
    RunManifest.collect().write(directory.manifest_path)
    connection.send(directory.path.name)
    connection.recv()


def assert_summaries_are_those_of_the_values(store):
    expected = {}
    for _, step, name, value in steps_of(store):
        for level in range(1, 7):
            expected.setdefault((name, level, step >> 3 * level), []).append((step, value))
    query = (
        "SELECT n.name, level, bucket, first_step, last_step, count, nonfinite, min, max, "
        "total FROM summaries s"
    )
    rows = store._open().connection.execute(f"{query} JOIN names n ON n.id = s.name").fetchall()
    found = {row[:3]: row[3:] for row in rows}
    assert found.keys() == expected.keys()
    for key, points in expected.items():
        values = [value for _, value in points]
        numbers = [value for value in values if value == value]
        finite = [value for value in values if math.isfinite(value)]
        first, last, count, nonfinite, low, high, total = found[key]
        assert (first, last) == (points[0][0], points[-1][0])
        assert (count, nonfinite) == (len(values), len(values) - len(finite))
        assert (low, high) == ((min(numbers), max(numbers)) if numbers else (None, None))
        assert math.isclose(total, sum(finite), rel_tol=1e-12)


# Runs whose epochs log given values

DATA = TensorDataset(torch.ones(4, 2), torch.ones(4, 1))


class Script(Callback):
    """Logs given values, one row for each epoch, and remembers the weights."""

    def __init__(self, series: dict[str, Sequence[float]]) -> None:
        self.series = series
        self.weights: list[Tensor] = []

    def metric_names(self, known: set[str]) -> set[str]:
        return set(self.series)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log({name: values[trainer.progress.epoch] for name, values in self.series.items()})
        self.weights.append(trainer.model.weight.detach().clone())


def build_trainer(callbacks: Sequence[Callback], **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Trainer(
        model, optimizer, nn.functional.mse_loss, callbacks=callbacks, progress="silent", **options
    )


def run_with(
    folder: Path | None, callbacks: Sequence[Callback] = (), **series: Sequence[float]
) -> tuple[Trainer, Script]:
    """Train a run whose epochs log these values; the script has the weights of each of them."""
    script = Script(series)
    trainer = build_trainer([script, *callbacks], run_dir=folder)
    trainer.train(DATA, len(next(iter(series.values()))), batch_size=4)
    return trainer, script

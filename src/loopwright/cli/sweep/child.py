"""One run of a sweep, in a process of its own: `python -m loopwright.cli.sweep.child SPEC`.

It reports the metric to the sweep, which answers whether to continue; when the sweep's process is
gone, it saves and ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...callback import Callback
from ...callbacks.interval import logged_metrics
from ...config import Config, load_variant
from ...config.tree import Node
from ...errors import ConfigurationError, Interrupted, LoopwrightError
from ...interfaces.configured.experiment import Experiment
from ...run.reading import Run
from ...trainer import Trainer
from ..output import FAILED, OK, explained

PRUNED = "pruned by the sweep"
PATIENCE_SECONDS = 60.0


def main(spec: Mapping[str, Any]) -> int:
    """Train the run that a spec describes; return the same exit codes as `train`."""
    parent = Parent(Connection(spec["connection"]))
    try:
        return _train(spec, parent)
    except LoopwrightError as error:
        lines = [line for line in str(error).splitlines() if not line.startswith("(--debug")]
        parent.send({"error": "\n".join(lines)})
        traceback.print_exc()
        return FAILED


def _train(spec: Mapping[str, Any], parent: Parent) -> int:
    _await_other(Path(spec["path"]))
    config = load_variant(spec["config"], spec["overrides"], spec["chosen"]).config
    experiment = Experiment.from_config(placed(config, spec["path"]), progress="lines")
    with explained(lambda: experiment.run):
        experiment.build()
        assert experiment.trainer is not None
        experiment.trainer.engine.add_callback(Reporter(spec["metric"], parent))
        try:
            experiment.train()
        except Interrupted as left:
            return int(left.code or OK)
    return OK


def _await_other(path: Path) -> None:
    """Wait until a process that a killed sweep left behind has saved and ended."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (path / "run.json").is_file() and Run(path).state == "running":
        if time.monotonic() > end:
            raise ConfigurationError(
                "run-is-busy",
                f"{path} is being trained by another process: wait for it, or stop it.",
            )
        time.sleep(0.2)


def placed(config: Config, path: str | Path) -> Config:
    """The config with this directory as `output_path`, where the run is also resumed."""
    root = config.root.copy()
    root.value.pop("resume", None)
    root.value["output_path"] = Node(str(path), root.file, None)
    return Config(root, config.folder)


class Parent:
    """The connection to the sweep's process. When that process is gone, SIGTERM ends this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: queue.Queue[bool] = queue.Queue()
        threading.Thread(target=self._read_answers, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # it is gone
            self._connection.send(message)

    def ask(self, message: Mapping[str, Any]) -> bool:
        """Send a message, and return whether the run is to continue."""
        self.send(message)
        return self._answers.get()

    def _read_answers(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._answers.put(self._connection.recv())
        os.kill(os.getpid(), signal.SIGTERM)  # first, so that nothing is trained between the two
        self._answers.put(True)


class Reporter(Callback):
    """Reports the metric whenever it was measured, and stops training if the sweep answers so."""

    precedence = 1  # after callbacks that log it

    def __init__(self, metric: str, parent: Parent) -> None:
        self._metric = metric
        self._parent = parent
        self._update = -1
        self._value = ""

    def on_update_end(self, trainer: Trainer) -> None:
        self._report(trainer, logged_metrics(trainer))

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._report(trainer, metrics)

    def _report(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self._metric)
        update = trainer.progress.update
        # as text, NaN is equal to NaN: a value is reported once, though it stays among the metrics
        if value is None or update == self._update or repr(value) == self._value:
            return
        self._update = update
        self._value = repr(value)
        if not self._parent.ask({"update": update, "value": value}):
            trainer.stop(PRUNED)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

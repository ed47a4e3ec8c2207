"""One run of a sweep, in a process of its own: `python -m loopwright.cli.sweep.child SPEC`.

It reports the metric over a pipe and reads from stdin whether to continue; when the sweep's process
is gone, it saves and ends.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ...callback import Callback
from ...callbacks.interval import logged_metrics
from ...config import Config, load_variant
from ...config.tree import Node
from ...errors import ConfigurationError, Interrupted, LoopwrightError
from ...interfaces.configured.experiment import Experiment
from ...run.reading import RunView
from ...trainer import Trainer
from ..exits import FAILED, OK, explained

STOP = "stop"
GO_ON = "go on"
GONE = "gone"  # the sweep's process has ended: no answer, and SIGTERM ends this one
PRUNED = "pruned by the sweep"
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Spec:
    """The arguments of the process: its run, its directory, its metric and its pipe."""

    config: str
    overrides: list[str]
    chosen: dict[str, Any]
    path: str
    metric: str
    pipe: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(arguments: Sequence[str]) -> int:
    """Train the run; return the same exit codes as `train`."""
    spec = Spec(**json.loads(arguments[0]))
    with os.fdopen(spec.pipe, "w") as pipe:
        parent = Parent(pipe)
        try:
            return _train(spec, parent)
        except LoopwrightError as error:
            lines = [line for line in str(error).splitlines() if not line.startswith("(--debug")]
            parent.send({"error": "\n".join(lines)})
            traceback.print_exc()
            return FAILED


def _train(spec: Spec, parent: Parent) -> int:
    _await_other(Path(spec.path))
    config = load_variant(spec.config, spec.overrides, spec.chosen).config
    experiment = Experiment.from_config(placed(config, spec.path), progress="lines")
    with explained(lambda: experiment.run):
        experiment.build()
        assert experiment.trainer is not None
        experiment.trainer.engine.add_callback(Reporter(spec.metric, parent))
        try:
            experiment.train()
        except Interrupted as left:
            return int(left.code or OK)
    return OK


def _await_other(path: Path) -> None:
    """Wait until a process that a killed sweep left behind has saved and ended."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (path / "run.json").is_file() and RunView(path).state == "running":
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
    """The connection to the sweep's process: messages go over the pipe, answers come from stdin."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read_answers, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            print(json.dumps(message), file=self._pipe, flush=True)
        except BrokenPipeError:
            self._answers.put(GONE)

    def ask(self, message: Mapping[str, Any]) -> str:
        self.send(message)
        return self._answers.get()

    def _read_answers(self) -> None:
        for line in sys.stdin:
            self._answers.put(line.strip())
        os.kill(os.getpid(), signal.SIGTERM)  # first, so that nothing is trained between the two
        self._answers.put(GONE)


class Reporter(Callback):
    """Reports the metric whenever it was measured, and stops training if the sweep answers so."""

    precedence = 1  # after callbacks that log it

    def __init__(self, metric: str, parent: Parent) -> None:
        self._metric = metric
        self._parent = parent
        self._last: tuple[int, float] | None = None

    def on_update_end(self, trainer: Trainer) -> None:
        self._report(trainer, logged_metrics(trainer))

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._report(trainer, metrics)

    def _report(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self._metric)
        update = trainer.progress.update
        if value is None or (
            self._last is not None and (update == self._last[0] or _is_same(value, self._last[1]))
        ):
            return
        self._last = update, value
        if self._parent.ask({"update": update, "value": value}) == STOP:
            trainer.stop(PRUNED)


def _is_same(value: float, other: float) -> bool:
    """Whether two values of a metric are equal, with NaN equal to NaN."""
    return value == other or (value != value and other != other)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

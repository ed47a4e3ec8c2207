"""The runs of a sweep: their directories and results, and the processes that train them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ...config import Config
from ...interfaces.configured import Experiment
from ...metrics.best import Mode, first_best
from ...run.reading import RunView
from .child import GO_ON, PRUNED, STOP, Spec

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0  # for a process to save and end after SIGTERM
LIMITS = ("max_epochs", "max_updates", "max_samples")


@dataclass(slots=True)
class Task:
    """One run: the values chosen for it, and its directory."""

    name: str
    chosen: dict[str, Any]
    path: Path
    key: Any = None  # of the search: Optuna's trial


@dataclass(frozen=True, slots=True)
class Result:
    """The state, value and error of a run."""

    task: Task
    state: str
    value: float | None = None
    error: str | None = None
    seconds: float | None = None
    progress: Any = None

    @property
    def is_done(self) -> bool:
        return self.state in ("finished", "stopped", "pruned")


class Search(Protocol):
    """Chooses the runs of a sweep."""

    def next(self) -> Task | None:
        """The next run to train; None if there is none for now."""

    def report(self, task: Task, update: int, value: float) -> bool:
        """Take the metric at an update of a run; return whether the run is to continue."""
        ...

    def done(self, result: Result) -> None:
        """Take the result of a run that has ended."""


def read_result(task: Task, metric: str, mode: Mode, error: str | None = None) -> Result:
    """Read the result of a run from its directory."""
    if not (task.path / "run.json").is_file():
        return Result(task, "failed" if error else "not started", error=error)
    run = RunView(task.path)
    state: str = run.state
    if state == "stopped" and run.reason is not None and PRUNED in run.reason:
        state = "pruned"
    if error is not None and state not in ("interrupted", "finished"):
        state = "failed"
    reason = error or (run.reason if state == "failed" else None)
    return Result(task, state, best_value(run, metric, mode), reason, run.seconds, run.progress)


def best_value(run: RunView, metric: str, mode: Mode) -> float | None:
    """The best value of a metric at any epoch or step."""
    points = [*run.metrics.epochs(metric), *run.metrics.steps(metric)]
    best = first_best(points, lambda point: point.value, mode)
    return None if best is None else best.value


def place_for(folder: Path, name: str, config: Config) -> Path:
    """The directory for a config: the one of an earlier run of it, or the first that is free."""
    number = 1
    while True:
        path = folder / (name if number == 1 else f"{name}-{number}")
        if not (path / "run.json").is_file() or not _changes(RunView(path), config):
            return path
        number += 1


def is_finished(path: Path, config: Config) -> bool:
    """Whether the run in this directory has finished this config."""
    if not (path / "run.json").is_file():
        return False
    run = RunView(path)
    earlier = (run.config or {}).get("trainer") or {}
    is_longer = any(earlier.get(name) != config.get(f"trainer.{name}") for name in LIMITS)
    return run.state in ("finished", "stopped") and not is_longer


def _changes(run: RunView, config: Config) -> list[str]:
    return [change.key for change in Experiment.changes_since(run.config or {}, config, run.name)]


class Child:
    """A process that trains one run."""

    def __init__(
        self, task: Task, spec: Mapping[str, Any], output: Path, environment: Mapping[str, str]
    ) -> None:
        self.task = task
        self.error: str | None = None
        output.parent.mkdir(parents=True, exist_ok=True)
        self._output = output
        receiving, sending = os.pipe()
        command = [
            sys.executable,
            "-m",
            "loopwright.cli.sweep.child",
            Spec(**spec, pipe=sending).to_json(),
        ]
        with output.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(sending,),
                env=dict(environment),
                start_new_session=True,  # Ctrl-C reaches the sweep only, which sends one SIGTERM
                text=True,
            )
        os.close(sending)
        self.pipe = receiving
        self._unread = b""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Messages since the last call; errors are stored, not yielded."""
        while select.select([self.pipe], [], [], 0)[0]:
            data = os.read(self.pipe, 1 << 16)
            if not data:
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for message in map(json.loads, lines):
                if "error" in message:
                    self.error = message["error"]
                else:
                    yield message

    def answer(self, is_to_go_on: bool) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it may have ended meanwhile
            print(GO_ON if is_to_go_on else STOP, file=self.process.stdin, flush=True)

    def close(self) -> str | None:
        """Release the pipes of a process that has ended; return its error, None if there was
        none."""
        for _ in self.messages():
            pass
        os.close(self.pipe)
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        code = self.process.returncode
        if code in (0, 130, 143, -signal.SIGTERM):
            return self.error
        return self.error or f"its process ended with {_ending(code)}: {self._last_line()}"

    def _last_line(self) -> str:
        lines = [
            line for line in self._output.read_text(errors="replace").splitlines() if line.strip()
        ]
        return lines[-1] if lines else "no output"


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


@dataclass(slots=True)
class Pool:
    """Trains the runs of a search, at most `jobs` at a time."""

    config: str
    overrides: list[str]
    metric: str
    mode: Mode
    jobs: int
    output: Path
    children: dict[int, Child] = field(default_factory=dict)
    # runs that were in progress when the pool was stopped
    ended: list[Task] = field(default_factory=list)

    def run(self, search: Search) -> Generator[Result, None, None]:
        """Yield results as runs end. Leaving the loop early ends all processes, which save
        first."""
        try:
            while self._fill(search):
                pipes = [child.pipe for child in self.children.values()]
                select.select(pipes, [], [], POLL_SECONDS)
                for slot, child in list(self.children.items()):
                    for message in child.messages():
                        child.answer(search.report(child.task, message["update"], message["value"]))
                    if child.process.poll() is not None:
                        del self.children[slot]
                        result = read_result(child.task, self.metric, self.mode, child.close())
                        search.done(result)
                        yield result
                if all(child.process.poll() is None for child in self.children.values()):
                    time.sleep(POLL_SECONDS / 10)  # a pipe that is closed is always ready
        finally:
            self.stop()

    def _fill(self, search: Search) -> bool:
        """Start runs up to the limit; return whether any is running."""
        for slot in range(self.jobs):
            if slot in self.children:
                continue
            task = search.next()
            if task is None:
                break
            self.children[slot] = self._start(task, slot)
        return bool(self.children)

    def _start(self, task: Task, slot: int) -> Child:
        spec = {
            "config": self.config,
            "overrides": self.overrides,
            "chosen": task.chosen,
            "path": str(task.path),
            "metric": self.metric,
        }
        return Child(task, spec, self.output / f"{task.path.name}.txt", self._environment(slot))

    def _environment(self, slot: int) -> dict[str, str]:
        """The environment of a process: processors and accelerators are divided among parallel
        runs."""
        variables = dict(os.environ)
        if self.jobs > 1:
            variables.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // self.jobs, 1)))
            devices = _devices()
            if len(devices) > 1:
                variables["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
        return variables

    def stop(self) -> None:
        """Send SIGTERM to running processes, which save and end; kill them after
        PATIENCE_SECONDS."""
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.terminate()
        end = time.monotonic() + PATIENCE_SECONDS
        for child in self.children.values():
            try:
                while child.process.poll() is None and time.monotonic() < end:
                    for _ in child.messages():
                        child.answer(False)
                    time.sleep(POLL_SECONDS / 2)
            finally:
                child.process.kill()
                child.process.wait()
                child.close()
                self.ended.append(child.task)
        self.children.clear()


def _devices() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [device for device in given.split(",") if device.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]

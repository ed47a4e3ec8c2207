"""Running the crash programs: real processes, ended at chosen or at random moments, until one of
them gets through."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# which torch imports with the first optimizer: once here, not in every process
import torch._dynamo  # noqa: F401
import torchmetrics.classification  # noqa: F401

from loopwright.checkpoint import verify_checkpoint

from .programs import lifecycle, simple  # noqa: F401
from .programs.train import main

forking = multiprocessing.get_context("fork")

PATIENCE = 300.0
# and how often each happens, more or less
PLACES = {
    "step": 9,
    "eval": 7,
    "epoch": 2,
    "file": 40,
    "end": 1,
}
WORKERS = [["--workers", "0"]]
WORKERS += [["--workers", str(n), *more] for n in (2, 4) for more in ([], ["--persistent"])]


@dataclass(frozen=True)
class Outcome:
    """How a process ended (negative: by that signal), and what it printed."""

    code: int
    output: str

    @property
    def digest(self) -> dict[str, str]:
        """The hashes it printed at its end."""
        assert self.code == 0, f"the program ended with {self.code}:\n{self.output}"
        line = next((line for line in self.output.splitlines() if line.startswith("{")), None)
        assert line is not None, f"the program printed no hashes:\n{self.output}"
        return dict(json.loads(line))


class Processes:
    """Runs the program in processes that are forked from this one, which has imported everything
    already."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / f"output-{os.getpid()}-{id(self)}"

    def run(
        self, *arguments: str, kill_after: float | None = None, number: int = signal.SIGKILL
    ) -> Outcome:
        """One process from beginning to end, or until it has lived so many seconds.

        Another signal than SIGKILL goes to its process group: it has to be told `--group`, which
        takes a moment.
        """
        process = forking.Process(target=_run, args=(list(arguments), str(self.output)))
        process.start()
        process.join(kill_after)
        if process.exitcode is None and number != signal.SIGKILL:
            with suppress(ProcessLookupError):
                os.killpg(process.pid or 0, number)
            process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        assert code is not None
        return Outcome(
            code, self.output.read_text(errors="replace") if self.output.exists() else ""
        )


def _run(arguments: list[str], output: str) -> None:
    """In the new process: the program, with its own output, and a traceback at the very place where
    it hangs."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(arguments)


@dataclass
class Crashes:
    """A program that is killed again and again, in a place of its own."""

    processes: Processes
    run_dir: Path
    options: list[str]
    tell: Callable[[str], None] = lambda line: None
    num_kills: int = 0

    def kill_at(self, moment: str, *more: str) -> bool:
        """Run until a moment such as `step:5`; whether it came before the end."""
        return self._note(
            self.processes.run(str(self.run_dir), *self.options, *more, "--at", moment),
            moment,
            more,
        )

    def kill_after(self, seconds: float, *more: str) -> bool:
        """Run for so many seconds; whether the program was not through by then."""
        outcome = self.processes.run(str(self.run_dir), *self.options, *more, kill_after=seconds)
        return self._note(outcome, f"{seconds:.3f} s", more)

    def signal_after(self, seconds: float, number: int, *more: str) -> bool:
        """Send a signal to its process group after so many seconds; whether the program was not
        through by then."""
        outcome = self.processes.run(
            str(self.run_dir), *self.options, *more, "--group", kill_after=seconds, number=number
        )
        name = signal.Signals(number).name
        # it did not train yet: the signal's own effect
        before = {-number, 1} if number == signal.SIGINT else {-number}
        assert outcome.code in {0, 128 + number} | before, (
            f"{name} {more}: {outcome.code}\n{outcome.output}"
        )
        assert outcome.code != 1 or "KeyboardInterrupt" in outcome.output, outcome.output
        assert_complete(self.run_dir)
        self.num_kills += outcome.code != 0
        how = "signalled" if outcome.code else "was through"
        self.tell(f"{name} after {seconds:.3f} s{' '.join(['', *more])}: {how}")
        return outcome.code != 0

    def finish(self, *more: str) -> dict[str, str]:
        """Let it get through: the hashes of what it came to."""
        return self.processes.run(str(self.run_dir), *self.options, *more).digest

    def _note(self, outcome: Outcome, moment: str, more: tuple[str, ...]) -> bool:
        assert outcome.code in (0, -signal.SIGKILL), (
            f"after {moment} {more}: {outcome.code}\n{outcome.output}"
        )
        assert_complete(self.run_dir)
        is_killed = outcome.code != 0
        self.num_kills += is_killed
        self.tell(f"{moment}{' '.join(['', *more])}: {'killed' if is_killed else 'was through'}")
        return is_killed


def assert_complete(directory: Path) -> None:
    """Whatever has the name of a checkpoint is one: complete, down to its hashes."""
    for file in directory.rglob("*.safetensors"):
        if not any(part.startswith(".") for part in file.relative_to(directory).parts):
            problems = verify_checkpoint(file.parent)
            assert not problems, f"{file.parent}: {problems}"


def random_moment(rng: random.Random, seconds: float) -> str | float:
    """A place in the program, or a time within so many seconds."""
    place, most = rng.choice([*PLACES.items(), ("time", 0)])
    return f"{place}:{rng.randint(1, most)}" if most else rng.uniform(0.0, seconds)


def kill_at_random(crashes: Crashes, rng: random.Random, *more: str, seconds: float = 0.5) -> bool:
    """Kill it at some moment, by itself or from outside within so many seconds."""
    moment = random_moment(rng, seconds)
    if isinstance(moment, str):
        return crashes.kill_at(moment, *more)
    return crashes.kill_after(moment, *more)


def signal_at_random(
    crashes: Crashes, rng: random.Random, *more: str, seconds: float = 0.5
) -> bool:
    """Send SIGTERM or SIGINT to its whole process group at some moment within so many seconds."""
    return crashes.signal_after(
        rng.uniform(0.0, seconds), rng.choice([signal.SIGTERM, signal.SIGINT]), *more
    )


def differing(digest: dict[str, str], expected: dict[str, str]) -> list[str]:
    """The parts in which two runs are not the same."""
    return [name for name in expected if digest.get(name) != expected[name]]


def options_of(choice: dict[str, Any]) -> list[str]:
    """Command line options from a dict of them."""
    return [text for name, value in choice.items() for text in (f"--{name}", str(value))]

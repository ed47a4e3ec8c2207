"""Runs contenders in rounds, one after the other and again, each in a process of its own on a
terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("contender.py")
STARTED_AT_ONCE = 2


class ContenderError(Exception):
    """A contender's process has ended; the text is the last line that it printed."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over rounds of one contender's time to another's, with the middle half of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f}  ({self.low:.2f}-{self.high:.2f})"


class Contender:
    """A process that trains for a round when asked to; of what it draws on its terminal the end is
    kept.

    Args:
        name: of `contenders.py`, `interface_contenders.py` or, with a colon, of a peer.
        workload: "W1", "W2" or "W3".
        module: The module with the function `serve` that answers in the process (see
            `contender.py`).
        python: The interpreter that has its packages (default: this one). Another one does not get
            PYTHONPATH.
        num_checked: The steps after which `loss` is taken, over the same samples for every
            contender; 0 for none.
    """

    def __init__(
        self,
        name: str,
        workload: str,
        *,
        module: str = "contender",
        python: Path | None = None,
        num_checked: int = 0,
    ) -> None:
        self.name, self._shown = name, bytearray()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.connection, other = Pipe()
        program = [str(python or sys.executable), str(PROGRAM), str(other.fileno())]
        self.process = subprocess.Popen(
            [*program, module, name, workload, str(num_checked)],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            pass_fds=[other.fileno()],
            env=_environment(python),
        )
        os.close(slave)
        other.close()  # so that the end of the process ends the connection
        self._reader = threading.Thread(target=self._drain, args=(master,), daemon=True)
        self._reader.start()
        self.checked: tuple[float | None, str | None] = self._receive()

    def time_round(self) -> Any:
        """What its module's `serve` sends for another round."""
        with suppress(OSError):  # where it has ended, receiving says so
            self.connection.send(True)
        return self._receive()

    def close(self) -> None:
        with suppress(OSError):  # it may have ended by itself, after its last round
            self.connection.send(False)
        self.process.wait()
        self.connection.close()

    def _receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            raise ContenderError(self._last_line()) from None

    def _last_line(self) -> str:
        code = self.process.wait()
        self._reader.join(timeout=5)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._shown.decode(errors="replace"))
        lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        return lines[-1] if lines else f"ended with {code}"

    def _drain(self, descriptor: int) -> None:
        try:
            while shown := os.read(descriptor, 65536):
                self._shown = (self._shown + shown)[-8192:]
        except OSError:
            return  # the process has closed its end
        finally:
            os.close(descriptor)


def _environment(python: Path | None) -> dict[str, str]:
    kept = dict(os.environ) | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    if python is not None:
        kept.pop("PYTHONPATH", None)
    return kept


@dataclass(frozen=True, slots=True)
class Measurement:
    """CPU seconds in each round, losses of the check, and why a contender has no times.

    `times` are those of a whole call of the training function, divided by its steps; `steps` those
    of a step without the start and the end of the call; `calls` these alone. A loss comes with the
    reason why it is not the hand-written loop's, where the contender has one.
    """

    times: dict[str, list[float]]
    steps: dict[str, list[float]]
    calls: dict[str, list[float]]
    losses: dict[str, tuple[float | None, str | None]]
    failures: dict[str, str]


# contender, round (0: starting), how many contenders of it are done
Report = Callable[[str, int, int], None]


def measure_all(
    names: Sequence[str],
    workload: str,
    num_rounds: int,
    *,
    module: str = "contender",
    interpreters: Mapping[str, Path] | None = None,
    num_checked: int = 0,
    report: Report = lambda *_: None,
) -> Measurement:
    """Rounds of every contender; one that fails leaves the others as they are."""
    failures: dict[str, str] = {}

    def start(name: str) -> Contender | None:
        try:
            python = (interpreters or {}).get(name)
            return Contender(name, workload, module=module, python=python, num_checked=num_checked)
        except ContenderError as error:
            failures[name] = str(error)
            return None

    running: dict[str, Contender] = {}
    with ThreadPoolExecutor(STARTED_AT_ONCE) as pool:
        for number, (name, contender) in enumerate(
            zip(names, pool.map(start, names), strict=True), start=1
        ):
            report(name, 0, number)
            running |= {name: contender} if contender else {}
    losses = {name: contender.checked for name, contender in running.items()}
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in running}
    for round_number in range(1, num_rounds + 1):
        for number, (name, contender) in enumerate(list(running.items()), start=1):
            try:
                taken[name].append(contender.time_round())
            except ContenderError as error:
                failures[name] = str(error)
                del running[name], taken[name]
            report(name, round_number, number)
    for contender in running.values():
        contender.close()
    times = {name: [many / num for _, many, num in rounds] for name, rounds in taken.items()}
    steps = {
        name: [(many - one) / (num - 1) for one, many, num in rounds]
        for name, rounds in taken.items()
    }
    calls = {
        name: [one - (many - one) / (num - 1) for one, many, num in rounds]
        for name, rounds in taken.items()
    }
    return Measurement(times, steps, calls, losses, failures)


def measure(
    names: Sequence[str], workload: str, num_rounds: int, *, module: str = "contender"
) -> dict[str, list[float]]:
    """CPU seconds per step of whole calls, a list of rounds for each contender; one that fails is
    an error."""
    measured = measure_all(names, workload, num_rounds, module=module)
    if measured.failures:
        raise ContenderError(
            "; ".join(f"{name}: {reason}" for name, reason in measured.failures.items())
        )
    return measured.times


def ratio(times: Mapping[str, Sequence[float]], name: str, base: str) -> Ratio:
    ratios = sorted(own / other for own, other in zip(times[name], times[base], strict=True))
    quarter = len(ratios) // 4
    return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])

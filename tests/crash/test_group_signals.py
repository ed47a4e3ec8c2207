"""Signals to a whole process group, workers included, as torchrun, SLURM, systemd and terminals
send them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loopwright import Callback, Trainer
from loopwright.checkpoint import list_checkpoints

from ..forked import call_forked
from ..runs import adam, cross_entropy
from .crashing import Processes, differing

OPTIONS = [
    "--light",
    "--epochs",
    "2",
    "--workers",
    "2",
    "--eval-workers",
    "1",
    "--group",
    "--every",
    "3",
]
MOMENTS = ["step:1", "step:2", "step:5", "step:9", "eval:2", "eval:3", "epoch:1", "epoch:2"]
MOMENTS += ["file:9", "file:14", "file:20", "file:33"]  # while something is saved
# before training: the run directory is opened, metrics' names are found out
EARLY = [
    "file:1",
    "file:2",
    "eval:1",
]
PATIENCE = 60.0


def state_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / "run.json").read_text())["state"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    return Processes(folder).run(str(folder / "run"), *OPTIONS).digest


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_to_the_group_saves_leaves_with_143_and_continues_exactly(
    moment: str, expected: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    persistent = ["--persistent"] if MOMENTS.index(moment) % 2 else []
    ended = processes.run(str(run_dir), *OPTIONS, *persistent, "--at", f"{moment}=TERM")
    assert ended.code == 143, ended.output
    assert state_of(run_dir) == "interrupted"
    assert [info for info in list_checkpoints(run_dir, verify=True) if info.kind == "resume"]
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


@pytest.mark.parametrize("moment", EARLY)
def test_sigterm_before_training_ends_the_process_as_any_other(
    moment: str, expected: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    assert processes.run(str(run_dir), *OPTIONS, "--at", f"{moment}=TERM").code == -signal.SIGTERM
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


def test_an_interrupt_to_the_group_saves_and_leaves_with_130(
    expected: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    ended = processes.run(str(run_dir), *OPTIONS, "--at", "step:4=INT")
    assert (ended.code, state_of(run_dir)) == (130, "interrupted"), ended.output
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


def test_further_sigterms_while_it_saves_change_nothing(
    expected: dict[str, str], processes: Processes, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    moments = [
        text for moment in ("step:4", "file:9", "file:12") for text in ("--at", f"{moment}=TERM")
    ]
    ended = processes.run(str(run_dir), *OPTIONS, *moments)
    assert (ended.code, state_of(run_dir)) == (143, "interrupted"), ended.output
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


class Slow(Dataset[Any]):
    """Samples of a worker that tells who it is, and can be told to stay in a sample."""

    def __init__(self, length: int, stays: Callable[[int], bool] = lambda index: False) -> None:
        self.length, self.stays = length, stays

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None and self.stays(index):
            time.sleep(PATIENCE * 10)
        return torch.full((2,), float(index)), index % 3


class InTheMiddle(Callback):
    """Does something with the process and its workers after an update."""

    def __init__(self, action: Callable[[Trainer], object], update: int = 3) -> None:
        self.action, self.update = action, update

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.update == self.update:
            self.action(trainer)


def children() -> list[int]:
    """The processes that this one has started, by what the system says."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def train(run_dir: Path, *callbacks: Callback, data: Any = None) -> None:
    loader = DataLoader(data or Slow(40), batch_size=4, num_workers=2)
    net = torch.nn.Linear(2, 3)
    Trainer(
        net, adam, cross_entropy, callbacks=callbacks, run_dir=run_dir, progress="silent"
    ).train(loader, 2)


def test_workers_of_a_users_own_loader_in_a_hook_outlive_the_signal_too(tmp_path: Path) -> None:
    read: list[int] = []

    def read_after_the_signal(trainer: Trainer) -> None:
        own = iter(DataLoader(Slow(8), num_workers=2, persistent_workers=True))
        next(own)
        os.killpg(0, signal.SIGTERM)
        read.extend(int(y) for _, y in own)
        print(len(read))

    def program() -> None:
        os.setsid()
        train(tmp_path / "run", InTheMiddle(read_after_the_signal))

    ended = call_forked(program, tmp_path)
    assert (ended.code, ended.out.split()[0]) == (143, "7"), ended.err
    assert state_of(tmp_path / "run") == "interrupted"


def test_a_worker_that_is_killed_is_an_error_that_says_so(tmp_path: Path) -> None:
    def program() -> None:
        train(
            tmp_path / "run", InTheMiddle(lambda trainer: os.kill(children()[-1], signal.SIGKILL))
        )

    ended = call_forked(program, tmp_path)
    assert ended.code == 1
    assert re.search("worker .*killed by (signal: Killed|SIGKILL)", ended.err), ended.err
    assert state_of(tmp_path / "run") == "failed"


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in _stat(pid)]


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def have_ended(pids: list[int]) -> bool:
    end = time.monotonic() + PATIENCE
    while alive(pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_the_process_that_trains_is_gone(number: int, tmp_path: Path) -> None:
    def leave(trainer: Trainer) -> None:
        print(*children(), flush=True)
        os.kill(os.getpid(), number)

    def program() -> None:
        os.setsid()
        train(tmp_path / "run", InTheMiddle(leave))

    ended = call_forked(program, tmp_path)
    assert ended.code == (143 if number == signal.SIGTERM else -number), ended.err
    workers = [int(pid) for pid in ended.out.split()[:2]]
    assert len(workers) == 2
    assert have_ended(workers)


def test_a_worker_that_stays_in_the_data_set_does_not_keep_the_program_from_ending(
    tmp_path: Path,
) -> None:
    def program() -> None:
        train(
            tmp_path / "run",
            InTheMiddle(lambda trainer: os.kill(os.getpid(), signal.SIGTERM), update=1),
            data=Slow(40, lambda index: index >= 36),
        )

    started = time.monotonic()
    assert call_forked(program, tmp_path).code == 143
    assert time.monotonic() - started < PATIENCE * 10

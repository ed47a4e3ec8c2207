"""Functions for new processes to import."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import torch

from loopwright.runtime.process_group import RankGroup
from loopwright.runtime.watchdog import watched


class UnreadableError(Exception):
    """An exception that can be written by pickle and not read."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def multiply(factor: int) -> tuple[int, torch.Tensor]:
    group = RankGroup.join()
    return group.rank * factor, torch.tensor(group.gather_objects(group.rank))


def fail_on_rank_1() -> None:
    group = RankGroup.join()
    with watched(group):
        group.barrier("before it")
        if group.rank == 1:
            raise KeyError("column")
        group.barrier("after it")


def raise_unreadable() -> None:
    raise UnreadableError(1, 2)


def fail_at_first(folder: Path) -> int:
    group = RankGroup.join()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (folder / f"{attempt}-{group.rank}").touch()
    with watched(group):
        group.barrier("before it")
        if attempt == 0 and group.rank == 0:
            raise ValueError("at first")
        group.barrier("after it")
    return attempt


def leave() -> None:
    os._exit(7)


def return_a_generator() -> object:
    return (number for number in range(3))


def start_by_fork_server() -> int | None:
    """The exit code of a process that a fork server starts."""
    process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    process.start()
    process.join()
    return process.exitcode

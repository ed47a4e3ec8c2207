"""A rank that raises, dies or gets stuck ends the others soon, and what matters is what is
shown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from loopwright.runtime import watchdog
from loopwright.runtime.process_group import RankGroup
from loopwright.runtime.signals import Signals
from loopwright.runtime.watchdog import watched
from tests.distributed.ranks import Ended, run_ranks, start_ranks

SCRIPTS = Path(__file__).parent.parent / "distributed" / "scripts"
# the promise is 10 s, for machines that have time for their processes; collectives give up after
# 600 s
LIMIT = 120.0


def reduce_forever(group: RankGroup, heartbeat: watchdog.Watchdog) -> None:
    while True:
        dist.all_reduce(torch.ones(10))
        heartbeat.beat()


def wait_forever() -> None:
    """As in a computation without collectives."""
    threading.Event().wait()


def fail_on_rank_1(rank: int, how: str, others: str, folder: Path) -> None:
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / f"error{rank}")
    group = RankGroup.join()
    if how == "kill":
        watchdog.GRACE_SECONDS = 1.0  # to wait less here
    with watched(group) as heartbeat:
        group.barrier("before it")
        if rank == 1:
            (folder / "failed").write_text(repr(time.time()))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("a bad sample")
        if others == "computing":
            wait_forever()
        reduce_forever(group, heartbeat)


def check_followers(ended: list[Ended], folder: Path, reason: str) -> None:
    """The others left with 1, within the limit, and with one line each."""
    failed = float((folder / "failed").read_text())
    for rank in (ended[0], ended[2]):
        assert rank.code == 1
        assert rank.at - failed < LIMIT
        assert re.fullmatch(rf"rank {rank.rank} stops: rank 1 failed: {reason}\n", rank.stderr)


@pytest.mark.parametrize("others", ["in collectives", "computing"])
def test_a_rank_that_raises_ends_the_others_with_one_line_each(tmp_path: Path, others: str) -> None:
    ended = start_ranks(fail_on_rank_1, 3, "raise", others, tmp_path)
    check_followers(ended, tmp_path, "ValueError: a bad sample")
    assert ended[1].error.rstrip().endswith("ValueError: a bad sample")


@pytest.mark.parametrize("others", ["in collectives", "computing"])
def test_a_rank_that_is_killed_ends_the_others_with_one_line_each(
    tmp_path: Path, others: str
) -> None:
    ended = start_ranks(fail_on_rank_1, 3, "kill", others, tmp_path)
    check_followers(
        ended,
        tmp_path,
        r"its process \(\d+ on \S+\) ended without a message: killed, or out of memory",
    )
    assert ended[1].code == -signal.SIGKILL


def test_torchrun_learns_which_rank_failed_first(tmp_path: Path) -> None:
    start_ranks(fail_on_rank_1, 3, "raise", "in collectives", tmp_path)
    assert [path.name for path in tmp_path.glob("error*")] == ["error1"]
    reported = json.loads((tmp_path / "error1").read_text())["message"]["extraInfo"]
    assert "raise ValueError" in reported["py_callstack"]
    assert int(reported["timestamp"]) < float((tmp_path / "failed").read_text())


def fail_together(rank: int) -> tuple[str, int]:
    group = RankGroup.join()
    caught = ""
    try:
        with watched(group):
            raise ValueError(f"of rank {rank}")
    except ValueError as error:
        caught = str(error)
    with watched(group) as heartbeat:
        heartbeat.beat()
        return caught, sum(group.gather_objects(rank))


def test_an_error_that_all_ranks_raise_can_be_caught_and_training_goes_on() -> None:
    assert run_ranks(fail_together, 2) == [("of rank 0", 1), ("of rank 1", 1)]


def raise_outside(rank: int) -> None:
    """An uncaught error, as Python would report it."""
    group = RankGroup.join()
    if rank == 1:
        try:
            raise KeyError("column")
        except KeyError:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            raise
    with watched(group) as heartbeat:
        reduce_forever(group, heartbeat)


def test_a_rank_that_raises_before_training_ends_those_that_wait_for_it() -> None:
    ended = start_ranks(raise_outside, 2)
    assert [rank.code for rank in ended] == [1, 1]
    assert ended[0].stderr == "rank 0 stops: rank 1 failed: KeyError: 'column'\n"
    assert ended[1].stderr.rstrip().endswith("KeyError: 'column'")


def get_stuck(rank: int) -> None:
    watchdog.GRACE_SECONDS = 1.0
    group = RankGroup.join(timeout=8.0)
    with watched(group) as heartbeat:
        for update in range(5):
            if rank == 1 and update == 3:
                wait_forever()
            dist.all_reduce(torch.ones(10))
            heartbeat.beat()


def test_a_collective_that_times_out_names_rank_and_place_and_shows_who_is_stuck() -> None:
    ended = start_ranks(get_stuck, 2)
    assert [rank.code for rank in ended] == [1, 1]
    assert (
        "CommunicationError: Rank 0 of 2, at update 4: the other processes did not answer within "
        "8 s" in ended[0].error
    )
    assert "rank 1 is at update 4:" in ended[1].stderr
    assert "in wait_forever" in ended[1].stderr


def save_for_long(rank: int) -> int | None:
    """No sign of life of the loop for twice as long as is looked on."""
    watchdog.SILENCE_SECONDS = 2.0
    group = RankGroup.join()
    with watched(group) as heartbeat, Signals() as signals:
        heartbeat.beat()
        group.barrier("before it")
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(4.0)
        group.barrier("after it")
        # else it would be raised again after the block
        stop, signals.requested = (
            signals.stop,
            None,
        )
        return stop


def test_a_signal_does_not_end_a_rank_that_takes_long_to_save() -> None:
    assert run_ranks(save_for_long, 2) == [signal.SIGTERM, signal.SIGTERM]


def lose_a_silent_peer(rank: int) -> None:
    """Rank 1 is stopped, as if its host were gone: its connections stay open without an answer."""
    watchdog.SILENCE_SECONDS = 2.0
    group = RankGroup.join()
    with watched(group) as heartbeat, Signals():
        group.barrier("before it")
        if rank == 1:
            stop_until_gone(group)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        reduce_forever(group, heartbeat)


def stop_until_gone(group: RankGroup) -> None:
    """Stop this process until rank 0 is gone, then end it."""
    own = os.getpid()
    if os.fork() == 0:
        while not group.peers[0].is_gone():
            time.sleep(0.05)
        os.kill(own, signal.SIGKILL)
        os._exit(0)
    os.kill(own, signal.SIGSTOP)


def test_a_signal_ends_a_rank_that_is_stuck_in_a_collective_with_one_who_is_silent() -> None:
    ended = start_ranks(lose_a_silent_peer, 2)
    assert ended[0].code == 1
    assert (
        ended[0].stderr
        == "rank 0 stops: asked to stop (SIGTERM), but there is no heartbeat from rank 1\n"
    )


def train_in_turn(rank: int) -> list[str]:
    """Threads of the watchdog that are left after it."""
    group = RankGroup.join()
    for _ in range(2):
        with watched(group) as heartbeat:
            heartbeat.beat()
            group.barrier("in it")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loopwright")]


def test_a_watchdog_that_ends_well_leaves_no_threads() -> None:
    assert run_ranks(train_in_turn, 2) == [[], []]


def finish_early(rank: int) -> str:
    group = RankGroup.join()
    with watched(group):
        if rank == 1:
            threading.Event().wait(1.0)  # the other is gone by now, in good order
    return "trained"


def test_a_rank_that_ends_well_before_the_others_is_not_missed() -> None:
    assert run_ranks(finish_early, 2) == ["trained", "trained"]


@pytest.mark.parametrize("how", ["raise", pytest.param("kill", marks=pytest.mark.long)])
def test_torchrun_ends_soon_and_shows_the_root_cause_last(tmp_path: Path, how: str) -> None:
    note = tmp_path / "failed"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    run = subprocess.run(
        [*command, str(SCRIPTS / "failing.py"), how, str(note)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 1
    assert time.time() - float(note.read_text()) < LIMIT  # torchrun leaves after all ranks
    root = run.stderr.rpartition("Root Cause (first observed failure)")[2]
    assert re.search(r"rank +: 1 ", root)
    assert ("ValueError: a bad sample" if how == "raise" else "SIGKILL") in root
    assert "[rank0]: Traceback" not in run.stderr
    assert "terminate called" not in run.stderr

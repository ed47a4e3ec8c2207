"""Two hosts, one of which is cut off in the middle."""

from __future__ import annotations

from pathlib import Path

from loopwright.checkpoint import CheckpointStore
from tests.distributed.hosts import two_hosts, wait_until
from tests.distributed.ranks import run_ranks

from .scripts.two_hosts_training import TIMEOUT, train

SCRIPTS = Path(__file__).parent / "scripts"
TRAINING = SCRIPTS / "two_hosts_training.py"


def is_running(pid: int) -> bool:
    """Not so for one that has ended and that its torchrun did not look after yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_both_sides_end_when_the_cable_is_pulled_and_resume_exactly_when_they_are_started_again(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    store = CheckpointStore(run / "checkpoints")
    with two_hosts() as hosts:
        first, _ = (
            hosts.torchrun(host, tmp_path / f"{host}.log", TRAINING, run, 1_000_000)
            for host in "ab"
        )
        wait_until(lambda: bool(store.entries()), 300, "a checkpoint")
        pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]
        hosts.set_cable("down")
        wait_until(lambda: not any(map(is_running, pids)), TIMEOUT + 300, "the end of both ranks")
        assert first.wait(timeout=300) == 1
        # torchrun on the host that was cut off waits for the store itself, for minutes, and is
        # ended by the fixture.
    output = (tmp_path / "a.log").read_text()
    assert "CommunicationError: Rank 0 of 2, at update" in output
    assert f"did not answer within {TIMEOUT:g} s. No heartbeat from rank 1." in output
    assert "CommunicationError: Rank 1 of 2, at update" in (tmp_path / "b.log").read_text()
    num_updates = store.entries()[-1].meta["update"] + 10
    with two_hosts() as hosts:
        again = [
            hosts.torchrun(host, tmp_path / f"{host}2.log", TRAINING, run, num_updates)
            for host in "ab"
        ]
        assert [process.wait(timeout=300) for process in again] == [0, 0], (
            tmp_path / "a2.log"
        ).read_text()
    resumed = [(tmp_path / f"digest{rank}").read_text() for rank in range(2)]
    assert resumed == run_ranks(train, 2, tmp_path / "whole", num_updates)

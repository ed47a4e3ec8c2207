"""Two hosts, one of which is cut off in the middle."""

from __future__ import annotations

from pathlib import Path

from loopwright.checkpoint import CheckpointStore

from .hosts import two_hosts, wait_until
from .ranks import run_ranks
from .scripts.two_hosts import TIMEOUT
from .scripts.two_hosts_training import train

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "two_hosts.py"
TRAINING = SCRIPTS / "two_hosts_training.py"


def is_running(pid: int) -> bool:
    """Not so for one that has ended and that its torchrun did not look after yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_both_sides_end_when_the_cable_between_them_is_pulled(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        a = hosts.torchrun("a", tmp_path / "a.log", SCRIPT, tmp_path, 1_000_000)
        hosts.torchrun("b", tmp_path / "b.log", SCRIPT, tmp_path, 1_000_000)
        counts = [tmp_path / "rank0", tmp_path / "rank1"]
        wait_until(lambda: all(c.exists() and int(c.read_text() or 0) > 20 for c in counts), 90, "update 20")
        pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]
        hosts.set_cable("down")
        wait_until(lambda: not any(map(is_running, pids)), TIMEOUT + 20, "the end of both ranks")
        assert a.wait(timeout=30) == 1
        # torchrun on the host that was cut off waits for the store itself, for minutes, and is ended by the fixture.
    told = (tmp_path / "a.log").read_text()
    assert "CommunicationError: Rank 0 of 2, at update" in told
    assert f"did not answer within {TIMEOUT:g} s. No sign of life from rank 1." in told
    assert "CommunicationError: Rank 1 of 2, at update" in (tmp_path / "b.log").read_text()


def test_a_pair_that_was_cut_apart_resumes_exactly_when_it_is_started_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    store = CheckpointStore(run / "checkpoints")
    with two_hosts() as hosts:
        for host in "ab":
            hosts.torchrun(host, tmp_path / f"{host}.log", TRAINING, run, 1_000_000)
        wait_until(lambda: bool(store.entries()), 90, "a checkpoint")
        pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]
        hosts.set_cable("down")
        wait_until(lambda: not any(map(is_running, pids)), TIMEOUT + 30, "the end of both ranks")
    num_updates = store.entries()[-1].meta["update"] + 10
    with two_hosts() as hosts:
        again = [hosts.torchrun(host, tmp_path / f"{host}2.log", TRAINING, run, num_updates) for host in "ab"]
        assert [process.wait(timeout=90) for process in again] == [0, 0], (tmp_path / "a2.log").read_text()
    resumed = [(tmp_path / f"digest{rank}").read_text() for rank in range(2)]
    assert resumed == run_ranks(train, 2, tmp_path / "whole", num_updates)

"""torch's elastic launcher starts processes again, and the run goes on by itself; also on fewer of
them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import launch
from loopwright.checkpoint import CheckpointStore
from tests.distributed.hosts import wait_until
from tests.distributed.ranks import RESOLVER, run_ranks
from tests.distributed.scenarios import assert_same
from tests.distributed.test_resuming import assert_identical, kill_one, train

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "elastic.py"


def killed_at_first(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    return kill_one(int(os.environ["RANK"]), "ddp", folder, (1, 7) if is_first else None)


def test_processes_that_are_started_again_go_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    expected = run_ranks(kill_one, 2, "ddp", tmp_path / "whole", None)
    restarted = launch(
        killed_at_first, tmp_path / "run", processes=2, max_restarts=1, start_method="fork"
    )
    for first, second in zip(expected, restarted, strict=True):
        assert_identical(first, second)


def start_agent(name: str, port: int, folder: Path) -> subprocess.Popen[bytes]:
    """One of one or two torchruns with a process each, which notice in some seconds that the other
    is gone."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1:2",
        "--nproc-per-node",
        "1",
    ]
    command += [
        "--max-restarts",
        "3",
        "--monitor-interval",
        "0.1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "test",
    ]
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1", "--rdzv-conf"]
    command += [
        f"is_host={int(name == 'a')},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=2"
    ]
    with (folder / f"{name}.log").open("w") as output:
        return subprocess.Popen(
            [*command, str(SCRIPT), name, str(folder)],
            env=os.environ
            | RESOLVER
            | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.mark.long
def test_a_run_that_lost_a_host_for_good_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """The second torchrun and its process are killed; the first starts its own again, alone."""
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = [start_agent(name, port, tmp_path) for name in "ab"]
    try:
        wait_until(lambda: bool(store.entries()), 300, "a checkpoint")
        assert (tmp_path / "worlds").read_text().split() == ["2"]
        os.killpg(agents[1].pid, signal.SIGKILL)
        os.kill(int((tmp_path / "pid-b").read_text()), signal.SIGKILL)
        (tmp_path / "go").touch()
        assert agents[0].wait(timeout=300) == 0, (tmp_path / "a.log").read_text()
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
    assert (tmp_path / "worlds").read_text().split() == ["2", "1"]
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    assert_same(result, train(0, "cpu", tmp_path / "alone", 12))

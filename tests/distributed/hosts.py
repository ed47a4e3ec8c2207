"""Two hosts on this machine: two network namespaces with a cable between them, and torchrun in
each.

Only addresses inside these namespaces are ever used.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.distributed.ranks import RESOLVER

PORT = 29511


class TwoHosts:
    """The namespaces `a` (10.77.0.1, where the processes meet) and `b` (10.77.0.2)."""

    def __init__(self, name: str) -> None:
        self.names = {host: f"lw{name}{host}" for host in "ab"}
        self.addresses = {"a": "10.77.0.1", "b": "10.77.0.2"}
        self._started: list[subprocess.Popen[str]] = []

    def connect(self) -> None:
        for host in "ab":
            _ip("netns", "add", self.names[host])
        a, b = self.names["a"], self.names["b"]
        _ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b)
        for host, name in self.names.items():
            _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "cable", "up")

    def set_cable(self, state: str) -> None:
        """Pull the cable ("down"), or put it back ("up"): nothing arrives, and no side is
        notified."""
        _ip("-n", self.names["a"], "link", "set", "cable", state)

    def torchrun(self, host: str, log: Path, script: Path, *args: object) -> subprocess.Popen[str]:
        """One process on a host, as half of two; its output goes to `log`."""
        command = [
            "ip",
            "netns",
            "exec",
            self.names[host],
            sys.executable,
            "-m",
            "torch.distributed.run",
        ]
        command += [
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--rdzv-id",
            "test",
            "--rdzv-backend",
            "c10d",
        ]
        command += [
            "--rdzv-endpoint",
            f"{self.addresses['a']}:{PORT}",
            "--local-addr",
            self.addresses[host],
        ]
        command += ["--rdzv-conf", f"is_host={int(host == 'a')}", str(script), *map(str, args)]
        env = os.environ | RESOLVER | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=subprocess.STDOUT, text=True
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for name in self.names.values():
            left = subprocess.run(
                ["ip", "netns", "pids", name], check=False, capture_output=True, text=True
            )
            for pid in left.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """The two hosts; where namespaces cannot be made, the test is skipped with the system's own
    words."""
    if shutil.which("ip") is None:
        pytest.skip("the command `ip` (Debian: iproute2) is not installed")
    hosts = TwoHosts(str(os.getpid()))
    try:
        try:
            hosts.connect()
        except subprocess.CalledProcessError as error:
            pytest.skip(
                f"network namespaces cannot be made here: {' '.join(error.cmd)}: "
                f"{error.stderr.strip()}"
            )
        yield hosts
    finally:
        hosts.close()


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.05)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)

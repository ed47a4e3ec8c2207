"""The process group: rendezvous, collectives of host objects, and shutdown.

A collective that times out or loses a peer is an error that says which rank was where, and what to
do.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import pad

from .._torch_compat.distributed import default_store
from ..errors import ConfigurationError, DataError
from .environment import Launch
from .failure import CommunicationError, install_hook, is_communication

_PAUSE = 0.01


def rendezvous_store(launch: Launch, timeout: float) -> Store:
    """Wait for all ranks of this attempt; the store that they share."""
    is_torchrun = launch.source == "torchrun"
    url = "env://" if is_torchrun else f"tcp://{launch.master_addr}:{launch.master_port}"
    found = rendezvous(
        url, rank=launch.rank, world_size=launch.world, timeout=timedelta(seconds=timeout)
    )
    store: Store = next(found)[0]
    end = time.monotonic() + timeout
    name = _open(store, launch, end) if launch.rank == 0 else _join(store, launch, end)
    return PrefixStore(name, store)


def _open(store: Store, launch: Launch, end: float) -> str:
    """Rank 0 chooses the name of the attempt, and lists the ranks that joined under it."""
    name = f"loopwright-{uuid.uuid4().hex}"
    store.set("loopwright-name", name)
    missing = set(range(1, launch.world))
    while missing:
        missing = {rank for rank in missing if not store.check([f"{name}/joined{rank}"])}
        if missing and time.monotonic() > end:
            raise RuntimeError(f"rank {', '.join(map(str, sorted(missing)))} did not join")
        time.sleep(_PAUSE if missing else 0.0)
    joined = [store.get(f"{name}/joined{rank}").decode() for rank in range(1, launch.world)]
    store.set(f"{name}/all", " ".join(joined))
    return name


def _join(store: Store, launch: Launch, end: float) -> str:
    """The others join under the name they find, and again under the next one if that was of an
    earlier attempt."""
    own = f"{uuid.uuid4().hex}-{os.getpid()}"
    name = ""
    while True:
        found = store.get("loopwright-name").decode() if store.check(["loopwright-name"]) else ""
        if found and found != name:
            name = found
            store.set(f"{name}/joined{launch.rank}", own)
        is_complete = bool(name) and store.check([f"{name}/all"])
        if is_complete and own in store.get(f"{name}/all").decode().split():
            return name
        if time.monotonic() > end:
            raise RuntimeError("rank 0 did not join" if not name else "not all ranks joined")
        time.sleep(_PAUSE)


@dataclass(frozen=True, slots=True)
class Peer:
    """One process, described so that another on the same machine can see whether it is still
    running."""

    rank: int
    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def me(cls, rank: int) -> Peer:
        pid = os.getpid()
        _, started = _status(pid)
        return cls(rank, socket.gethostname(), _machine(), pid, started)

    def is_local(self) -> bool:
        """Whether it is on this system, in the same namespace of process ids."""
        return self.machine != "" and self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; never said of one on another machine."""
        if not self.is_local():
            return False
        state, started = _status(self.pid)
        return state in ("", "Z", "X") or started != self.started


def _machine() -> str:
    """The running system and its namespace of process ids; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _status(pid: int) -> tuple[str, str]:
    """State and start time of a process, which together with its number tell it from a later
    one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], fields[19]


T = TypeVar("T")

TIMEOUT = 600.0
_TEARDOWN_SECONDS = 30.0
_FAILED_SECONDS = 3.0
_STORE_SECONDS = 10.0

_current: RankGroup | None = None


class RankGroup:
    """All processes of this training; made by `RankGroup.join`, once per process."""

    def __init__(self, device: torch.device, timeout: float, *, is_owner: bool) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.device = device
        self.timeout = timeout
        self.num_watched = 0  # blocks so far
        self.is_closed = False
        self.has_failed = False
        self._is_owner = is_owner
        with self.at("the start"):
            self.host_group = self.new_host_group()
            self.peers: list[Peer] = self.gather_objects(Peer.me(self.rank))
        self.store = _own_store()

    @classmethod
    def join(
        cls,
        device: str | torch.device = "cpu",
        *,
        timeout: float = TIMEOUT,
    ) -> RankGroup:
        """Join the other ranks, or return the group this process is in already.

        An initialised `torch.distributed` is used as it is, and not shut down by us. `timeout` is
        the number of seconds that a collective waits for the slowest rank.
        """
        global _current
        device = torch.device(device)
        current = current_group()
        if current is not None and dist.is_initialized():
            _check_backend(device)
            return current
        is_owner = not dist.is_initialized()
        if is_owner:
            _initialize(device, timeout)
        _check_backend(device)
        group = cls(device, timeout, is_owner=is_owner)
        install_hook(group)
        atexit.register(group.close)
        _current = group
        return group

    def new_host_group(self) -> dist.ProcessGroup:
        """Another group for host objects; collectives from a second thread need one of their own.

        Every process has to call this, in the same order.
        """
        group: dist.ProcessGroup = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=self.timeout)
        )
        return group

    # Host objects; every process has to call these, in the same order

    def gather_objects(self, value: T) -> list[T]:
        """Every process's value, by rank, on every process."""
        with self.at("gather_objects"):
            return gather_pickled(value, self.host_group)

    def broadcast_object(self, value: T) -> T:
        """The value of rank 0, on every process."""
        values = [value]
        with self.at("broadcast_object"):
            dist.broadcast_object_list(values, src=0, group=self.host_group)
        return values[0]

    def barrier(self, place: str) -> None:
        """Wait for all processes; `place` is what an error calls this."""
        with self.at(place):
            dist.barrier(group=self.host_group)

    def gather(self, tensor: Tensor, padding_value: float | None = None) -> Tensor:
        """Every process's tensor, one after the other along the first dimension, on every process.

        The first dimension may differ between processes. Where others do, `padding_value` fills all
        up to the largest; without one that is an error.
        """
        rows: Tensor = torch.atleast_1d(tensor.detach())  # type: ignore[no-untyped-call]
        kinds = self.gather_objects((tuple(rows.shape), rows.dtype))
        rests = {shape[1:] for shape, _ in kinds}
        are_alike = len({(len(shape), dtype) for shape, dtype in kinds}) == 1
        if not are_alike or (len(rests) > 1 and padding_value is None):
            every = [f"rank {rank} {shape} {dtype}" for rank, (shape, dtype) in enumerate(kinds)]
            raise DataError(
                "gather-mismatch",
                f"gather: the tensors of the ranks do not fit together: {', '.join(every)}. Give "
                "them one dtype and number of dimensions; if dimensions other than the first "
                "differ, pass padding_value= to fill up to the largest.",
            )
        with self.at("gather"):
            parts = _exchange(rows, [shape for shape, _ in kinds])
        largest = [max(sizes) for sizes in zip(*rests, strict=True)]
        return torch.cat([_fill(part, largest, padding_value) for part in parts])

    # Errors and the end

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Explain a failing collective inside by rank and place."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, CommunicationError) or not is_communication(error):
                raise
            raise self.explain(error, place) from error

    def explain(self, error: BaseException, place: str, more: str = "") -> CommunicationError:
        """A communication error that says which rank was where and what to do."""
        text = str(error).strip() or type(error).__name__
        what = "the connection to another process was lost"
        if "timed out" in text.lower() or "timeout" in text.lower():
            what = f"the other processes did not answer within {self.timeout:g} s"
        return CommunicationError(
            "communication-failed",
            f"Rank {self.rank} of {self.world}, at {place}: {what}.{more} Look for the first "
            "error in the output of the other ranks. If they were only slow, raise `timeout` "
            f"({self.timeout:g} s). (torch: {text.splitlines()[0]})",
        )

    def close(self) -> None:
        """Leave the process group; this happens by itself at the end of the program."""
        if self.is_closed:
            return
        self.is_closed = True
        atexit.unregister(self.close)
        gc.collect()
        if self._is_owner and dist.is_initialized():
            with _no_hang(_FAILED_SECONDS if self.has_failed else _TEARDOWN_SECONDS):
                dist.destroy_process_group()


def current_group() -> RankGroup | None:
    """The group this process is in, if any."""
    return None if _current is None or _current.is_closed else _current


def _initialize(device: torch.device, timeout: float) -> None:
    launch = Launch.from_environment()
    if launch is None:
        raise ConfigurationError(
            "one-process",
            "The program asks for several processes, but only one was started: start the program "
            "with `torchrun --nproc-per-node 2 program.py`, with `srun`, or call "
            "`loopwright.launch(fn, processes=2)`.",
        )
    if device.type == "cuda":
        torch.cuda.set_device(launch.local_rank if device.index is None else device.index)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=rendezvous_store(launch, timeout),
            rank=launch.rank,
            world_size=launch.world,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        raise CommunicationError(
            "no-connection",
            f"Rank {launch.rank} of {launch.world} could not connect to the other processes at "
            f"{launch.master_addr}:{launch.master_port} within {timeout:g} s: are all "
            f"{launch.world} running, and can their hosts reach each other (GLOO_SOCKET_IFNAME "
            f"names the network interface to use)? ({error})",
        ) from error


def _check_backend(device: torch.device) -> None:
    if device.type == "cuda" and "nccl" not in str(dist.get_backend_config()):
        raise ConfigurationError(
            "wrong-backend",
            f"torch.distributed was initialised with {dist.get_backend_config()}, which cannot "
            f'train on {device}: use backend="cpu:gloo,cuda:nccl", or leave the initialisation to '
            "Loopwright.",
        )


def _own_store() -> Store:
    """The store all processes share, over a connection of our own: a waiting call blocks the one it
    is made on."""
    shared: Any = default_store()
    store = shared
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return PrefixStore("loopwright", shared)
    own = shared.clone()
    own.set_timeout(timedelta(seconds=_STORE_SECONDS))
    return PrefixStore("loopwright", own)


@contextmanager
def _no_hang(seconds: float) -> Iterator[None]:
    """End the process if torch does not return.

    By a signal that the system answers, since a hanging destructor holds the interpreter's lock, so
    that no thread and no handler in Python would run.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


SHORT = 4096  # bytes of a pickled object that are sent together with its length


def gather_pickled(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value, by rank; in one collective where all are short, otherwise in two."""
    own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sent = torch.zeros(8 + SHORT, dtype=torch.uint8)
    sent[:8].view(torch.int64)[0] = own.numel()
    sent[8 : 8 + own.numel()] = own[:SHORT]
    received = _all_gather(sent, group)
    sizes = received[:, :8].contiguous().view(torch.int64).flatten().tolist()
    parts = received[:, 8:]
    longest = max(sizes)
    if longest > SHORT:
        parts = _all_gather(pad(own, (0, longest - own.numel())), group)
    values = []
    for part, size in zip(parts, sizes, strict=True):
        values.append(pickle.loads(part[:size].numpy().tobytes()))
    return values


def _all_gather(sent: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    received = sent.new_empty(dist.get_world_size(group), sent.numel())
    dist.all_gather(list(received), sent, group=group)
    return received


def _exchange(rows: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Every rank's tensor, from device to device; as bytes, since not every backend knows every
    dtype."""
    # not `contiguous`, which leaves the strides of a single row as they are
    own = rows.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
    sizes = [prod(shape) * rows.element_size() for shape in shapes]
    if not max(sizes):
        return [rows.new_empty(shape) for shape in shapes]
    received = _all_gather(pad(own, (0, max(sizes) - own.numel())))
    parts = zip(received, sizes, shapes, strict=True)
    return [part[:size].view(rows.dtype).view(shape) for part, size, shape in parts]


def _fill(part: Tensor, largest: Sequence[int], padding_value: float | None) -> Tensor:
    """Fill up all dimensions but the first."""
    missing: list[int] = []
    for size, own in zip(reversed(largest), reversed(part.shape[1:]), strict=True):
        missing += [0, size - own]
    return pad(part, missing, value=padding_value) if any(missing) else part

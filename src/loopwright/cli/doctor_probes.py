"""What `loopwright doctor` measures: devices, precisions, compilation, backends, files and
memory."""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

MATRIX = 512
SECONDS_FOR_COMPILE = 120
COMPILE_PROBE = """
import torch
torch.set_num_threads(1)
function = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum())
x = torch.linspace(-1, 1, 1000)
expected = torch.nn.functional.gelu(x * 2 + 1).sum()
assert torch.allclose(function(x), expected), (function(x), expected)
"""
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Machine:
    """Versions, processors and memory."""

    python: str
    loopwright: str
    torch: str
    platform: str
    cpus: int
    usable_cpus: int  # by this process: its affinity and the quota of its container
    threads: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """A device, and the speed of its matrix products in GFLOP/s by precision; None where it is not
    supported."""

    name: str
    model: str
    memory: int | None
    speeds: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Compilation:
    """Whether `torch.compile` works; None where it was not tried."""

    compiler: str | None
    works: bool | None
    seconds: float | None = None
    problem: str | None = None


def probe_machine() -> Machine:
    from .._version import __version__

    return Machine(
        python=platform.python_version(),
        loopwright=__version__,
        torch=torch.__version__,
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        threads=torch.get_num_threads(),
        memory=_memory(),
    )


def usable_cpus(quota_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The number of processors that this process may use."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        with open(quota_file) as file:
            quota, period = file.read().split()
        return max(min(allowed, int(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return allowed


def probe_devices(*, quick: bool) -> list[Device]:
    """The processor, and every accelerator."""
    devices = [torch.device("cpu")]
    devices += [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return [
        Device(str(d), _model(d), _device_memory(d), measure_speeds(d, quick=quick))
        for d in devices
    ]


def measure_speeds(device: torch.device, *, quick: bool = False) -> dict[str, float | None]:
    """GFLOP/s of matrix products in each precision that a trainer may use."""
    size = (256 if quick else MATRIX) if device.type == "cpu" else 2048
    return {
        name: _speed(device, dtype, size)
        for name, dtype in (
            ("fp32", torch.float32),
            ("bf16", torch.bfloat16),
            ("fp16", torch.float16),
        )
    }


def probe_compilation(*, quick: bool) -> Compilation:
    """Compile a small function in a process of its own, which may crash or hang."""
    compiler = next(
        (found for name in ("c++", "g++", "clang++", "cl") if (found := shutil.which(name))), None
    )
    if quick:
        return Compilation(compiler, None)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMPILE_PROBE],
            capture_output=True,
            text=True,
            timeout=SECONDS_FOR_COMPILE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Compilation(compiler, False, problem=f"it took more than {SECONDS_FOR_COMPILE} s")
    seconds = time.perf_counter() - start
    if done.returncode == 0:
        return Compilation(compiler, True, seconds)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return Compilation(
        compiler, False, seconds, lines[-1][:300] if lines else f"exit code {done.returncode}"
    )


def distributed_backends() -> list[str]:
    """The backends of `torch.distributed` that are available."""
    import torch.distributed as dist

    if not dist.is_available():
        return []
    return [
        name for name in ("gloo", "nccl", "xccl", "ucc", "mpi") if dist.is_backend_available(name)
    ]


def installed_extras() -> dict[str, dict[str, str | None]]:
    """The versions of the packages of each extra; None for a missing package."""
    try:
        required = metadata.requires("loopwright") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in required:
        package, _, condition = line.partition(";")
        extra = condition.partition("extra ==")[2].strip().strip("\"')")
        if extra and extra != "dev":
            name = "".join(c if c.isalnum() or c in "-_." else " " for c in package).split()[0]
            found.setdefault(extra, {})[name] = _version(name)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _model(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def _speed(device: torch.device, dtype: torch.dtype, size: int) -> float | None:
    """The best of a few tries, since anything else on the machine only makes it slower."""
    try:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        _product(left, right)
        seconds = min(_product(left, right) for _ in range(3))
    except RuntimeError:  # raised by torch for a dtype that the device does not support
        return None
    return 2 * size**3 / max(seconds, 1e-9) / 1e9


def _product(left: Tensor, right: Tensor) -> float:
    _wait(left.device)
    start = time.perf_counter()
    torch.mm(left, right)
    _wait(left.device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@dataclass(frozen=True, slots=True)
class Disk:
    """The folder that a run would be written to; speeds in bytes per second."""

    folder: str
    file_system: str | None
    free: int
    write_speed: float | None  # with fsync; None where nothing can be written
    sync_seconds: float | None  # of a small file
    copy_speed: float  # of memory, which is what a step waits for when a checkpoint is saved
    problem: str | None = None

    def write_seconds(self, size: int) -> float | None:
        """Seconds until a checkpoint is on disk."""
        return None if self.write_speed is None else size / self.write_speed

    def stall_seconds(self, size: int) -> float:
        """Seconds that a step waits for a checkpoint that is written in the background."""
        return size / self.copy_speed


@dataclass(frozen=True, slots=True)
class Workers:
    """Limits for worker processes that load data."""

    start_method: str
    shared_memory: int | None  # bytes free in /dev/shm
    open_files: int


def probe_disk(folder: Path, *, quick: bool) -> Disk:
    """Write and sync a file in the folder, and remove it."""
    size = (4 if quick else 64) << 20
    speed = None
    seconds = None
    problem = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".loopwright-doctor-") as file:
            seconds = _write(file.fileno(), b"x" * 4096)
            speed = size / max(_write(file.fileno(), os.urandom(1 << 20) * (size >> 20)), 1e-9)
    except OSError as error:
        problem = str(error)
    free = shutil.disk_usage(folder).free
    return Disk(
        str(folder), file_system_of(folder), free, speed, seconds, _copy_speed(size), problem
    )


def probe_workers() -> Workers:
    free = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    method = (
        multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0]
    )
    return Workers(method, free, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def file_system_of(folder: Path, table: str = "/proc/self/mounts") -> str | None:
    """The kind of file system a folder is on, where the system lists them."""
    try:
        lines = Path(table).read_text(errors="replace").splitlines()
    except OSError:
        return None
    mounts = [words for line in lines if len(words := line.split()) > 2]
    where = folder.resolve()
    around = [words for words in mounts if where.is_relative_to(words[1].replace("\\040", " "))]
    return max(around, key=lambda words: len(words[1]))[2] if around else None


def _write(descriptor: int, data: bytes) -> float:
    start = time.perf_counter()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return time.perf_counter() - start


def _copy_speed(size: int) -> float:
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    start = time.perf_counter()
    target.copy_(source)
    return size / max(time.perf_counter() - start, 1e-9)

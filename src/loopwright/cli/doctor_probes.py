"""What `loopwright doctor` finds out by trying: devices, precisions, compilation, distributed backends."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata

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
    """Something to compute on; speeds of matrix products in GFLOP/s by precision, None where it is not supported."""

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
    """How many processors this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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
    return [Device(str(d), _model(d), _device_memory(d), measure_speeds(d, quick=quick)) for d in devices]


def measure_speeds(device: torch.device, *, quick: bool = False) -> dict[str, float | None]:
    """GFLOP/s of matrix products in each precision that a trainer may use."""
    size = (256 if quick else MATRIX) if device.type == "cpu" else 2048
    return {
        name: _speed(device, dtype, size)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16))
    }


def probe_compilation(*, quick: bool) -> Compilation:
    """Compile a small function in a process of its own, which may crash or hang."""
    compiler = next((found for name in ("c++", "g++", "clang++", "cl") if (found := shutil.which(name))), None)
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
    return Compilation(compiler, False, seconds, lines[-1][:300] if lines else f"exit code {done.returncode}")


def distributed_backends() -> list[str]:
    """The backends that torch can bring several processes together with."""
    import torch.distributed as dist

    if not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "xccl", "ucc", "mpi") if dist.is_backend_available(name)]


def installed_extras() -> dict[str, dict[str, str | None]]:
    """The versions of the packages of each extra, None for those that are missing."""
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
    except RuntimeError:  # how torch says that a device does not have a type
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

"""`loopwright doctor`: measure this machine, and give advice."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from .._version import __version__
from ..errors import ConfigurationError
from ..text import counted, duration, size
from .exits import FOUND, OK
from .output import BOLD, print_json, printable, styled

NETWORK = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "fuse.sshfs",
    "9p",
    "glusterfs",
]
LITTLE_SHM = 1 << 30
LITTLE_SPACE = 5 << 30
FEW_FILES = 1024
SLOW_DISK = 50e6
TYPICAL = 1_200_000_000  # bytes: 100 M parameters with Adam, in float32
SHM = Path("/dev/shm")
SECONDS_FOR_COMPILE = 120
COMPILE_PROBE = """
import torch
torch.set_num_threads(1)
function = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum())
x = torch.linspace(-1, 1, 1000)
expected = torch.nn.functional.gelu(x * 2 + 1).sum()
assert torch.allclose(function(x), expected), (function(x), expected)
"""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def doctor_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute()
    if not folder.is_dir():
        raise ConfigurationError(
            "no-folder",
            f"--folder {options.folder}: there is no such folder. Create it, or name another.",
        )
    found = Findings(
        machine=probe_machine(),
        devices=probe_devices(quick=options.quick),
        compilation=probe_compilation(quick=options.quick),
        workers=probe_workers(),
        disk=probe_disk(folder, quick=options.quick),
        backends=distributed_backends(),
        extras=installed_extras(),
    )
    if options.json:
        print_json({**asdict(found), "advice": list(advise(found))})
    else:
        for title, text in _rows(found):
            print(f"{styled(f'{title:<9}', BOLD)}  {printable(text)}")
        print(styled("\nadvice", BOLD))
        for line in advise(found):
            print(printable(f"  - {line}"))
    return OK if found.disk.problem is None else FOUND


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
class MeasuredDevice:
    """A device, and GFLOP/s of its matrix products by precision; None if it has not got it."""

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


@dataclass(frozen=True, slots=True)
class Workers:
    """Limits for worker processes that load data."""

    start_method: str
    shared_memory: int | None  # bytes free in /dev/shm
    open_files: int


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


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of all probes."""

    machine: Machine
    devices: Sequence[MeasuredDevice]
    compilation: Compilation
    workers: Workers
    disk: Disk
    backends: Sequence[str]
    extras: dict[str, dict[str, str | None]]


def probe_machine() -> Machine:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = None
    return Machine(
        python=platform.python_version(),
        loopwright=__version__,
        torch=torch.__version__,
        platform=platform.platform(),
        cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        threads=torch.get_num_threads(),
        memory=memory,
    )


def usable_cpus(quota_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The number of processors that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = Path(quota_file).read_text().split()
        return max(min(allowed, int(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return allowed


def probe_devices(*, quick: bool) -> list[MeasuredDevice]:
    """The processor, and every accelerator."""
    model = platform.processor() or platform.machine()
    speeds = measure_speeds(torch.device("cpu"), 256 if quick else 512)
    found = [MeasuredDevice("cpu", model, None, speeds)]
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        facts = torch.cuda.get_device_properties(device)
        speeds = measure_speeds(device, 2048)
        found.append(MeasuredDevice(str(device), facts.name, facts.total_memory, speeds))
    if torch.backends.mps.is_available():
        found.append(MeasuredDevice("mps", model, None, measure_speeds(torch.device("mps"), 2048)))
    return found


def measure_speeds(device: torch.device, size: int) -> dict[str, float | None]:
    """GFLOP/s of matrix products in each precision that a trainer may use."""
    return {name: _speed(device, dtype, size) for name, dtype in PRECISIONS.items()}


def _speed(device: torch.device, dtype: torch.dtype, size: int) -> float | None:
    """The best of a few tries, since anything else on the machine only makes it slower."""
    try:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = min(_product(left, right) for _ in range(4))
    except RuntimeError:  # raised by torch for a dtype that the device does not support
        return None
    return 2 * size**3 / max(seconds, 1e-9) / 1e9


def _product(left: Tensor, right: Tensor) -> float:
    """Seconds of a product; reading one value waits until the device has computed all."""
    left[0, 0].item()
    start = time.perf_counter()
    torch.mm(left, right)[0, 0].item()
    return time.perf_counter() - start


def probe_compilation(*, quick: bool) -> Compilation:
    """Compile a small function in a process of its own, which may crash or hang."""
    found = (shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    compiler = next(filter(None, found), None)
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
        )
    except subprocess.TimeoutExpired:
        problem = f"it took more than {SECONDS_FOR_COMPILE} s"
        return Compilation(compiler, False, None, problem)
    seconds = time.perf_counter() - start
    if done.returncode == 0:
        return Compilation(compiler, True, seconds)
    lines = done.stderr.split("\n") if done.stderr.strip() else [f"exit code {done.returncode}"]
    return Compilation(compiler, False, seconds, [line for line in lines if line][-1][:300])


def probe_workers() -> Workers:
    free = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    methods = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_start_method(allow_none=True) or methods[0]
    return Workers(method, free, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


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
    kind = file_system_of(folder)
    return Disk(str(folder), kind, free, speed, seconds, _copy_speed(size), problem)


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


def distributed_backends() -> list[str]:
    """The backends of `torch.distributed` that are available."""
    names = ("gloo", "nccl", "xccl", "ucc", "mpi") if dist.is_available() else ()
    return [name for name in names if dist.is_backend_available(name)]


def installed_extras() -> dict[str, dict[str, str | None]]:
    """The versions of the packages of each extra; None for a missing package."""
    try:
        required = metadata.requires("loopwright") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in required:
        match = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)", line)
        if match and match[2] != "dev":
            found.setdefault(match[2], {})[match[1]] = _version(match[1])
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _rows(found: Findings) -> Iterator[tuple[str, str]]:
    """The findings as titles and texts."""
    machine = found.machine
    workers = found.workers
    memory = "" if machine.memory is None else f", {size(machine.memory)} of memory"
    shared = "-" if workers.shared_memory is None else size(workers.shared_memory)
    cpus = f"{machine.cpus} processors ({machine.usable_cpus} usable)"
    versions = f"loopwright {machine.loopwright}, torch {machine.torch}, python {machine.python}"
    yield "versions", versions
    yield "machine", f"{machine.platform}, {cpus}{memory}"
    for device in found.devices:
        yield device.name, _device_text(device)
    yield "compile", _compilation_text(found.compilation)
    limits = f"{shared} of shared memory free, {workers.open_files} open files"
    yield "workers", f"started by {workers.start_method}, {limits}"
    yield from _disk_rows(found.disk)
    backends = ", ".join(found.backends)
    yield "processes", f"torch.distributed with {backends}" if backends else "no torch.distributed"
    title = "extras"
    for extra, packages in found.extras.items():
        missing = [name for name, version in packages.items() if version is None]
        text = ", ".join(f"{name} {version}" for name, version in packages.items())
        if missing:
            text = f"no {', '.join(missing)}: pip install 'loopwright[{extra}]'"
        yield title, f"{extra}: {text}"
        title = ""


def _device_text(device: MeasuredDevice) -> str:
    base = device.speeds["fp32"]
    speeds = []
    for name, speed in device.speeds.items():
        ratio = "" if name == "fp32" or speed is None or not base else f" ({speed / base:.2g}x)"
        speeds.append(f"{name} -" if speed is None else f"{name} {speed:.3g} GFLOP/s{ratio}")
    memory = "" if device.memory is None else f", {size(device.memory)}"
    return f"{device.model}{memory}; {', '.join(speeds)}"


def _compilation_text(compilation: Compilation) -> str:
    compiler = compilation.compiler or "no C++ compiler"
    if compilation.works is None:
        return f"not tried (--quick); {compiler}"
    if compilation.works and compilation.seconds is not None:
        return f"torch.compile works in {duration(round(compilation.seconds))}; {compiler}"
    return f"does not work: {compilation.problem}"


def _disk_rows(disk: Disk) -> Iterator[tuple[str, str]]:
    place = f"{disk.folder} ({disk.file_system})" if disk.file_system else disk.folder
    if disk.write_speed is None or disk.sync_seconds is None:
        yield "disk", f"{place}: {disk.problem}"
        return
    speed = f"{size(round(disk.write_speed))}/s written and synced"
    small = f"{duration(disk.sync_seconds)} for a small file"
    yield "disk", f"{place}: {size(disk.free)} free, {speed}, {small}"
    for name, num_bytes in (("10 M", TYPICAL // 10), ("100 M", TYPICAL), ("1 G", TYPICAL * 10)):
        model = f"checkpoint of {name} parameters with Adam ({size(num_bytes)})"
        stall = duration(num_bytes / disk.copy_speed)
        later = duration(num_bytes / disk.write_speed)
        yield "", f"{model}: training waits {stall}; it is on disk {later} later"


def advise(found: Findings) -> Iterator[str]:
    """Lines of advice, the most important first."""
    yield from _on_disk(found.disk)
    yield from _on_devices(found)
    if found.compilation.compiler is None:
        yield "torch.compile needs a C++ compiler on the CPU, and there is none: install g++."
    elif found.compilation.works is False:
        yield f"torch.compile does not work here ({found.compilation.problem}): leave it off."
    yield from _on_workers(found)


def _on_disk(disk: Disk) -> Iterator[str]:
    if disk.problem is not None:
        yield f"{disk.folder} is not writable ({disk.problem}): choose another `run_dir`."
        return
    if disk.free < LITTLE_SPACE:
        yield f"Only {size(disk.free)} is free in {disk.folder}: keep fewer checkpoints."
    if disk.write_speed is not None and disk.write_speed < SLOW_DISK:
        seconds = TYPICAL / disk.write_speed
        minutes = max(round(seconds / 60) * 10, 5)
        yield (
            f"This disk is slow: writing 100 M parameters takes {duration(seconds)}. Save by time: "
            f"Checkpoints(every_epochs=None, every_minutes={minutes})."
        )
    if disk.file_system in NETWORK:
        yield (
            f"{disk.folder} is on a network file system ({disk.file_system}): metrics are written "
            "with SQLite, which needs its locks to work. Prefer a local disk for runs."
        )
    if disk.file_system in ("tmpfs", "ramfs"):
        yield f"{disk.folder} is in memory ({disk.file_system}): a restart removes the runs there."


def _on_devices(found: Findings) -> Iterator[str]:
    threads = found.machine.threads
    usable = found.machine.usable_cpus
    if all(device.name == "cpu" for device in found.devices):
        yield f"There is no accelerator: training runs on the CPU, with {counted(threads, 'thread')}."
    for device in found.devices:
        speeds = {name: speed for name, speed in device.speeds.items() if speed is not None}
        fastest = max(speeds.values())
        base = speeds["fp32"]
        if fastest < 1.2 * base:
            yield f"On {device.name} use precision='fp32': no other precision is faster."
            continue
        # bf16 needs no loss scaling: it is worth a fifth of the speed
        safe = "bf16" if speeds.get("bf16", 0.0) > 0.8 * fastest else "fp16"
        gain = f"{speeds[safe] / base:.1f} times as fast"
        yield f"On {device.name} precision={safe!r} makes large matrix products {gain}."
    if threads > usable:
        yield (
            f"torch uses {threads} threads, but only {usable} processors may be used: "
            f"set OMP_NUM_THREADS={usable}."
        )


def _on_workers(found: Findings) -> Iterator[str]:
    most = found.machine.usable_cpus - 1
    shared = found.workers.shared_memory
    if most <= 0:
        yield "One processor: leave num_workers at 0."
    else:
        yield f"Use up to num_workers={most} for slow data; data in tensors needs none."
    if most > 0 and shared is not None and shared < LITTLE_SHM:
        yield (
            f"Only {size(shared)} of shared memory is free, and workers pass batches through "
            "it: start the container with --shm-size=2g, or use num_workers=0."
        )
    if found.workers.open_files < FEW_FILES:
        yield f"Only {found.workers.open_files} files may be open at once: ulimit -n 4096."

"""`loopwright doctor`: measure this machine, and give advice."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .._version import __version__
from ..errors import ConfigurationError
from ..text import duration, size
from .output import BOLD, FOUND, OK, print_json, printable, say, styled

LITTLE_SHM = 1 << 30
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


Facts = dict[str, Any]


def doctor_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute()
    if not folder.is_dir():
        raise ConfigurationError(
            "no-folder",
            f"--folder {options.folder}: there is no such folder. Create it, or name another.",
        )
    quick = options.quick
    found: Facts = {
        "machine": probe_machine(),
        "devices": probe_devices(quick=quick),
        "compilation": probe_compilation(quick=quick),
        "disk": probe_disk(folder, quick=quick),
        "backends": distributed_backends(),
        "extras": installed_extras(),
    }
    if options.json:
        print_json({**found, "advice": list(advise(found))})
    else:
        for title, text in _rows(found):
            print(f"{styled(f'{title:<9}', BOLD)}  {printable(text)}")
        print(styled("\nadvice", BOLD))
        for line in advise(found):
            say(f"  - {line}")
    return OK if found["disk"]["problem"] is None else FOUND


def probe_machine() -> Facts:
    """Versions, processors and memory."""
    return {
        "python": platform.python_version(),
        "loopwright": __version__,
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count() or 1,
        "usable_cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shared_memory": shutil.disk_usage(SHM).free if SHM.is_dir() else None,
    }


def usable_cpus(quota_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The processors that this process may use: its affinity and the quota of its container."""
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = Path(quota_file).read_text().split()
        return max(min(allowed, int(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no such file, or the quota is "max"
        return allowed


def probe_devices(*, quick: bool) -> list[Facts]:
    """The processor and every accelerator, with GFLOP/s of matrix products by precision."""
    processor = platform.processor() or platform.machine()
    found: list[Facts] = [{"name": "cpu", "model": processor, "memory": None}]
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        name = f"cuda:{number}"
        found.append({"name": name, "model": facts.name, "memory": facts.total_memory})
    if torch.backends.mps.is_available():
        found.append({"name": "mps", "model": processor, "memory": None})
    for device in found:
        width = 2048
        if device["name"] == "cpu":
            width = 256 if quick else 512
        device["speeds"] = {
            name: _speed(device["name"], dtype, width) for name, dtype in PRECISIONS.items()
        }
    return found


def _speed(device: str, dtype: torch.dtype, width: int) -> float | None:
    """The best of a few tries, since anything else on the machine only makes it slower; None where
    the device lacks the precision."""
    tries = []
    try:
        left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
        for _ in range(4):
            left[0, 0].item()  # reading one value waits until the device has computed all
            start = time.perf_counter()
            torch.mm(left, right)[0, 0].item()
            tries.append(time.perf_counter() - start)
    except RuntimeError:  # raised by torch for a dtype that the device does not support
        return None
    return 2 * width**3 / max(min(tries), 1e-9) / 1e9


def probe_compilation(*, quick: bool) -> Facts:
    """Compile a small function in a process of its own, which may crash or hang.

    `works` is None where it was not tried.
    """
    found = (shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    compiler = next(filter(None, found), None)
    facts: Facts = {"compiler": compiler, "works": None, "seconds": None, "problem": None}
    if quick:
        return facts
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
        return facts | {"works": False, "problem": problem}
    facts |= {"works": done.returncode == 0, "seconds": time.perf_counter() - start}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        facts["problem"] = lines[-1][:300]
    return facts


def probe_disk(folder: Path, *, quick: bool) -> Facts:
    """Write and sync a file in the folder, and remove it; speeds in bytes per second.

    `copy_speed` is that of memory, which a step waits for when a checkpoint is saved.
    """
    num_bytes = (4 if quick else 64) << 20
    speed = None
    problem = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".loopwright-doctor-") as file:
            data = os.urandom(1 << 20) * (num_bytes >> 20)
            start = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            speed = num_bytes / max(time.perf_counter() - start, 1e-9)
    except OSError as error:
        problem = str(error)
    source = torch.ones(num_bytes // 4)
    target = source.clone()
    start = time.perf_counter()
    target.copy_(source)
    return {
        "folder": str(folder),
        "free": shutil.disk_usage(folder).free,
        "write_speed": speed,
        "copy_speed": num_bytes / max(time.perf_counter() - start, 1e-9),
        "problem": problem,
    }


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
            versions = found.setdefault(match[2], {})
            versions[match[1]] = None
            with suppress(metadata.PackageNotFoundError):
                versions[match[1]] = metadata.version(match[1])
    return found


def _rows(found: Facts) -> Iterator[tuple[str, str]]:
    """The findings as titles and texts."""
    machine = found["machine"]
    packages = (f"{name} {machine[name]}" for name in ("loopwright", "torch", "python"))
    yield "versions", ", ".join(packages)
    processors = f"{machine['cpus']} processors ({machine['usable_cpus']} usable)"
    text = f"{machine['platform']}, {processors}, {size(machine['memory'])} of memory"
    if machine["shared_memory"] is not None:
        text += f", {size(machine['shared_memory'])} of shared memory free"
    yield "machine", text
    for device in found["devices"]:
        speeds = [
            f"{name} -" if speed is None else f"{name} {speed:.3g} GFLOP/s"
            for name, speed in device["speeds"].items()
        ]
        memory = "" if device["memory"] is None else f", {size(device['memory'])}"
        yield device["name"], f"{device['model']}{memory}; {', '.join(speeds)}"
    compilation = found["compilation"]
    compiler = compilation["compiler"] or "no C++ compiler"
    if compilation["works"] is None:
        yield "compile", f"not tried (--quick); {compiler}"
    elif compilation["works"]:
        seconds = duration(round(compilation["seconds"]))
        yield "compile", f"torch.compile works in {seconds}; {compiler}"
    else:
        yield "compile", f"does not work: {compilation['problem']}"
    disk = found["disk"]
    if disk["problem"] is not None:
        yield "disk", f"{disk['folder']}: {disk['problem']}"
    else:
        speed = f"{size(round(disk['write_speed']))}/s written and synced"
        yield "disk", f"{disk['folder']}: {size(disk['free'])} free, {speed}"
        stall = duration(TYPICAL / disk["copy_speed"])
        later = duration(TYPICAL / disk["write_speed"])
        model = f"checkpoint of 100 M parameters with Adam ({size(TYPICAL)})"
        yield "", f"{model}: training waits {stall}; it is on disk {later} later"
    backends = ", ".join(found["backends"])
    yield "processes", f"torch.distributed with {backends}" if backends else "no torch.distributed"
    for extra, packages in found["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        text = ", ".join(f"{name} {version}" for name, version in packages.items())
        if missing:
            text = f"no {', '.join(missing)}: pip install 'loopwright[{extra}]'"
        yield "extras", f"{extra}: {text}"


def advise(found: Facts) -> Iterator[str]:
    """Lines of advice, the most important first."""
    disk = found["disk"]
    machine = found["machine"]
    compilation = found["compilation"]
    if disk["problem"] is not None:
        yield f"{disk['folder']} is not writable ({disk['problem']}): choose another `run_dir`."
    elif disk["write_speed"] < SLOW_DISK:
        seconds = TYPICAL / disk["write_speed"]
        minutes = max(round(seconds / 60) * 10, 5)
        yield (
            f"This disk is slow: writing 100 M parameters takes {duration(seconds)}. Save by time: "
            f"Checkpoints(every_epochs=None, every_minutes={minutes})."
        )
    for device in found["devices"]:
        yield f"On {device['name']} {_precision(device['speeds'])}."
    usable = machine["usable_cpus"]
    if machine["threads"] > usable:
        yield (
            f"torch uses {machine['threads']} threads, but only {usable} processors may be used: "
            f"set OMP_NUM_THREADS={usable}."
        )
    if compilation["compiler"] is None:
        yield "torch.compile needs a C++ compiler on the CPU, and there is none: install g++."
    elif compilation["works"] is False:
        yield f"torch.compile does not work here ({compilation['problem']}): leave it off."
    if usable == 1:
        yield "One processor: leave num_workers at 0."
        return
    yield f"Use up to num_workers={usable - 1} for slow data; data in tensors needs none."
    shared = machine["shared_memory"]
    if shared is not None and shared < LITTLE_SHM:
        yield (
            f"Only {size(shared)} of shared memory is free, and workers pass batches through "
            "it: start the container with --shm-size=2g, or use num_workers=0."
        )


def _precision(found: dict[str, float | None]) -> str:
    """The precision to use, by the speeds of a device."""
    speeds = {name: speed for name, speed in found.items() if speed is not None}
    fastest = max(speeds.values())
    if fastest < 1.2 * speeds["fp32"]:
        return "use precision='fp32': no other precision is faster"
    # bf16 needs no loss scaling: it is worth a fifth of the speed
    safe = "bf16" if speeds.get("bf16", 0.0) > 0.8 * fastest else "fp16"
    gain = f"{speeds[safe] / speeds['fp32']:.1f} times as fast"
    return f"precision={safe!r} makes large matrix products {gain}"

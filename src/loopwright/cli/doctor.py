"""`loopwright doctor`: measure this machine, and give advice."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..metrics.progress import counted
from .exits import FOUND, OK
from .output import BOLD, print_json, printable, size_text, styled

if TYPE_CHECKING:
    from .doctor_probes import Compilation, Device, Disk, Machine, Workers

# bytes with Adam, in float32
SIZES = {
    "10 M": 120_000_000,
    "100 M": 1_200_000_000,
    "1 G": 12_000_000_000,
}
NETWORK = (
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
)
LITTLE_SHM = 1 << 30
LITTLE_SPACE = 5 << 30
FEW_FILES = 1024
SLOW_DISK = 50e6
TYPICAL = 1_200_000_000  # bytes: 100 M parameters with Adam


def doctor_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute()
    if not folder.is_dir():
        from ..errors import ConfigurationError

        raise ConfigurationError(
            f"--folder {options.folder}: there is no such folder. Create it, or name another."
        )

    found = examine(folder, quick=options.quick)
    advice = advise(found)
    if options.json:
        print_json({**asdict(found), "advice": advice})
    else:
        _print_findings(found)
        print(styled("\nadvice", BOLD))
        for line in advice:
            print(printable(f"  - {line}"))
    return OK if found.disk.problem is None else FOUND


def examine(folder: Path, *, quick: bool) -> Findings:
    """Run all probes."""
    from . import doctor_probes as probes
    from .doctor_probes import probe_disk, probe_workers

    return Findings(
        machine=probes.probe_machine(),
        devices=probes.probe_devices(quick=quick),
        compilation=probes.probe_compilation(quick=quick),
        workers=probe_workers(),
        disk=probe_disk(folder, quick=quick),
        backends=probes.distributed_backends(),
        extras=probes.installed_extras(),
    )


def _print_findings(found: Findings) -> None:
    machine = found.machine
    workers = found.workers
    memory = "" if machine.memory is None else f", {size_text(machine.memory)} of memory"
    shared = "-" if workers.shared_memory is None else size_text(workers.shared_memory)
    _print_line(
        "versions",
        f"loopwright {machine.loopwright}, torch {machine.torch}, python {machine.python}",
    )
    _print_line(
        "machine",
        f"{machine.platform}, {machine.cpus} processors ({machine.usable_cpus} usable){memory}",
    )
    for device in found.devices:
        _print_line(device.name, _device_text(device))
    _print_line("compile", _compilation_text(found.compilation))
    _print_line(
        "workers",
        f"started by {workers.start_method}, {shared} of shared memory free, {workers.open_files} "
        "open files",
    )
    _print_line("disk", _disk_text(found.disk))
    for name, size in SIZES.items():
        _print_line("", _checkpoint_text(found.disk, name, size))
    _print_line(
        "processes",
        f"torch.distributed with {', '.join(found.backends)}"
        if found.backends
        else "torch.distributed is not available",
    )
    for number, (extra, packages) in enumerate(found.extras.items()):
        missing = [name for name, version in packages.items() if version is None]
        has = ", ".join(
            f"{name} {version}" for name, version in packages.items() if version is not None
        )
        text = (
            f"{extra}: {has}"
            if not missing
            else f"{extra}: no {', '.join(missing)}: pip install 'loopwright[{extra}]'"
        )
        _print_line("extras" if number == 0 else "", text)


def _print_line(title: str, text: str) -> None:
    print(f"{styled(f'{title:<9}', BOLD)}  {printable(text)}")


def _device_text(device: Device) -> str:
    base = device.speeds.get("fp32")
    speeds = []
    for name, speed in device.speeds.items():
        ratio = "" if name == "fp32" or speed is None or not base else f" ({speed / base:.2g}x)"
        speeds.append(f"{name} -" if speed is None else f"{name} {speed:.3g} GFLOP/s{ratio}")
    memory = "" if device.memory is None else f", {size_text(device.memory)}"
    return f"{device.model}{memory}; {', '.join(speeds)}"


def _compilation_text(compilation: Compilation) -> str:
    compiler = compilation.compiler or "no C++ compiler"
    if compilation.works is None:
        return f"not tried (--quick); {compiler}"
    took = f" in {compilation.seconds:.0f} s" if compilation.seconds is not None else ""
    return (
        f"torch.compile works{took}; {compiler}"
        if compilation.works
        else f"does not work: {compilation.problem}"
    )


def _disk_text(disk: Disk) -> str:
    kind = f" ({disk.file_system})" if disk.file_system else ""
    if disk.write_speed is None or disk.sync_seconds is None:
        return f"{disk.folder}{kind}: {disk.problem}"
    speed = (
        f"{size_text(round(disk.write_speed))}/s written and synced, "
        f"{disk.sync_seconds * 1000:.2g} ms for a small file"
    )
    return f"{disk.folder}{kind}: {size_text(disk.free)} free, {speed}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _checkpoint_text(disk: Disk, name: str, size: int) -> str:
    written = disk.write_seconds(size)
    behind = "" if written is None else f"; it is on disk {_seconds(written)} later"
    stall = disk.stall_seconds(size)
    return (
        f"checkpoint of {name} parameters with Adam ({size_text(size)}): training waits "
        f"{_seconds(stall)}{behind}"
    )


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of all probes."""

    machine: Machine
    devices: Sequence[Device]
    compilation: Compilation
    workers: Workers
    disk: Disk
    backends: Sequence[str]
    extras: dict[str, dict[str, str | None]]


def advise(found: Findings) -> list[str]:
    """Lines of advice, the most important first."""
    parts = (
        _on_disk(found.disk),
        _on_devices(found),
        _on_compilation(found.compilation),
        _on_workers(found),
    )
    return [line for part in parts for line in part]


def _on_disk(disk: Disk) -> Iterator[str]:
    if disk.problem is not None:
        yield (
            f"{disk.folder} is not writable ({disk.problem}): choose another folder with `run_dir`."
        )
        return
    if disk.free < LITTLE_SPACE:
        yield (
            f"Only {size_text(disk.free)} is free in {disk.folder}: keep fewer checkpoints, "
            "or use another folder."
        )
    if disk.write_speed is not None and disk.write_speed < SLOW_DISK:
        seconds = TYPICAL / disk.write_speed
        yield (
            f"This disk is slow: writing 100 M parameters takes {seconds:.0f} s. Save by time: "
            f"Checkpoints(every_epochs=None, every_minutes={max(round(seconds / 60) * 10, 5)})."
        )
    if disk.file_system in NETWORK:
        yield (
            f"{disk.folder} is on a network file system ({disk.file_system}): metrics are written "
            "with SQLite, which needs its locks to work. Prefer a local disk for runs."
        )
    if disk.file_system in ("tmpfs", "ramfs"):
        yield (
            f"{disk.folder} is in memory ({disk.file_system}): runs there do not survive a "
            "restart of the machine."
        )


def _on_devices(found: Findings) -> Iterator[str]:
    if all(device.name == "cpu" for device in found.devices):
        yield (
            "There is no accelerator: training runs on the CPU, with "
            f"{counted(found.machine.threads, 'thread')}."
        )
    for device in found.devices:
        speeds = {name: speed for name, speed in device.speeds.items() if speed is not None}
        if "fp32" not in speeds:
            continue
        fastest = max(speeds, key=lambda name: (speeds[name], name == "bf16"))
        gain = speeds[fastest] / speeds["fp32"]
        if fastest == "fp32" or gain < 1.2:
            yield (
                f"On {device.name} use precision='fp32': no other precision is faster for "
                "large matrix products."
            )
        else:
            safe = "bf16" if speeds.get("bf16", 0.0) > 0.8 * speeds[fastest] else fastest
            factor = speeds[safe] / speeds["fp32"]
            yield (
                f"On {device.name} precision={safe!r} makes large matrix products "
                f"{factor:.1f} times as fast."
            )
    if found.machine.threads > found.machine.usable_cpus:
        yield (
            f"torch uses {found.machine.threads} threads, but only {found.machine.usable_cpus} "
            f"processors may be used: set OMP_NUM_THREADS={found.machine.usable_cpus}."
        )


def _on_compilation(compilation: Compilation) -> Iterator[str]:
    if compilation.compiler is None:
        yield (
            "There is no C++ compiler, which torch.compile needs on the CPU: install g++ or "
            "clang++."
        )
    elif compilation.works is False:
        yield f"torch.compile does not work here ({compilation.problem}): leave it off."


def _on_workers(found: Findings) -> Iterator[str]:
    most = max(found.machine.usable_cpus - 1, 0)
    if most == 0:
        yield "One processor: leave num_workers at 0."
    else:
        yield (
            f"Use up to num_workers={most} for data that is slow to load; data in tensors "
            "needs none."
        )
    shared = found.workers.shared_memory
    if most and shared is not None and shared < LITTLE_SHM:
        yield (
            f"Only {size_text(shared)} of shared memory is free, and workers pass batches through "
            "it: start the container with --shm-size=2g, or use num_workers=0."
        )
    if found.workers.open_files < FEW_FILES:
        yield (
            f"Only {found.workers.open_files} files may be open at once: raise the limit "
            "(ulimit -n 4096)."
        )

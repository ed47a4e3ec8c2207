"""What follows from what `loopwright doctor` found: one line for each thing worth doing or knowing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .doctor_disk import Disk, Workers
from .doctor_probes import Compilation, Device, Machine
from .output import size_text

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "glusterfs")
LITTLE_SHM, LITTLE_SPACE = 1 << 30, 5 << 30
FEW_FILES = 1024
SLOW_DISK = 50e6
TYPICAL = 1_200_000_000  # bytes: 100 M parameters with Adam


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was found out."""

    machine: Machine
    devices: Sequence[Device]
    compilation: Compilation
    workers: Workers
    disk: Disk
    backends: Sequence[str]
    extras: dict[str, dict[str, str | None]]


def advise(found: Findings) -> list[str]:
    """Lines of advice, the most important first."""
    parts = (_on_disk(found.disk), _on_devices(found), _on_compilation(found.compilation), _on_workers(found))
    return [line for part in parts for line in part]


def _on_disk(disk: Disk) -> Iterator[str]:
    if disk.problem is not None:
        yield f"Nothing can be written to {disk.folder} ({disk.problem}): give runs another folder with `run_dir`."
        return
    if disk.free < LITTLE_SPACE:
        yield f"Only {size_text(disk.free)} are free in {disk.folder}: keep few checkpoints, or use another folder."
    if disk.write_speed is not None and disk.write_speed < SLOW_DISK:
        seconds = TYPICAL / disk.write_speed
        yield (
            f"This disk is slow: 100 M parameters take {seconds:.0f} s to be written. Save by time, as "
            f"Checkpoints(every_epochs=None, every_minutes={max(round(seconds / 60) * 10, 5)})."
        )
    if disk.file_system in NETWORK:
        yield (
            f"{disk.folder} is on a network file system ({disk.file_system}): metrics are written with SQLite, which "
            "needs its locks to work. Prefer a local disk for runs."
        )
    if disk.file_system in ("tmpfs", "ramfs"):
        yield f"{disk.folder} is in memory ({disk.file_system}): runs there do not survive a restart of the machine."


def _on_devices(found: Findings) -> Iterator[str]:
    if all(device.name == "cpu" for device in found.devices):
        yield f"There is no accelerator: training computes on {found.machine.threads} threads of the processor."
    for device in found.devices:
        speeds = {name: speed for name, speed in device.speeds.items() if speed is not None}
        if "fp32" not in speeds:
            continue
        fastest = max(speeds, key=lambda name: (speeds[name], name == "bf16"))
        gain = speeds[fastest] / speeds["fp32"]
        if fastest == "fp32" or gain < 1.2:
            yield f"On {device.name} use precision='fp32': no other is faster in large matrix products."
        else:
            safe = "bf16" if speeds.get("bf16", 0.0) > 0.8 * speeds[fastest] else fastest
            factor = speeds[safe] / speeds["fp32"]
            yield f"On {device.name} precision={safe!r} makes large matrix products {factor:.1f} times as fast."
    if found.machine.threads > found.machine.usable_cpus:
        yield (
            f"torch uses {found.machine.threads} threads, but only {found.machine.usable_cpus} processors may be used: "
            f"set OMP_NUM_THREADS={found.machine.usable_cpus}."
        )


def _on_compilation(compilation: Compilation) -> Iterator[str]:
    if compilation.compiler is None:
        yield "There is no C++ compiler, which torch.compile needs on the CPU: install g++ or clang++."
    elif compilation.works is False:
        yield f"torch.compile does not work here ({compilation.problem}): leave it off."


def _on_workers(found: Findings) -> Iterator[str]:
    most = max(found.machine.usable_cpus - 1, 0)
    if most == 0:
        yield "One processor: leave num_workers at 0."
    else:
        yield f"Up to num_workers={most} makes sense for data that is slow to load; data in tensors needs none."
    shared = found.workers.shared_memory
    if most and shared is not None and shared < LITTLE_SHM:
        yield (
            f"Only {size_text(shared)} of shared memory are free, and workers pass batches through it: start the "
            "container with --shm-size=2g, or use num_workers=0."
        )
    if found.workers.open_files < FEW_FILES:
        yield f"Only {found.workers.open_files} files may be open at once: raise that (ulimit -n 4096) for workers."

"""`loopwright doctor`: what this machine can do, and what to make of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adding import add_command
from .exits import FOUND, OK
from .output import BOLD, print_json, printable, size_text, styled

if TYPE_CHECKING:
    from .doctor_advice import Findings
    from .doctor_disk import Disk
    from .doctor_probes import Compilation, Device

MORE = """\
Versions, devices, the speed of each precision, whether torch.compile works, what workers have to live with, how fast
the current folder is and what a checkpoint costs there, distributed backends, and the optional packages; then advice.
Takes about 15 seconds, most of it for compiling. Exit code 1: nothing can be written to the folder."""
EXAMPLE = """\
doctor
doctor --quick --folder /scratch/runs"""
SIZES = {"10 M": 120_000_000, "100 M": 1_200_000_000, "1 G": 12_000_000_000}  # bytes with Adam, in float32


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Show what this machine can do."
    parser = add_command(parsers, common, "doctor", run=doctor_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("--quick", action="store_true", help="do not try torch.compile, and measure less")
    parser.add_argument("--folder", metavar="DIR", default=".", help="where runs would be written (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def doctor_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute()
    if not folder.is_dir():
        from ..errors import ConfigurationError

        raise ConfigurationError(f"--folder {options.folder} is no folder: create it, or name another.")
    from .doctor_advice import advise

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
    """Try everything out."""
    from . import doctor_probes as probes
    from .doctor_advice import Findings
    from .doctor_disk import probe_disk, probe_workers

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
    machine, workers = found.machine, found.workers
    memory = "" if machine.memory is None else f", {size_text(machine.memory)} of memory"
    shared = "-" if workers.shared_memory is None else size_text(workers.shared_memory)
    _say("versions", f"loopwright {machine.loopwright}, torch {machine.torch}, python {machine.python}")
    _say("machine", f"{machine.platform}, {machine.cpus} processors ({machine.usable_cpus} usable){memory}")
    for device in found.devices:
        _say(device.name, _device_text(device))
    _say("compile", _compilation_text(found.compilation))
    _say("workers", f"start by {workers.start_method}, {shared} of shared memory free, {workers.open_files} open files")
    _say("disk", _disk_text(found.disk))
    for name, size in SIZES.items():
        _say("", _checkpoint_text(found.disk, name, size))
    _say("processes", f"torch.distributed with {', '.join(found.backends)}" if found.backends else "one only")
    for number, (extra, packages) in enumerate(found.extras.items()):
        missing = [name for name, version in packages.items() if version is None]
        has = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
        text = (
            f"{extra}: {has}" if not missing else f"{extra}: no {', '.join(missing)}: pip install 'loopwright[{extra}]'"
        )
        _say("extras" if number == 0 else "", text)


def _say(title: str, text: str) -> None:
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
    return f"torch.compile works{took}; {compiler}" if compilation.works else f"does not work: {compilation.problem}"


def _disk_text(disk: Disk) -> str:
    kind = f" ({disk.file_system})" if disk.file_system else ""
    if disk.write_speed is None or disk.sync_seconds is None:
        return f"{disk.folder}{kind}: {disk.problem}"
    speed = (
        f"{size_text(round(disk.write_speed))}/s written and synced, {disk.sync_seconds * 1000:.2g} ms for a small file"
    )
    return f"{disk.folder}{kind}: {size_text(disk.free)} free, {speed}"


def _checkpoint_text(disk: Disk, name: str, size: int) -> str:
    written = disk.write_seconds(size)
    behind = "" if written is None else f", and {written:.2g} s behind it until it is on disk"
    stall = disk.stall_seconds(size)
    return f"checkpoint of {name} parameters with Adam ({size_text(size)}): a step waits {stall:.2g} s{behind}"

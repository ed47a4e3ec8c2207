"""`loopwright doctor`: what this machine has, and what to mind on it."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .._version import __version__
from ..errors import ConfigurationError
from ..profiling.profile import num_cores
from ..text import size
from .output import BOLD, FOUND, OK, print_json, printable, say, styled

LITTLE_SHM = 1 << 30
SHM = Path("/dev/shm")

Facts = dict[str, Any]


def doctor_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder).absolute()
    if not folder.is_dir():
        raise ConfigurationError(
            "no-folder",
            f"--folder {options.folder}: there is no such folder. Create it, or name another.",
        )
    found = {**probe_machine(), **probe_folder(folder), "extras": installed_extras()}
    advice = list(advise(found))
    if options.json:
        print_json({**found, "advice": advice})
    else:
        for title, text in _rows(found):
            print(f"{styled(f'{title:<9}', BOLD)}  {printable(text)}")
        for line in advice:
            say(f"-> {line}")
    return OK if found["problem"] is None else FOUND


def probe_machine() -> Facts:
    """Versions, processors, memory and accelerators."""
    devices = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        devices.append(f"cuda:{number} {facts.name}, {size(facts.total_memory)}")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "loopwright": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": devices,
        "cpus": os.cpu_count() or 1,
        "usable_cpus": num_cores(),
        "threads": torch.get_num_threads(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shared_memory": shutil.disk_usage(SHM).free if SHM.is_dir() else None,
        "compiler": shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
        "backends": distributed_backends(),
    }


def probe_folder(folder: Path) -> Facts:
    """The free bytes of a folder, and why it cannot be written, if it cannot."""
    problem = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".loopwright-doctor-"):
            pass
    except OSError as error:
        problem = str(error)
    return {"folder": str(folder), "free": shutil.disk_usage(folder).free, "problem": problem}


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
    packages = (f"{name} {found[name]}" for name in ("loopwright", "torch", "python"))
    yield "versions", ", ".join(packages)
    processors = f"{found['cpus']} processors ({found['usable_cpus']} usable)"
    threads = f"{found['threads']} threads of torch"
    yield "machine", f"{found['platform']}, {processors}, {threads}, {size(found['memory'])}"
    yield "devices", "; ".join(found["devices"]) or "no accelerator"
    yield "compiler", found["compiler"] or "no C++ compiler"
    yield "folder", f"{found['folder']}: {size(found['free'])} free"
    yield "processes", f"torch.distributed with {', '.join(found['backends']) or 'no backend'}"
    for extra, packages in found["extras"].items():
        missing = [name for name, version in packages.items() if version is None]
        text = ", ".join(f"{name} {version}" for name, version in packages.items())
        if missing:
            text = f"no {', '.join(missing)}: pip install 'loopwright[{extra}]'"
        yield "extras", f"{extra}: {text}"


def advise(found: Facts) -> Iterator[str]:
    """Lines of advice, the most important first."""
    if found["problem"] is not None:
        yield f"{found['folder']} is not writable ({found['problem']}): choose another `run_dir`."
    usable = found["usable_cpus"]
    if found["threads"] > usable:
        yield (
            f"torch uses {found['threads']} threads, but only {usable} processors may be used: "
            f"set OMP_NUM_THREADS={usable}."
        )
    if found["compiler"] is None:
        yield "torch.compile needs a C++ compiler on the CPU, and there is none: install g++."
    shared = found["shared_memory"]
    if shared is not None and shared < LITTLE_SHM:
        yield (
            f"Only {size(shared)} of shared memory is free, and workers pass batches through "
            "it: start the container with --shm-size=2g, or use num_workers=0."
        )

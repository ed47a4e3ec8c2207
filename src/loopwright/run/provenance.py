"""What a run stands on besides its own code: installed packages, the machine, changes that no commit has."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

SECONDS_FOR_DIFF = 5.0
MAX_DIFF_BYTES = 4 << 20


def installed_packages() -> dict[str, str]:
    """Names and versions of what is installed, from the names of its records, which are read in no time."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = sorted(entry.name for entry in os.scandir(folder or "."))
        except OSError:
            continue
        for name in entries:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                found.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))


def describe_platform() -> str:
    """System, release, machine and C library; `platform.platform` says the same and starts a process for it."""
    parts = [platform.system(), platform.release(), platform.machine()]
    if "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}):
        parts.append(f"with-{(os.confstr('CS_GNU_LIBC_VERSION') or 'libc').replace(' ', '')}")
    return "-".join(parts)


def describe_hardware() -> dict[str, Any]:
    """The machine: its name, processor, memory and accelerators."""
    return {
        "host": platform.node(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerators": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def uncommitted_diff(directory: Path) -> bytes | None:
    """What the working tree around a directory has changed since its commit, as a patch; None where nobody knows.

    Files that git does not know yet are named at the end, since a patch has no room for what may be large.
    """
    tracked = _git(directory, "diff", "HEAD", "--no-color", "--no-ext-diff", "--binary")
    if tracked is None:
        return None
    if len(tracked) > MAX_DIFF_BYTES:
        tracked = tracked[:MAX_DIFF_BYTES] + b"\n# cut short: the changes go on\n"
    unknown = _git(directory, "ls-files", "--others", "--exclude-standard") or b""
    lines = [b"# not under version control: " + name for name in unknown.splitlines()[:1000]]
    return tracked + b"".join(line + b"\n" for line in lines)


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", *arguments],
            cwd=directory,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_FOR_DIFF,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None

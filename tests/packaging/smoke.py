"""Installs the wheel in fresh environments, with no extra and with each extra alone, and tries it:
`make smoke`.

The wheel and what it depends on are installed once; an extra is an environment of its own that sees
that one and adds its own packages, so that torch is not unpacked again for each. Installs go
through `constraints.txt`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FEATURES = Path(__file__).with_name("features.py")
NOT_USERS = ("dev", "dist")


def extras() -> list[str]:
    """The extras of `pyproject.toml` that are for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in NOT_USERS]


def run(*command: str | Path, folder: Path) -> None:
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "LOOPWRIGHT_RUN_DIR")
    surroundings = {name: value for name, value in os.environ.items() if name not in hidden}
    surroundings |= {
        "OMP_NUM_THREADS": "1",
        "TRACKIO_DIR": str(folder / "trackio"),
        "HOME": str(folder),
    }
    subprocess.run(list(map(str, command)), cwd=folder, env=surroundings, check=True)


def make_environment(folder: Path, requirement: str, sees: Path | None = None) -> Path:
    """An environment with something installed, which may see the packages of another one; its
    interpreter."""
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    if sees is not None:
        (packages / "base.pth").write_text(f"{sees}\n")
    python = folder / "env" / "bin" / "python"
    options = ("--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
    command = [python, "-m", "pip", "install", *options, requirement]
    subprocess.run(list(map(str, command)), cwd=folder, check=True)
    return python


def try_extra(folder: Path, wheel: Path, extra: str, sees: Path | None) -> Path:
    """Install the wheel with an extra and use all features; where the packages are."""
    started = time.monotonic()
    print(f"{extra or 'no extra'}:", flush=True)
    python = make_environment(
        folder, f"loopwright[{extra}] @ {wheel.as_uri()}" if extra else str(wheel), sees
    )
    with tempfile.TemporaryDirectory(prefix="smoke-") as work:
        run(python, FEATURES, *([extra] if extra else []), folder=Path(work))
    print(f"    {time.monotonic() - started:.0f} s", flush=True)
    return next((folder / "env").glob("lib/python*/site-packages"))


def check_types(folder: Path, sees: Path) -> None:
    """Check a program that uses the installed package: `py.typed` is there, and so are the
    types."""
    print("mypy:", flush=True)
    python = make_environment(folder, "mypy", sees)
    with tempfile.TemporaryDirectory(prefix="smoke-") as work:
        shutil.copy(ROOT / "tests" / "typing" / "consumer.py", work)
        run(python, "-m", "mypy", "--strict", "consumer.py", folder=Path(work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--extra", action="append", choices=extras(), help="only this one (default: each)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the environments are made, and kept for the next time"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smoke-") as name:
        folder, wheel = (options.folder or Path(name)).resolve(), options.wheel.resolve()
        base = try_extra(folder / "base", wheel, "", None)
        check_types(folder / "mypy", base)
        chosen = options.extra or extras()
        for extra in chosen:
            try_extra(folder / extra, wheel, extra, base)
    print(f"{len(chosen) + 2} passed, 0 failed")


if __name__ == "__main__":
    main()

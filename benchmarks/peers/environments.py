"""Makes an environment for each peer, with its packages and no others, under the ignored folder
`.bench`.

    python benchmarks/peers/environments.py [PEER ...] [--pin]

torch is not installed again: there is one folder of links to the torch of the interpreter that runs
this, with numpy and what torch needs. While pip works, an environment sees that folder behind its
own packages, so that pip counts torch as installed and cannot change it; constraints.txt keeps it
from choosing another one. Then each environment gets these links itself: one more folder to search
would slow down libraries that look for packages in every step. An environment whose section of
versions.txt has not changed is left as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench"
VERSIONS = Path(__file__).with_name("versions.txt")
SHARED = FOLDER / "torch"
CAME_WITH_IT = "# came with it"


@dataclass(frozen=True, slots=True)
class Environment:
    """A peer's interpreter, or the reason why there is none."""

    peer: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.peer

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return Path(
            sysconfig.get_path(
                "purelib", vars={"base": str(self.folder), "platbase": str(self.folder)}
            )
        )

    @property
    def state(self) -> dict[str, Any]:
        """What was asked for ("wanted"), and "failed" with the reason where that could not be
        installed."""
        file = self.folder / "state.json"
        return json.loads(file.read_text()) if file.exists() else {}

    @property
    def failure(self) -> str | None:
        return self.state.get("failed") if self.state else "no environment: make bench-peers"

    def save(self, wanted: list[str], failure: str | None) -> None:
        state = {"wanted": wanted} | ({"failed": failure} if failure else {})
        (self.folder / "state.json").write_text(json.dumps(state))

    def packages(self) -> dict[str, str]:
        """Name and version of what was installed besides the shared packages."""
        own = [file for file in self.site_packages.glob("*.dist-info") if not file.is_symlink()]
        found = [Distribution.at(file) for file in own]
        return dict(sorted((one.metadata["Name"], one.version) for one in found))

    def megabytes(self) -> float:
        return megabytes(self.site_packages)


def megabytes(folder: Path) -> float:
    """Size of the files below a folder, without compiled Python and what is only linked."""
    total = 0
    for place, _, names in os.walk(folder):
        if "__pycache__" not in place:
            total += sum((Path(place) / name).lstat().st_size for name in names)
    return total / 1e6


def sections() -> dict[str, list[str]]:
    """The lines below each heading of versions.txt."""
    found: dict[str, list[str]] = {}
    for line in VERSIONS.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            lines = found[heading[1]] = []
        elif line and found:
            lines.append(line)
    found["loopwright"] = [*_own_requirements(), *found["loopwright"]]
    return found


def _own_requirements() -> list[str]:
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


# The packages that all share


def _required(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and those it requires, and so on."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            if "extra ==" not in line:
                _required(re.split(r"[^\w.-]", line)[0].lower(), found)
    return found


def link_torch() -> None:
    """Links to the files of torch, numpy and what these need, and to nothing else."""
    shutil.rmtree(SHARED, ignore_errors=True)
    SHARED.mkdir(parents=True)
    for one in (_required("torch", {}) | _required("numpy", {})).values():
        for top in {file.parts[0] for file in one.files or () if file.parts[0] != ".."}:
            target = Path(str(one.locate_file(top)))
            if target.exists() and top != "__pycache__" and not (SHARED / top).exists():
                (SHARED / top).symlink_to(target)


# One environment each


def make(peer: str, wanted: list[str]) -> None:
    """Install what a section asks for, unless that was done."""
    environment = Environment(peer)
    if environment.state == {"wanted": wanted}:
        return print(f"{peer}: there")
    print(f"{peer}: installing ...", flush=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    venv.create(environment.folder, symlinks=True)
    path_file = environment.site_packages / "torch.pth"
    path_file.write_text(f"{SHARED}\n")
    failure = _install(environment.python, "\n".join(wanted))
    path_file.unlink()
    _link_shared(environment.site_packages)
    environment.save(wanted, failure)
    print(
        f"{peer}: "
        f"{failure or f'{len(environment.packages())} packages, {environment.megabytes():.0f} MB'}"
    )
    return None


def _link_shared(site_packages: Path) -> None:
    """Links to what an environment does not have in a version of its own."""
    own = {file.name.split("-")[0].lower() for file in site_packages.glob("*.dist-info")}
    for shared in SHARED.iterdir():
        link = site_packages / shared.name
        if not link.exists() and shared.name.split("-")[0].lower() not in own:
            link.symlink_to(shared.readlink())


def _install(python: Path, requirements: str) -> str | None:
    """Why pip could not install these, or nothing."""
    file = python.with_name("requirements.txt")
    file.write_text(requirements)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    result = subprocess.run(
        [*pip, "-c", str(ROOT / "constraints.txt"), "-r", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
    return (
        None if result.returncode == 0 else (errors or [f"pip ended with {result.returncode}"])[-1]
    )


# Pinning what came along


def pin() -> None:
    """Write what is installed below what was asked for."""
    lines = [VERSIONS.read_text().split("[", 1)[0].rstrip()]
    for peer, wanted in sections().items():
        asked = wanted[: wanted.index(CAME_WITH_IT)] if CAME_WITH_IT in wanted else wanted
        names = {re.split(r"[^\w.-]", line)[0].lower() for line in asked}
        installed = Environment(peer).packages()
        more = [
            f"{name}=={version}" for name, version in installed.items() if name.lower() not in names
        ]
        asked = [] if peer == "loopwright" else asked
        lines += ["", f"[{peer}]", *asked, CAME_WITH_IT, *more]
    VERSIONS.write_text("\n".join(lines) + "\n")
    for peer, wanted in sections().items():
        Environment(peer).save(wanted, Environment(peer).state.get("failed"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "peers", nargs="*", help="some of the sections of versions.txt (default: all)"
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="write the versions of everything installed to versions.txt",
    )
    options = parser.parse_args()
    wanted = sections()
    link_torch()
    for peer in options.peers or wanted:
        make(peer, wanted[peer])
    if options.pin:
        pin()


if __name__ == "__main__":
    main()

"""What the project's files say of versions agrees: Loopwright's own, Python's, torch's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import loopwright
from loopwright._version import OLDEST_TORCH

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def classified(prefix: str) -> list[str]:
    """What the classifiers that begin so go on with."""
    found = [
        name.removeprefix(prefix)
        for name in PROJECT["project"]["classifiers"]
        if name.startswith(prefix)
    ]
    return [name for name in found if not name.endswith("Only")]


def matrix(key: str) -> list[list[str]]:
    """The lists of a matrix of the workflow."""
    return [
        re.findall(r'"([^"]+)"', found)
        for found in re.findall(rf"^ +{key}: \[(.+)\]$", CI, re.MULTILINE)
    ]


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [loopwright.__version__]
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest in ("Unreleased", loopwright.__version__)
    printed = re.findall(r"versions +loopwright (\S+),", (ROOT / "docs" / "cli.md").read_text())
    assert set(printed) == {loopwright.__version__}


def test_the_pythons_of_the_classifiers_are_those_that_the_workflow_tests() -> None:
    pythons = classified("Programming Language :: Python :: ")
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    assert pythons == matrix("python")[0]
    oldest = pythons[0].replace(".", "")
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == pythons[0]


def test_the_oldest_torch_is_the_same_in_the_package_its_metadata_its_tests_and_its_page() -> None:
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert [need for need in PROJECT["project"]["dependencies"] if need.startswith("torch")] == [
        f"torch>={oldest}"
    ]
    tested = [version for versions in matrix("torch") for version in versions]
    assert f"{oldest}.0" in tested
    page = (ROOT / "docs" / "releases.md").read_text()
    assert f"| torch | torch {oldest} |" in page


def test_only_posix_systems_are_classified() -> None:
    assert classified("Operating System :: ") == ["MacOS", "POSIX :: Linux"]

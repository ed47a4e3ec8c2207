"""Every Python block in the README and the docs, and every example, runs as it stands from an empty
folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .forked import run_forked

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


BLOCK = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```python\n(.*?)^```", re.M | re.S)


def blocks() -> list[object]:
    return [
        pytest.param(block, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number, (file, block) in enumerate(BLOCK.findall(document.read_text()), start=1)
        if not file
    ]


def programs() -> list[object]:
    """The pages whose blocks are files of one folder, which are run in their order."""
    pages = {
        document.name: [found for found in BLOCK.findall(document.read_text()) if found[0]]
        for document in DOCUMENTS
    }
    return [pytest.param(files, id=name) for name, files in pages.items() if files]


def run_script(path: Path, folder: Path, *arguments: str) -> str:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error::DeprecationWarning:__main__",
    }
    result = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("block", blocks())
def test_block_runs_as_a_script(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block)
    if "__main__" in block:  # it starts processes, which import it
        run_script(script, tmp_path)
    else:
        run_forked(script, tmp_path)


@pytest.mark.parametrize("files", programs())
def test_files_of_a_page_run_one_after_the_other(
    files: list[tuple[str, str]], tmp_path: Path
) -> None:
    for name, block in files:
        (tmp_path / name).write_text(block)
        run_forked(tmp_path / name, tmp_path)


def test_digits_example_reaches_97_percent_draws_its_curves_and_sees_that_its_run_is_finished(
    tmp_path: Path,
) -> None:
    first, second = (
        run_forked(ROOT / "examples" / "digits.py", tmp_path, "--run-dir", "run", "--epochs", "6")
        for _ in range(2)
    )
    accuracy = re.search(r"Test accuracy: ([\d.]+)%", first)
    assert float(accuracy[1]) >= 97.0
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Nothing to train" in second
    assert accuracy[0] in second

"""Systems and versions that Loopwright does not run on are refused at the import, in words."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import loopwright
from loopwright._version import OLDEST_TORCH

from ..forked import call_forked


def forget_package() -> None:
    """As if Loopwright had not been imported yet."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "loopwright"]:
        del sys.modules[name]


def test_a_system_without_posix_locks_is_refused_at_the_import(tmp_path: Path) -> None:
    def program() -> None:
        forget_package()
        # how Python says that there is none, as on Windows
        sys.modules["fcntl"] = None  # type: ignore[assignment]
        import loopwright  # noqa: F401

    ended = call_forked(program, tmp_path)
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith(
        "ImportError: Loopwright needs the file locks and signals of Linux"
    )
    assert "WSL" in ended.err


def test_a_torch_that_is_too_old_is_refused_at_the_first_use_with_the_command_that_gets_a_newer_one(
    tmp_path: Path,
) -> None:
    major, minor = OLDEST_TORCH

    def program() -> None:
        forget_package()
        torch.__version__ = f"{major}.{minor - 1}.1+cpu"  # type: ignore[assignment]
        import loopwright

        print(loopwright.__version__)  # which torch has no part in
        loopwright.Trainer

    ended = call_forked(program, tmp_path)
    assert ended.code == 1
    assert ended.out.strip() == loopwright.__version__
    said = ended.err.splitlines()[-1]
    assert said == (
        f"ImportError: Loopwright {loopwright.__version__} needs torch {major}.{minor} or newer, "
        f"and here is torch {major}.{minor - 1}.1+cpu: pip install 'torch>={major}.{minor}'."
    )


def test_a_preview_of_the_oldest_torch_is_taken(tmp_path: Path) -> None:
    def program() -> None:
        forget_package()
        torch.__version__ = "{}.{}.0a0+git123".format(*OLDEST_TORCH)  # type: ignore[assignment]
        import loopwright

        print(loopwright.Trainer.__name__)

    assert call_forked(program, tmp_path).out == "Trainer\n"

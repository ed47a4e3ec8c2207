"""Several processes from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.runtime.launch import RankError, launch
from tests.distributed import launched
from tests.mistakes import raises


def test_a_function_runs_on_new_processes_and_its_results_come_back_by_rank() -> None:
    results = launch(launched.multiply, 10)
    assert [result for result, _ in results] == [0, 10]
    assert [gathered.tolist() for _, gathered in results] == [[0, 1], [0, 1]]


def test_a_forked_rank_can_use_a_fork_server_where_its_parent_has_one() -> None:
    """As loaders with workers do, on Linux from Python 3.14 on by default."""
    assert launched.start_by_fork_server() == 0
    assert launch(launched.start_by_fork_server, processes=1, start_method="fork") == [0]


def test_an_exception_of_a_rank_is_raised_with_its_traceback() -> None:
    with pytest.raises(KeyError, match="column") as raised:
        launch(launched.fail_on_rank_1, start_method="fork")
    cause = raised.value.__cause__
    assert isinstance(cause, RankError)
    assert str(cause).startswith("on rank 1:")
    assert 'raise KeyError("column")' in str(cause)


def test_an_exception_that_cannot_be_sent_is_raised_as_text() -> None:
    with raises("launch-failed", "UnreadableError", "1 and 2"):
        launch(launched.raise_unreadable, processes=1, start_method="fork")


def test_a_rank_that_leaves_without_an_exception_is_named() -> None:
    with raises("rank-ended", "0", "exit code 7"):
        launch(launched.leave, processes=1, start_method="fork")


def test_a_lambda_is_refused_with_what_to_do() -> None:
    with raises("launch-arguments"):
        launch(lambda: None)


def test_a_result_that_cannot_be_sent_is_refused_with_what_to_do() -> None:
    with raises("launch-result", "generator"):
        launch(launched.return_a_generator, processes=1, start_method="fork")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "number"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_started(
    options: dict[str, object], message: str
) -> None:
    with raises(message):
        launch(launched.leave, **options)  # type: ignore[arg-type]


def test_this_process_is_left_as_it_was() -> None:
    before = (
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        dict(os.environ),
    )
    launch(launched.multiply, 1, processes=1, start_method="fork")
    assert (
        [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        dict(os.environ),
    ) == before


@pytest.mark.long
def test_a_program_without_a_main_guard_is_told_to_have_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from loopwright.runtime.launch import launch\n\ndef f(): pass\n\nlaunch(f, processes=1)\n"
    )
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert "put the call under `if __name__ == '__main__':`" in run.stderr

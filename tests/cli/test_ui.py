"""`loopwright ui` as a process: what it prints, where it listens, and how it ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopwright import ConfigurationError
from loopwright.cli import main
from loopwright.dashboard.app import bind
from tests.dashboard.small_runs import write_run
from tests.mistakes import raises


@contextmanager
def ui(folder: Path, *arguments: str, end: int = signal.SIGINT) -> Iterator[list[str]]:
    """The command with the lines that it prints before it waits; it is ended as by Ctrl-C and must
    end well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwright", "ui", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    try:
        lines = []
        while (line := process.stdout.readline()) and "Ctrl-C" not in line:
            lines.append(line.rstrip("\n"))
        assert line, process.stderr.read()
        yield lines
        process.send_signal(end)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out, err) == (0 if end == signal.SIGINT else -end, "", "")
    finally:
        process.kill()
        process.wait()


def get(url: str, path: str) -> int:
    host = re.match(r"http://([\w.-]+:\d+)/", url)[1]
    connection = http.client.HTTPConnection(host, timeout=300)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_it_prints_its_address_and_ends_quietly_with_ctrl_c(tmp_path: Path):
    write_run(tmp_path / "runs" / "a", media=False)
    with ui(tmp_path, "--port", "0") as lines:
        assert lines[0] == "1 run in runs"
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", lines[1])
        assert get(lines[1], "/api/runs") == 200


def test_it_ends_quietly_while_a_page_follows_a_run(tmp_path: Path):
    write_run(tmp_path / "runs" / "a", media=False)
    with ui(tmp_path, "--port", "0") as lines:
        port = int(re.search(r":(\d+)/", lines[1])[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/api/live?run=a&name=loss")
        response = connection.getresponse()
        assert response.readline().startswith(b"retry")
    connection.close()


def test_a_port_in_use_is_said_and_the_next_is_taken(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with ui(tmp_path, "--port", str(port)) as lines:
            found = re.fullmatch(rf"Port {port} is in use: (\d+) is the next free one\.", lines[0])
            assert found
            assert lines[-1] == f"http://127.0.0.1:{found[1]}/"


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path):
    with ui(tmp_path, "--port", "0") as lines:
        assert lines[0].startswith("There is no folder runs yet. ")
        assert "run_dir=" in lines[0]
    (tmp_path / "runs").mkdir()
    with ui(tmp_path, "runs", "--port", "0") as lines:
        assert lines[0].startswith("No runs in runs yet. ")


def test_another_host_has_a_token_in_its_address(tmp_path: Path):
    with ui(tmp_path, "--port", "0", "--host", "0.0.0.0") as lines:
        assert lines[1] == "Everyone who has this address can see the runs:"
        token = re.fullmatch(r"http://[^/]+:(\d+)/\?token=([\w-]{32})", lines[2])
        assert token
        address = f"http://127.0.0.1:{token[1]}/"
        assert get(address, "/api/runs") == 401
        assert get(address, f"/?token={token[2]}") == 303


def test_a_file_is_no_folder_of_runs(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("")
    with raises("not-a-folder", "run.yaml"):
        from loopwright.cli.ui import ui_command

        class Options:
            root, host, port, open = str(tmp_path / "run.yaml"), "127.0.0.1", 0, False

        ui_command(Options())


@pytest.mark.parametrize(
    ("host", "port", "advice"),
    [
        ("127.0.0.1", -1, "Use 1 to 65535"),
        ("127.0.0.1", 70_000, "Use 1 to 65535"),
        ("no such host", 0, "an address of this machine"),
        ("192.0.2.1", 0, "an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_refused(host: str, port: int, advice: str):
    with pytest.raises(ConfigurationError, match=advice):
        bind(host, port)


def test_packages_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", "--port", "0"]) == 2
    assert "pip install 'loopwright[ui]'" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "uvicorn")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with raises("ui-extra", "loopwright[ui]"):
        from loopwright.dashboard.app import build_app
        from loopwright.dashboard.folder import RunsFolder

        build_app(RunsFolder(tmp_path))


def test_sigterm_ends_it_as_any_process(tmp_path: Path):
    with ui(tmp_path, "--port", "0", end=signal.SIGTERM):
        pass
    assert not os.listdir(tmp_path)

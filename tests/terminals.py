"""A pseudo-terminal of a given size, and the text that a person would see on it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forked import end_as_program

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TOKENS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|[^\x1b]", re.DOTALL)


class Screen:
    """Follows the control codes of a program: what is on the screen, what has scrolled away, and
    earlier frames."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.scrolled: list[str] = []
        self.frames: list[str] = []
        self._lines = [""] * rows
        self._x = self._y = 0
        self._is_drawn = False  # since the last frame

    def feed(self, text: str) -> Screen:
        for token in TOKENS.findall(text):
            if token.startswith("\x1b"):
                self._control(token[-1], token[2:-1])
            elif token == "\r":
                self._x = 0
            elif token == "\n":
                self._next_line()
            else:
                self._write(token)
        return self

    @property
    def text(self) -> str:
        return "\n".join([*self.scrolled, *(line.rstrip() for line in self._lines)]).rstrip()

    def _write(self, character: str) -> None:
        if self._x >= self.columns:
            self._x = 0
            self._next_line()
        line = self._lines[self._y].ljust(self._x)
        self._lines[self._y] = line[: self._x] + character + line[self._x + 1 :]
        self._x += 1
        self._is_drawn = True

    def _next_line(self) -> None:
        self._y += 1
        if self._y >= self.rows:
            self.scrolled.append(self._lines.pop(0).rstrip())
            self._lines.append("")
            self._y = self.rows - 1

    def _control(self, kind: str, argument: str) -> None:
        if kind == "A":
            self._y = max(self._y - int(argument or 1), 0)
        elif kind == "K":
            self._keep_frame()
            self._lines[self._y] = "" if argument == "2" else self._lines[self._y][: self._x]
        elif kind == "J":
            self._lines = [""] * self.rows
        elif kind == "H":
            self._keep_frame()
            self._x = self._y = 0

    def _keep_frame(self) -> None:
        """Keep the screen before the first line of it is drawn over."""
        if self._is_drawn:
            self.frames.append(self.text)
        self._is_drawn = False


class Program:
    """A function in a process of its own, on a terminal of its own."""

    def __init__(
        self, function: Callable[[], object], folder: Path, columns: int = 80, rows: int = 24
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.screen = Screen(columns, rows)
        self._rest = ""
        self.written = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            for name in ("COLUMNS", "LINES", "NO_COLOR"):
                os.environ.pop(name, None)
            termios.tcsetwinsize(1, (rows, columns))
            end_as_program(function, folder)
        # Ctrl-C discards what a terminal has not shown yet, perhaps half of a character.
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def wait_for(self, pattern: str) -> str:
        """The screen, as soon as it has a text that fits; an error where the program ends
        before."""
        while not re.search(pattern, self.screen.text):
            assert self._read(), f"{pattern!r} was never shown:\n{self.screen.text}"
        return self.screen.text

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def end(self) -> int:
        """The exit code, after all that the program writes has been read."""
        while self._read():
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        text = self._rest + self._decode(data)
        self.written += text[len(self._rest) :]
        end = text.rfind("\x1b")
        # a code that has not come to its end
        end = end if end >= 0 and not ESCAPES.match(text, end) else len(text)
        self._rest = text[end:]
        self.screen.feed(text[:end])
        return bool(data)


class Terminal:
    """A pseudo-terminal to write to, and what was written."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.file = os.fdopen(slave, "w")
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 4096):
                self._chunks.append(chunk)
        except OSError:  # how Linux says that the other end is closed
            return

    def finish(self) -> str:
        self.file.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._chunks).decode()


@contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int = 80, rows: int = 24
) -> Iterator[list[str]]:
    """Standard output is a terminal inside; everything that was written to it is in the list
    afterwards."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown: list[str] = []
    real = Terminal(columns, rows)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", real.file)
        try:
            yield shown
        finally:
            patch.undo()
            shown.append(real.finish())

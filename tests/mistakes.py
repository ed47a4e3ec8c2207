"""Mistakes of users, and the errors that they cause: matched by code and values, not by sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loopwright.errors import LoopwrightError


@contextmanager
def raises(
    code: str,
    *values: object,
    kind: type[LoopwrightError] = LoopwrightError,
    without: str = "",
) -> Iterator[pytest.ExceptionInfo[LoopwrightError]]:
    """Expect the error with this code, whose message names each of these values.

    `without` is a pattern of words that the message must not have, those of another interface.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    missing = [value for value in values if str(value) not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"
    assert not (without and re.search(without, str(caught.value))), str(caught.value)


class Mistakes:
    """Expects an error by its sentence; `raises` takes its place test by test."""

    @contextmanager
    def __call__(
        self,
        section: str,
        what: str,
        error: type[BaseException],
        *,
        match: str | None = None,
        hide: str | None = None,
    ) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        """Expect `error` with a message that fits `match`."""
        with pytest.raises(error, match=match) as caught:
            yield caught

    def said(self, section: str, what: str, text: str, *, hide: str | None = None) -> None:
        """A mistake about which a line is printed, or which has been caught already."""
        assert text.strip(), what

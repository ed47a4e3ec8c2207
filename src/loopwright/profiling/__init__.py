"""Where the time of a run goes: the callback `Profile`, its report, and the file that other
programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .profile import Profile
    from .report import Report

__all__ = ["Profile", "Report"]

_HOMES = {"Profile": "profile", "Report": "report"}

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES)

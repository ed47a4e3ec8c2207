"""What a docstring says of a class and its arguments, for descriptions in an editor."""

from __future__ import annotations

import inspect
import re
from typing import Any

ARGUMENT = re.compile(r"^\s{0,12}(\w+)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:\s+(\S.*)$", re.M)


def first_sentence(target: Any) -> str:
    """The first line of a docstring that the class has itself."""
    own = vars(target).get("__doc__") if isinstance(target, type) else getattr(target, "__doc__", None)
    text = inspect.cleandoc(own).strip() if isinstance(own, str) else ""
    return text.partition("\n\n")[0].replace("\n", " ")[:300]


def described_arguments(target: Any) -> dict[str, str]:
    """Lines of the form `name: what it is` or `name (type): what it is`."""
    init = getattr(target, "__init__", None)
    texts = [getattr(target, "__doc__", None), getattr(init, "__doc__", None)]
    found: dict[str, str] = {}
    for text in texts:
        for name, words in ARGUMENT.findall(inspect.cleandoc(text)) if isinstance(text, str) else ():
            found.setdefault(name, words.strip()[:300])
    return found

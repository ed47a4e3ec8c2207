"""The tables of docs/adversarial.md that follow from the code: methods with their signatures, and settings.

`python -m tests.doors.adversarial.pages` writes them into the page, between the comments that name them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loopwright.doors.adversarial import (
    Config,
    ConfigManager,
    LossManager,
    ONNXConverter,
    Pix2pixTrainer,
    Schedule,
    Scheduler,
    Tester,
    TorchScheduler,
    Trainer,
)
from loopwright.doors.adversarial.pix2pix.live import Curves
from loopwright.doors.adversarial.scheduling import ScheduledRate

PAGE = Path(__file__).parents[3] / "docs" / "adversarial.md"

OVERRIDABLE = (  # names that begin with an underscore and are meant to be overridden
    *("_init_lr_scheduling", "_init_generator", "_init_discriminator", "_init_dataloaders"),
    *("_init_gradscalers", "_init_losses"),
)
SHOWN = (Trainer, Pix2pixTrainer, LossManager, Tester, ONNXConverter, ConfigManager, Schedule, Scheduler)
CLASSES: tuple[type, ...] = (*SHOWN, TorchScheduler, Curves)


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """A call of a method as a user writes it: names and defaults, without types."""
    parameters = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        text = re.sub(r"<class '.*?(\w+)'>", r"\1", str(parameter.replace(annotation=inspect.Parameter.empty)))
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(text)
    return f"{name}({', '.join(parameters)})"


def methods_of(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods that a class itself defines and its users call or override, in the order of the source."""
    own = vars(kind) if kind is not TorchScheduler else vars(ScheduledRate) | vars(TorchScheduler)
    for name, value in own.items():
        if inspect.isfunction(value) and (not name.startswith("_") or name in (*OVERRIDABLE, "__init__")):
            yield name, value


def method_table(kind: type) -> str:
    rows = ["| call | what it does |", "|---|---|"]
    for name, function in methods_of(kind):
        doc = inspect.getdoc(kind if name == "__init__" else function) or ""
        call = signature_of(kind.__name__ if name == "__init__" else name, function)
        rows.append(f"| `{call}` | {doc.splitlines()[0] if doc else ''} |")
    return "\n".join(rows)


def settings_of(kind: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its key, the groups resolved."""
    for name, field in kind.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from settings_of(type(field.default), f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def allowed(field: FieldInfo) -> str:
    """What a setting may be: its type, and its limits if it has some."""
    kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"\1", kind).replace("NoneType", "None").replace("|", "or")
    text = re.sub(r"typing\.Union\[([^\]]*), ([^\]]*)\]", r"\1 or \2", text)
    if re.fullmatch(r"list\[.*\]", str(field.annotation)):
        text = str(field.annotation)
    limits = [
        f"{word} {getattr(limit, name)}" for limit in field.metadata for name, word in WORDS if hasattr(limit, name)
    ]
    return ", ".join([text, *limits])


WORDS = (("ge", "from"), ("gt", "above"), ("le", "to"), ("lt", "below"))


def config_table() -> str:
    rows = ["| key | default | may be |", "|---|---|---|"]
    for key, field in settings_of(Config):
        extra = field.json_schema_extra
        note = " (no effect)" if isinstance(extra, dict) and "why" in extra else ""
        rows.append(f"| `{key}` | `{json.dumps(field.default)}` | {allowed(field)}{note} |")
    return "\n".join(rows)


def tables() -> dict[str, str]:
    return {kind.__name__: method_table(kind) for kind in CLASSES} | {"settings": config_table()}


def written(page: str) -> str:
    """A page with its tables as the code has them."""
    for name, table in tables().items():
        first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
        assert first in page, f"{PAGE.name} has no place for {name}: write {first} and {last} where it is to stand."
        before, rest = page.split(first, 1)
        page = f"{before}{first}\n\n{table}\n\n{last}{rest.split(last, 1)[1]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

"""Reading of the `config.yaml` of a run, with limits on the time and memory that a malicious file
can take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.layout import read_limited
from ..errors import CheckpointError

if TYPE_CHECKING:
    import yaml

MAX_NODES = 100_000  # a file that expands to more than this through its aliases is not a config
MAX_DEPTH = 50
MAX_BYTES = 4_000_000


def read_config(path: Path) -> dict[str, Any] | None:
    """The content of the file, None where there is no file or no mapping in it."""
    if not path.is_file():
        return None
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_limited(path, MAX_BYTES).decode("utf-8-sig")
        if problem := next(_Expansion().problems(yaml.parse(text, Loader=loader)), None):
            raise CheckpointError(f"{path} is not a config: {problem}.")
        content = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as YAML: {error}") from error
    return content if isinstance(content, dict) else None


@dataclass(slots=True)
class _Collection:
    """A mapping or a list that is being read: the number of its values so far, and its keys so
    far."""

    anchor: str | None
    is_mapping: bool
    size: int = 1
    num_children: int = 0
    keys: set[str] = field(default_factory=set)

    @property
    def expects_key(self) -> bool:
        return self.is_mapping and self.num_children % 2 == 0


class _Expansion:
    """The size of a file with its aliases expanded, counted from the parser's events without
    expanding it."""

    def __init__(self) -> None:
        self.open = [_Collection(None, is_mapping=False)]
        self.sizes: dict[str, int] = {}

    def problems(self, events: Iterator[yaml.Event]) -> Iterator[str]:
        import yaml

        for event in events:
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            if isinstance(event, yaml.CollectionStartEvent):
                self.open.append(
                    _Collection(event.anchor, isinstance(event, yaml.MappingStartEvent))
                )
                if len(self.open) > MAX_DEPTH:
                    yield f"line {line} is nested more than {MAX_DEPTH} levels deep"
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.open.pop()
                self.add(done.anchor, done.size)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.sizes:
                    yield f"*{event.anchor} in line {line} refers to itself, or to nothing"
                self.add(None, self.sizes.get(str(event.anchor), 1))
            elif isinstance(event, yaml.ScalarEvent):
                parent = self.open[-1]
                if parent.expects_key and event.value in parent.keys:
                    yield f"the key {event.value!r:.60} appears twice (line {line})"
                if parent.expects_key:
                    parent.keys.add(event.value)
                self.add(event.anchor, 1)
            if self.open[-1].size > MAX_NODES:
                yield (
                    f"it has more than {MAX_NODES} values when its aliases (*name) are "
                    f"written out (line {line})"
                )

    def add(self, anchor: str | None, size: int) -> None:
        """Count a value that is complete."""
        if anchor is not None:
            self.sizes[anchor] = size
        self.open[-1].size += size
        self.open[-1].num_children += 1

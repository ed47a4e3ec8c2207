"""Config from a file, a dict or nothing, and back to a file; mistakes are named by their key."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ...config.tree import ConfigError, Node, Problem, child_of, join_key, to_node
from ...config.yaml import read_file
from ...errors import ConfigurationError
from .config import Config

logger = logging.getLogger("loopwright")

ConfigSource: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | Config | ConfigManager | None"
)
AnyConfig = TypeVar("AnyConfig", bound=Config)

_COPY_NAME = re.compile(r"train(\d+)_config\.json")
_said: set[str] = set()  # settings without an effect that this process has warned about


class ConfigManager:
    """Holds a config: `data` has the settings as attributes, `raw` as a dict.

    `Trainer` takes one as its config and then shares `data` with it.

    Args:
        input_config: what `load_config` takes.
        kind: `Config` or a subclass with further settings.

    >>> from loopwright.interfaces.adversarial import ConfigManager
    >>> manager = ConfigManager({"train": {"generator": {"features": 8}}})
    >>> manager.data.train.generator.features, manager.raw["common"]["precision"]
    (8, 'fp32')
    """

    def __init__(self, input_config: ConfigSource = None, kind: type[Config] = Config) -> None:
        self.data = load_config(input_config, kind)

    @property
    def raw(self) -> dict[str, Any]:
        """All settings by group, as they are now."""
        return self.data.model_dump(mode="json")

    def export_config(self, output_directory: str | os.PathLike[str]) -> Path:
        """Write a numbered copy of the config as JSON and return its path."""
        return export_config(self.data, output_directory)


def load_config(source: ConfigSource = None, kind: type[AnyConfig] = Config) -> AnyConfig:  # type: ignore[assignment]
    """Read a config; a setting that is left out has its default.

    Args:
        source: the path of a JSON or YAML file, a mapping, a config, or None for the defaults. The
            settings may be under a key "config", as in a file that `export_config` wrote.
        kind: `Config` or a subclass with further settings.

    >>> from loopwright.interfaces.adversarial import load_config
    >>> load_config({"dataloader": {"batch_size": 4}}).dataloader.batch_size
    4
    """
    if isinstance(source, ConfigManager):
        source = source.data
    if isinstance(source, Config):
        return source.model_copy(deep=True)  # type: ignore[return-value]
    if source is None:
        return kind()
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise ConfigurationError(
            f"config is {source!r}, of type {type(source).__name__}; expected the path of a JSON "
            "or YAML file, a dict, a Config, a ConfigManager, or None for the defaults."
        )
    root = (
        _read(Path(source))
        if isinstance(source, (str, os.PathLike))
        else to_node(_plain(source), "config", None)
    )
    if not isinstance(root.value, dict):
        raise ConfigurationError(
            f"{root.file} is a {type(root.value).__name__}; expected groups of settings by name."
        )
    if set(root.value) == {"config"} and isinstance(root.value["config"].value, dict):
        root = root.value["config"]
    try:
        return kind.model_validate(root.plain())
    except ValidationError as error:
        raise _report(error, root, kind) from None


def export_config(config: Config, directory: str | os.PathLike[str]) -> Path:
    """Write a copy as `train1_config.json`, or the next number that is free; it can be loaded as it
    is."""
    folder = Path(directory)
    number = max((n for n, _ in config_copies(folder)), default=0) + 1
    path = folder / f"train{number}_config.json"
    values = config.model_dump(mode="json")
    for key, is_given, _ in settings_without_effect(config):
        if not is_given:  # so that reading the copy does not warn about it
            _remove(values, key.split("."))
    path.write_text(json.dumps({"config": values}, indent=2) + "\n")
    return path


def say_without_effect(config: Config) -> None:
    """Say which of the settings that were given change nothing here; of each, once in a process."""
    given = {
        key: why
        for key, is_given, why in settings_without_effect(config)
        if is_given and key not in _said
    }
    _said.update(given)
    for why in dict.fromkeys(given.values()):
        keys = ", ".join(key for key, reason in given.items() if reason == why)
        logger.warning("Settings without an effect: %s (%s).", keys, why)


def settings_without_effect(group: BaseModel, before: str = "") -> Iterator[tuple[str, bool, str]]:
    """Of each such setting its key, whether it was given, and why it changes nothing."""
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        extra = field.json_schema_extra
        if isinstance(value, BaseModel):
            yield from settings_without_effect(value, f"{before}{name}.")
        elif isinstance(extra, dict) and "why" in extra:
            yield f"{before}{name}", name in group.model_fields_set, str(extra["why"])


def _remove(values: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        values = values[name]
    del values[path[-1]]


def config_copies(directory: Path) -> list[tuple[int, Path]]:
    """The copies in a directory with their numbers, sorted by number."""
    found = [
        (int(m[1]), path) for path in directory.glob("*") if (m := _COPY_NAME.fullmatch(path.name))
    ]
    return sorted(found)


def _read(path: Path) -> Node:
    if not path.is_file():
        raise ConfigurationError(
            f"There is no config file at {path}: pass a JSON or YAML file, a dict, or None."
        )
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_file(path)
    try:
        return to_node(json.loads(path.read_text()), str(path), None)
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None


def _plain(value: Any) -> Any:
    """Paths become text, mappings dicts: what JSON has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _report(error: ValidationError, root: Node, kind: type[BaseModel]) -> ConfigError:
    """Every mistake with the key it is at; of a choice that has several forms, once."""
    found: dict[str, Problem] = {}
    for item in error.errors():
        node = root
        names = list[str]()
        for part in item["loc"]:
            child = child_of(node, str(part))
            if child is not None:  # pydantic's own names for the forms of a choice are left out
                node = child
                names = [*names, str(part)]
        key = ".".join(names)
        text = _in_words(item, key, kind)
        if key in found:
            text = f"{found[key].message.rpartition('; it is')[0]}, or: {text}"
        found[key] = Problem(root.file, node.line, key, text)
    return ConfigError(found.values())


def _in_words(item: Any, key: str, kind: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        return f"there is no such setting{_nearest(key, kind)}"
    value = item["input"]
    shown = type(value).__name__ if isinstance(value, (Mapping, list)) else repr(value)
    return f"{item['msg'][0].lower()}{item['msg'][1:]}; it is {shown}."


def _nearest(key: str, kind: type[BaseModel]) -> str:
    """The setting that was probably meant: in the same group, or the same name in another one."""
    keys = list(_keys(kind))
    group, _, name = key.rpartition(".")
    known = [other.rpartition(".")[2] for other in keys if other.rpartition(".")[0] == group]
    near = [
        join_key(group, other) for other in difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    ]
    near += [other for other in keys if other.rpartition(".")[2] == name]
    if near:
        return f"; did you mean {near[0]}?"
    return f"; available: {', '.join(known)}." if known else "."


def _keys(kind: type[BaseModel], before: str = "") -> Iterator[str]:
    """The dotted names of all settings and groups."""
    for name, field in kind.model_fields.items():
        yield before + name
        for option in (field.annotation, *get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel):
                yield from _keys(option, f"{before}{name}.")

"""Config from a file, a dict or nothing, and back to a file; mistakes are named by their key."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ...errors import ConfigurationError
from .config import Config

if TYPE_CHECKING:
    from ...config.tree import ConfigError, Node

logger = logging.getLogger("loopwright")

ConfigSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Config | ConfigManager | None"
AnyConfig = TypeVar("AnyConfig", bound=Config)

_COPY_NAME = re.compile(r"train(\d+)_config\.json")
_said: set[str] = set()  # settings without an effect that this process has spoken of


class ConfigManager:
    """A config and where it came from: `data` are the settings as attributes, `raw` as a dict.

    `Trainer` takes one as its config and then shares `data` with it.
    """

    def __init__(self, input_config: ConfigSource = None, kind: type[Config] = Config) -> None:
        self.data = load_config(input_config, kind)

    @property
    def raw(self) -> dict[str, Any]:
        """All settings by group, as they are now."""
        return self.data.model_dump(mode="json")

    def export_config(self, output_directory: str | os.PathLike[str]) -> Path:
        """Write a numbered copy; see `export_config`."""
        return export_config(self.data, output_directory)


def load_config(source: ConfigSource = None, kind: type[AnyConfig] = Config) -> AnyConfig:  # type: ignore[assignment]
    """The config from a JSON or YAML file, a mapping, a config, or None for the defaults.

    What is left out has its default. The settings may be under a key "config", as in a whole file.
    """
    if isinstance(source, ConfigManager):
        source = source.data
    if isinstance(source, Config):
        return source.model_copy(deep=True)  # type: ignore[return-value]
    if source is None:
        return kind()
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise ConfigurationError(
            f"config is {source!r}, of type {type(source).__name__}; expected the path of a JSON or YAML file, a dict, "
            "a Config, a ConfigManager, or None for the defaults."
        )
    given = _read(Path(source)) if isinstance(source, (str, os.PathLike)) else Given("config", source)
    values: Any = given.values
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{given.name} is a {type(values).__name__}; expected groups of settings by name.")
    if set(values) == {"config"} and isinstance(values["config"], Mapping):
        given.prefix, values = "config.", values["config"]
    try:
        return kind.model_validate(_plain(values))
    except ValidationError as error:
        raise _report(error, given, kind) from None


@dataclass(slots=True)
class Given:
    """What was given as a config: its name in messages, its values, and the tree with line numbers if there is one."""

    name: str
    values: Any
    root: Node | None = None
    prefix: str = ""

    def line_of(self, key: str) -> int | None:
        from ...config.tree import descend

        node = None if self.root is None else descend(self.root, self.prefix + key)
        return None if node is None else node.line


def export_config(config: Config, directory: str | os.PathLike[str]) -> Path:
    """Write a copy as `train1_config.json`, or the next number that is free; it can be loaded as it is."""
    folder = Path(directory)
    number = max((n for n, _ in config_copies(folder)), default=0) + 1
    path = folder / f"train{number}_config.json"
    values = config.model_dump(mode="json")
    for key, is_given, _ in settings_without_effect(config):
        if not is_given:  # whoever reads the copy is not to be told of what nobody set
            _remove(values, key.split("."))
    path.write_text(json.dumps({"config": values}, indent=2) + "\n")
    return path


def say_without_effect(config: Config) -> None:
    """Say which of the settings that were given change nothing here; of each, once in a process."""
    given = {key: why for key, is_given, why in settings_without_effect(config) if is_given and key not in _said}
    _said.update(given)
    for why in dict.fromkeys(given.values()):
        keys = ", ".join(key for key, reason in given.items() if reason == why)
        logger.warning("Without an effect in the config: %s (%s).", keys, why)


def settings_without_effect(group: BaseModel, before: str = "") -> Iterator[tuple[str, bool, str]]:
    """Of each such setting its key, whether it was given, and why it changes nothing."""
    for name, field in type(group).model_fields.items():
        value, extra = getattr(group, name), field.json_schema_extra
        if isinstance(value, BaseModel):
            yield from settings_without_effect(value, f"{before}{name}.")
        elif isinstance(extra, dict) and "why" in extra:
            yield f"{before}{name}", name in group.model_fields_set, str(extra["why"])


def _remove(values: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        values = values[name]
    del values[path[-1]]


def config_copies(directory: Path) -> list[tuple[int, Path]]:
    """The copies in a directory with their numbers, in the order of those."""
    found = [(int(m[1]), path) for path in directory.glob("*") if (m := _COPY_NAME.fullmatch(path.name))]
    return sorted(found)


def _read(path: Path) -> Given:
    if not path.is_file():
        raise ConfigurationError(f"There is no config file at {path}: give a JSON or YAML file, a dict, or None.")
    if path.suffix.lower() in (".yaml", ".yml"):
        from ...config.yaml import read_file

        root = read_file(path)
        return Given(str(path), root.plain(), root)
    try:
        return Given(str(path), json.loads(path.read_text()))
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None


def _plain(value: Any) -> Any:
    """Paths become text, mappings dicts: what JSON has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _report(error: ValidationError, given: Given, kind: type[BaseModel]) -> ConfigError:
    """Every mistake with the key it is at; of a choice that has several forms, once."""
    from ...config.tree import ConfigError, Problem

    texts: dict[str, str] = {}
    for found in error.errors():
        names = _keys(found["loc"], kind)
        key = ".".join(names)
        if found["type"] == "extra_forbidden":
            text = f"there is no such setting{_nearest(names, kind)}"
        else:
            value = found["input"]
            shown = type(value).__name__ if isinstance(value, (Mapping, list)) else repr(value)
            text = f"{found['msg'][0].lower()}{found['msg'][1:]}; it is {shown}."
        texts[key] = f"{texts[key].rpartition('; it is')[0]}, or: {text}" if key in texts else text
    return ConfigError([Problem(given.name, given.line_of(key), key, text) for key, text in texts.items()])


def _keys(location: tuple[int | str, ...], kind: type[BaseModel]) -> list[str]:
    """The names in a config that lead to a place; pydantic's own names for the forms of a choice are left out."""
    keys: list[str] = []
    group: type[BaseModel] | None = kind
    for part in location:
        if group is None:
            break
        keys.append(str(part))
        field = group.model_fields.get(str(part))
        group = None if field is None else _group_of(field.annotation)
    return keys


def _group_of(annotation: Any) -> type[BaseModel] | None:
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _nearest(names: list[str], kind: type[BaseModel]) -> str:
    """The setting that was probably meant: in the same group, or the same name in another one."""
    group: type[BaseModel] | None = kind
    for name in names[:-1]:
        field = group.model_fields.get(name) if group is not None else None
        group = None if field is None else _group_of(field.annotation)
    known = list(group.model_fields) if group is not None else []
    near = difflib.get_close_matches(names[-1], known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {'.'.join([*names[:-1], near[0]])}?"
    elsewhere = _places(names[-1], kind)
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; there is: {', '.join(known)}." if known else "."


def _places(name: str, kind: type[BaseModel], before: str = "") -> list[str]:
    found = []
    for key, field in kind.model_fields.items():
        if key == name:
            found.append(before + key)
        group = _group_of(field.annotation)
        if group is not None:
            found += _places(name, group, f"{before}{key}.")
    return found

"""YAML as a constructor call written as data: read, checked as a whole, then built.

    config = load_config("run.yaml", ["trainer.max_updates=500"])  # includes, variables, overrides
    problems = check(config, schema)                               # before anything is built
    model = build(config.at("model"), Place("model", nn.Module))   # `kind` and its arguments

This package knows nothing of trainers: which objects a file describes is said with `Place`, `Entry`
and `Schema`.
"""

from ..text import nearest
from .compose import Config, load_config
from .kinds import Entry, Place, Schema, beside, list_of, mapping_of, one_of_kind
from .sweep import Sweep, ValueRange, Variant, expand_sweep, load_variant, read_sweep
from .tree import ConfigError, Problem
from .validate import build, check, load_model

__all__ = [
    "Config",
    "ConfigError",
    "Entry",
    "Place",
    "Problem",
    "Schema",
    "Sweep",
    "ValueRange",
    "Variant",
    "beside",
    "build",
    "check",
    "expand_sweep",
    "list_of",
    "load_config",
    "load_model",
    "load_variant",
    "mapping_of",
    "nearest",
    "one_of_kind",
    "read_sweep",
]

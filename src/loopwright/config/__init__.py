"""YAML as a constructor call written as data: read, checked as a whole, then built.

    config = load_config("run.yaml", ["trainer.max_updates=500"])      # includes, variables, overrides
    problems = check(config, schema)                                   # every mistake, before anything is built
    model = build(config.at("model"), Place("model", nn.Module))       # `kind` and its arguments, nested

This package knows nothing of trainers: which objects a file describes is said with `Place`, `Entry` and `Schema`.
"""

from .building import build
from .checking import check
from .importing import beside
from .loading import load_config
from .places import Entry, Place, Schema, list_of, mapping_of, one_of_kind
from .problems import ConfigError, Problem, nearest
from .run_schema import run_schema
from .schema import json_schema
from .spaces import Interval, Sweep
from .sweeps import Variant, expand_sweep, load_variant, read_sweep
from .tree import Config

__all__ = [
    "Config",
    "ConfigError",
    "Entry",
    "Interval",
    "Place",
    "Problem",
    "Schema",
    "Sweep",
    "Variant",
    "beside",
    "build",
    "check",
    "expand_sweep",
    "json_schema",
    "list_of",
    "load_config",
    "load_variant",
    "mapping_of",
    "nearest",
    "one_of_kind",
    "read_sweep",
    "run_schema",
]

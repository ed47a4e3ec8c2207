"""`loopwright checkpoint ...`: list, verify, show and compare what runs have saved."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import UTC, datetime
from math import prod
from typing import Any

from .. import checkpoint as checkpoints  # which imports torch only for what needs it
from ..text import counted, size
from .output import (
    FOUND,
    OK,
    RED,
    age_text,
    metric_text,
    number_text,
    print_json,
    print_table,
    say,
)
from .selection import find_folder, find_source

COUNTS = ("epoch", "step", "update")
SORTS = {"resume": "resume point", "kept": "kept model"}


def list_command(options: argparse.Namespace) -> int:
    _list(options, verify=False)
    return OK


def verify_command(options: argparse.Namespace) -> int:
    found = _list(options, verify=True)
    return OK if found and all(info.is_sound for info in found) else FOUND


def _list(options: argparse.Namespace, *, verify: bool) -> list[checkpoints.CheckpointInfo]:
    folder = find_folder(options.run_directory, options.root)
    found = checkpoints.list_checkpoints(folder, verify=verify)
    if options.json:
        print_json([_as_json(info) for info in found])
    elif found:
        _print_list(found)
    else:
        say(f"There are no checkpoints in {folder} yet.")
    return found


def show_command(options: argparse.Namespace) -> int:
    content = checkpoints.describe_checkpoint(
        find_source(options.source, options.root, options.checkpoint)
    )
    if options.json:
        print_json(_content_as_json(content))
    else:
        _print_content(content)
    return OK if content.info.is_sound else FOUND


def diff_command(options: argparse.Namespace) -> int:
    first, second = (
        find_source(text, options.root, options.checkpoint)
        for text in (options.first, options.second)
    )
    differences = checkpoints.diff_checkpoints(first, second, model=options.model)
    if options.json:
        entries = [_fields(each, ("path", "what", "max_abs")) for each in differences]
        print_json({"first": first, "second": second, "differences": entries})
    else:
        say(f"first:  {first}")
        say(f"second: {second}")
        print(counted(len(differences), "difference"))
        for each in differences:
            say(f"  {each.path}: {each.what}")
    return FOUND if differences else OK


def _age(info: checkpoints.CheckpointInfo) -> float | None:
    return None if info.created is None else (datetime.now(UTC) - info.created).total_seconds()


def _print_list(found: list[checkpoints.CheckpointInfo]) -> None:
    header = ["TYPE", "NAME", "EPOCH", "STEP", "UPDATE", "METRIC", "AGE", "SIZE", "STATE"]
    rows = []
    for info in found:
        counts = [number_text(info.meta.get(name)) for name in COUNTS]
        verdict = "verified" if info.is_verified else "ok"
        if info.problems:
            verdict = "damaged"
        size_and_age = [age_text(_age(info)), size(info.size)]
        rows.append([info.kind, info.name, *counts, metric_text(info), *size_and_age, verdict])
    print_table(header, rows, right="23467")
    for info in found:
        for problem in info.problems:
            say(f"{info.name}: {problem}", RED)


def _print_content(content: checkpoints.CheckpointContent) -> None:
    info = content.info
    manifest = content.manifest
    say(
        f"{info.path}: {SORTS[info.kind]}, {age_text(_age(info))} old, written by loopwright "
        f"{manifest.loopwright}"
    )
    for name, value in manifest.meta.items():
        say(f"  {name}: {value}")
    models = {file: model for model, file in manifest.models.items()}
    rows = []
    for name, record in manifest.files.items():
        tensors = content.tensors.get(name, [])
        values = str(sum(prod(tensor.shape) for tensor in tensors))
        counts = [str(len(tensors)), values] if name in content.tensors else ["-", "-"]
        rows.append([name, size(record.size), *counts, models.get(name, "-"), record.sha256[:12]])
    print_table(["FILE", "SIZE", "TENSORS", "VALUES", "MODEL", "SHA256"], rows, right="123")
    every = [tensor for tensors in content.tensors.values() for tensor in tensors]
    print(f"{len(every)} tensors, {size(sum(t.size for t in every))}; {size(info.size)} on disk")
    for problem in info.problems:
        say(problem, RED)


def _fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _as_json(info: checkpoints.CheckpointInfo) -> dict[str, Any]:
    metric = None if info.metric is None else {"name": info.metric[0], "value": info.metric[1]}
    return {
        **_fields(info, ("kind", "name", "path", "size", "is_sound", "is_verified", "problems")),
        **{name: info.meta.get(name) for name in COUNTS},
        "metric": metric,
        "created": info.created and info.created.isoformat(),
        "age_seconds": _age(info),
    }


def _content_as_json(content: checkpoints.CheckpointContent) -> dict[str, Any]:
    manifest = content.manifest
    files = manifest.files.items()
    tensors = content.tensors.items()
    names = ("name", "dtype", "shape", "size", "tied_to")
    return {
        **_as_json(content.info),
        **_fields(manifest, ("loopwright", "meta", "models")),
        "files": {name: _fields(record, ("size", "sha256")) for name, record in files},
        "tensors": {file: [_fields(tensor, names) for tensor in some] for file, some in tensors},
    }

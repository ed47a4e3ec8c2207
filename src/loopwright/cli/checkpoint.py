"""`loopwright checkpoint ...`: list, verify, show, diff and export what runs have saved."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import checkpoint as checkpoints  # which imports torch only for what needs it
from ..text import counted, size
from .output import (
    FOUND,
    OK,
    RED,
    age_text,
    check_output,
    number_text,
    print_json,
    print_table,
    printable,
    styled,
)
from .selection import check_model, find_folder, find_source

SORTS = {"resume": "resume point", "kept": "kept model"}


def list_command(options: argparse.Namespace) -> int:
    _list(options, verify=options.verify)
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
        print(printable(f"There are no checkpoints in {folder} yet."))
    return found


def show_command(options: argparse.Namespace) -> int:
    content = checkpoints.describe_checkpoint(
        find_source(options.source, options.root, options.checkpoint)
    )
    if options.json:
        print_json(_content_as_json(content, with_tensors=options.tensors))
    else:
        _print_content(content, with_tensors=options.tensors)
    return OK if content.info.is_sound else FOUND


def diff_command(options: argparse.Namespace) -> int:
    first, second = (
        find_source(text, options.root, options.checkpoint)
        for text in (options.first, options.second)
    )
    diff = checkpoints.diff_checkpoints(first, second, model=options.model)
    if options.json:
        parts = {"meta": diff.meta, "state": diff.state}
        tables = {name: [_difference_as_json(d) for d in part] for name, part in parts.items()}
        tensor = None if diff.first_tensor is None else diff.first_tensor.path
        print_json(
            {
                "first": first,
                "second": second,
                "equal": diff.is_equal,
                "first_tensor": tensor,
                **tables,
            }
        )
    else:
        _print_diff(diff)
    return OK if diff.is_equal else FOUND


def export_command(options: argparse.Namespace) -> int:
    out = Path(options.out)
    check_output(out, force=options.force)

    source = find_source(options.source, options.root, options.checkpoint)
    check_model(source, options.model)
    weights = checkpoints.load_weights(source, model=options.model)  # verifies what it loads
    checkpoints.save_weights(out, weights, force=options.force)
    print(
        printable(
            f"{len(weights)} tensors of {source}, written to {out} ({size(out.stat().st_size)})."
        )
    )
    return OK


def _age(info: checkpoints.CheckpointInfo) -> float | None:
    return None if info.created is None else (datetime.now(UTC) - info.created).total_seconds()


def _verdict(info: checkpoints.CheckpointInfo) -> str:
    if info.problems:
        return "damaged"
    return "verified" if info.is_verified else "ok"


def _print_list(found: list[checkpoints.CheckpointInfo]) -> None:
    header = ["TYPE", "NAME", "EPOCH", "STEP", "UPDATE", "METRIC", "AGE", "SIZE", "STATE"]
    rows = []
    for info in found:
        counts = [number_text(info.meta.get(name)) for name in ("epoch", "step", "update")]
        metric = "-" if info.metric is None else f"{info.metric[0]} {number_text(info.metric[1])}"
        rows.append(
            [
                info.kind,
                info.name,
                *counts,
                metric,
                age_text(_age(info)),
                size(info.size),
                _verdict(info),
            ]
        )
    print_table(header, rows, right="23467")
    for info in found:
        for problem in info.problems:
            print(styled(printable(f"{info.name}: {problem}"), RED))


def _print_content(content: checkpoints.CheckpointContent, *, with_tensors: bool) -> None:
    info = content.info
    manifest = content.manifest
    print(
        printable(
            f"{info.path}: {SORTS[info.kind]}, {age_text(_age(info))} old, written by loopwright "
            f"{manifest.loopwright}"
        )
    )
    for name, value in manifest.meta.items():
        print("  " + printable(f"{name}: {value}"))
    models = {file: model for model, file in manifest.models.items()}
    rows = []
    for name, record in manifest.files.items():
        tensors = content.tensors.get(name, [])
        values = str(sum(tensor.num_values for tensor in tensors))
        counts = [str(len(tensors)), values] if name in content.tensors else ["-", "-"]
        rows.append([name, size(record.size), *counts, models.get(name, "-"), record.sha256[:12]])
    print_table(["FILE", "SIZE", "TENSORS", "VALUES", "MODEL", "SHA256"], rows, right="123")
    if with_tensors:
        _print_tensors(content)
    every = [tensor for tensors in content.tensors.values() for tensor in tensors]
    print(f"{len(every)} tensors, {size(sum(t.size for t in every))}; {size(info.size)} on disk")
    for problem in info.problems:
        print(styled(printable(problem), RED))


def _print_tensors(content: checkpoints.CheckpointContent) -> None:
    for file, tensors in content.tensors.items():
        rows = [
            [
                t.name,
                t.dtype,
                str(list(t.shape)),
                size(t.size) if t.tied_to is None else f"as {t.tied_to}",
            ]
            for t in tensors
        ]
        print()
        print_table([file, "DTYPE", "SHAPE", "BYTES"], rows, right="3")
    print()


def _print_diff(diff: checkpoints.CheckpointDiff) -> None:
    print(printable(f"first:  {diff.first}"))
    print(printable(f"second: {diff.second}"))
    if diff.is_equal:
        print("The checkpoints are identical.")
        return
    for title, part in (("meta", diff.meta), ("state", diff.state)):
        if title == "state" and diff.first_tensor is not None:
            print(
                printable(
                    f"first different tensor: {diff.first_tensor.path}: {diff.first_tensor.what}"
                )
            )
        if part:
            print(f"{title}: {counted(len(part), 'difference')}")
        for difference in part:
            print("  " + printable(f"{difference.path}: {difference.what}"))


def _as_json(info: checkpoints.CheckpointInfo) -> dict[str, Any]:
    metric = None if info.metric is None else {"name": info.metric[0], "value": info.metric[1]}
    return {
        "kind": info.kind,
        "name": info.name,
        "path": info.path,
        **{name: info.meta.get(name) for name in ("epoch", "step", "update")},
        "metric": metric,
        "created": None if info.created is None else info.created.isoformat(),
        "age_seconds": _age(info),
        "size": info.size,
        "is_sound": info.is_sound,
        "is_verified": info.is_verified,
        "problems": info.problems,
    }


def _content_as_json(
    content: checkpoints.CheckpointContent, *, with_tensors: bool
) -> dict[str, Any]:
    manifest = content.manifest
    table = {
        **_as_json(content.info),
        "loopwright": manifest.loopwright,
        "meta": manifest.meta,
        "models": manifest.models,
        "files": {name: {"size": r.size, "sha256": r.sha256} for name, r in manifest.files.items()},
        "num_tensors": sum(map(len, content.tensors.values())),
        "tensor_bytes": sum(t.size for tensors in content.tensors.values() for t in tensors),
    }
    if with_tensors:
        table["tensors"] = {
            file: [
                {
                    "name": t.name,
                    "dtype": t.dtype,
                    "shape": t.shape,
                    "size": t.size,
                    "tied_to": t.tied_to,
                }
                for t in tensors
            ]
            for file, tensors in content.tensors.items()
        }
    return table


def _difference_as_json(difference: checkpoints.Difference) -> dict[str, Any]:
    return {"path": difference.path, "what": difference.what, "max_abs": difference.max_abs}

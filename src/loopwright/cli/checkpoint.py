"""`loopwright checkpoint ...`: list, verify, show, diff and export what runs have saved."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .exits import EXIT_CODES, FOUND, OK
from .output import RED, age_text, number_text, print_json, print_table, printable, size_text, styled

if TYPE_CHECKING:
    from ..checkpoint import CheckpointContent, CheckpointDiff, CheckpointInfo, Difference


RUN = "a run directory, a folder of checkpoints, or one checkpoint"
ONE = "a checkpoint, or a run: then its newest sound resume point"


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the group and its commands."""
    group = parsers.add_parser(
        "checkpoint",
        help="list, verify, show, compare and export checkpoints",
        description="Look at checkpoints and export their weights. Nothing in a checkpoint is ever executed.",
        epilog=f"example: loopwright checkpoint verify runs/digits\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    members = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_list, _add_verify, _add_show, _add_diff, _add_export):
        add(_Group(members, common))


class _Group:
    """Adds commands to the group, each with an example and the shared options."""

    def __init__(self, members: Any, common: argparse.ArgumentParser) -> None:
        self._members = members
        self._common = common

    def add(self, name: str, run: Any, *, what: str, more: str, example: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = self._members.add_parser(
            name,
            help=what[0].lower() + what[1:].rstrip("."),
            description=f"{what}\n{more}",
            epilog=f"example: loopwright checkpoint {example}\n\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[self._common],
        )
        parser.set_defaults(run=run)
        return parser


def _add_list(group: _Group) -> None:
    parser = group.add(
        "list",
        list_command,
        what="List the resume points and kept models of a run.",
        more="Each with its epoch, step, update and metric, its age, its size and whether it is sound.",
        example="list runs/digits",
    )
    parser.add_argument("run_directory", metavar="RUN", help=RUN)
    parser.add_argument("--verify", action="store_true", help="compare hashes too, not only sizes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_verify(group: _Group) -> None:
    parser = group.add(
        "verify",
        verify_command,
        what="Compare every file of every checkpoint with its hash.",
        more="Exit code 1: something is damaged, or there is nothing to verify.",
        example="verify runs/digits",
    )
    parser.add_argument("run_directory", metavar="RUN", help=RUN)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_show(group: _Group) -> None:
    parser = group.add(
        "show",
        show_command,
        what="Show what a checkpoint holds.",
        more="Its metadata, files, models and, on request, tensors. Exit code 1: a file is missing or damaged.",
        example="show runs/digits/checkpoints/update-00000690 --tensors",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=ONE)
    parser.add_argument("--tensors", action="store_true", help="name every tensor, with type, shape and bytes")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_diff(group: _Group) -> None:
    parser = group.add(
        "diff",
        diff_command,
        what="Show where two checkpoints differ, bit for bit.",
        more="First the metadata, then every tensor and value; the time that training took is not compared.\n"
        "Exit code 1: they differ.",
        example="diff runs/first runs/second",
    )
    for name in ("first", "second"):
        parser.add_argument(name, metavar=name.upper(), help=f"{ONE}; or a .safetensors or .pt file of weights")
    parser.add_argument("--model", metavar="NAME", help="compare only the weights of this model")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_export(group: _Group) -> None:
    parser = group.add(
        "export",
        export_command,
        what="Write a model's weights to a file of their own.",
        more="As plain safetensors, or as torch writes them where OUT ends in .pt, .pth or .bin.",
        example="export runs/digits/kept/update-00000690 digits.safetensors",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=f"{ONE}; or a file of weights to convert")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument("--model", metavar="NAME", help="which model, where the checkpoint holds several")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")


def list_command(options: argparse.Namespace) -> int:
    from ..checkpoint import list_checkpoints

    found = list_checkpoints(options.run_directory, verify=options.verify)
    if options.json:
        print_json([_as_json(info) for info in found])
    elif found:
        _print_list(found)
    else:
        print(f"No checkpoints in {printable(options.run_directory)} yet.")
    return OK


def verify_command(options: argparse.Namespace) -> int:
    from ..checkpoint import list_checkpoints

    found = list_checkpoints(options.run_directory, verify=True)
    if options.json:
        print_json([_as_json(info) for info in found])
    for info in found if not options.json else ():
        _print_verdict(info)
    if not found and not options.json:
        print(f"No checkpoints in {printable(options.run_directory)}.")
    return OK if found and all(info.is_sound for info in found) else FOUND


def show_command(options: argparse.Namespace) -> int:
    from ..checkpoint import describe_checkpoint

    content = describe_checkpoint(options.checkpoint)
    if options.json:
        print_json(_content_as_json(content, with_tensors=options.tensors))
    else:
        _print_content(content, with_tensors=options.tensors)
    return OK if content.info.is_sound else FOUND


def diff_command(options: argparse.Namespace) -> int:
    from ..checkpoint import diff_checkpoints

    diff = diff_checkpoints(options.first, options.second, model=options.model)
    if options.json:
        parts = {"meta": diff.meta, "state": diff.state}
        tables = {name: [_difference_as_json(d) for d in part] for name, part in parts.items()}
        first = None if diff.first_tensor is None else diff.first_tensor.path
        print_json(
            {"first": diff.first, "second": diff.second, "equal": diff.is_equal, "first_tensor": first, **tables}
        )
    else:
        _print_diff(diff)
    return OK if diff.is_equal else FOUND


def export_command(options: argparse.Namespace) -> int:
    source, out = Path(options.checkpoint), Path(options.out)
    if out.exists() and not options.force:
        raise ConfigurationError(f"{out} is there already: choose another name, or pass --force to replace it.")
    from ..checkpoint import find_checkpoint, load_weights, save_weights
    from ..checkpoint.inspect import is_checkpoint

    if source.is_dir() and not is_checkpoint(source):
        source = find_checkpoint(source)
    weights = load_weights(source, model=options.model)  # verifies what it loads
    save_weights(out, weights, force=options.force)
    print(printable(f"{len(weights)} tensors from {source} written to {out} ({size_text(out.stat().st_size)})."))
    return OK


def _age(info: CheckpointInfo) -> float | None:
    return None if info.created is None else (datetime.now(UTC) - info.created).total_seconds()


def _verdict(info: CheckpointInfo) -> str:
    if info.problems:
        return "damaged"
    return "verified" if info.is_verified else "ok"


def _print_list(found: list[CheckpointInfo]) -> None:
    header = ["KIND", "NAME", "EPOCH", "STEP", "UPDATE", "METRIC", "AGE", "SIZE", "STATE"]
    rows = []
    for info in found:
        counts = [number_text(info.meta.get(name)) for name in ("epoch", "step", "update")]
        metric = "-" if info.metric is None else f"{info.metric[0]} {number_text(info.metric[1])}"
        rows.append([info.kind, info.name, *counts, metric, age_text(_age(info)), size_text(info.size), _verdict(info)])
    print_table(header, rows, right="23467")
    for info in found:
        for problem in info.problems:
            print(styled(printable(f"{info.name}: {problem}"), RED))


def _print_verdict(info: CheckpointInfo) -> None:
    line = printable(f"{_verdict(info):8}  {info.kind:6}  {info.name}  {size_text(info.size)}")
    problems = printable("; ".join(info.problems))
    print(styled(f"{line}: {problems}", RED) if problems else line)


def _print_content(content: CheckpointContent, *, with_tensors: bool) -> None:
    info, manifest = content.info, content.manifest
    print(
        printable(f"{info.path}: {info.kind}, {age_text(_age(info))} old, written by loopwright {manifest.loopwright}")
    )
    for name, value in manifest.meta.items():
        print("  " + printable(f"{name}: {value}"))
    models = {file: model for model, file in manifest.models.items()}
    rows = []
    for name, record in manifest.files.items():
        tensors = content.tensors.get(name, [])
        values = str(sum(tensor.num_values for tensor in tensors))
        counts = [str(len(tensors)), values] if name in content.tensors else ["-", "-"]
        rows.append([name, size_text(record.size), *counts, models.get(name, "-"), record.sha256[:12]])
    print_table(["FILE", "SIZE", "TENSORS", "VALUES", "MODEL", "SHA256"], rows, right="123")
    if with_tensors:
        _print_tensors(content)
    every = [tensor for tensors in content.tensors.values() for tensor in tensors]
    print(f"{len(every)} tensors, {size_text(sum(t.size for t in every))}; {size_text(info.size)} on disk")
    for problem in info.problems:
        print(styled(printable(problem), RED))


def _print_tensors(content: CheckpointContent) -> None:
    for file, tensors in content.tensors.items():
        rows = [
            [t.name, t.dtype, str(list(t.shape)), size_text(t.size) if t.tied_to is None else f"as {t.tied_to}"]
            for t in tensors
        ]
        print()
        print_table([file, "DTYPE", "SHAPE", "BYTES"], rows, right="3")
    print()


def _print_diff(diff: CheckpointDiff) -> None:
    print(printable(f"first:  {diff.first}"))
    print(printable(f"second: {diff.second}"))
    if diff.is_equal:
        print("They are the same.")
        return
    for title, part in (("meta", diff.meta), ("state", diff.state)):
        if title == "state" and diff.first_tensor is not None:
            print(printable(f"First tensor that differs: {diff.first_tensor.path}: {diff.first_tensor.what}"))
        if part:
            print(f"{title}: {len(part)} {'difference' if len(part) == 1 else 'differences'}")
        for difference in part:
            print("  " + printable(f"{difference.path}: {difference.what}"))


def _as_json(info: CheckpointInfo) -> dict[str, Any]:
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


def _content_as_json(content: CheckpointContent, *, with_tensors: bool) -> dict[str, Any]:
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
                {"name": t.name, "dtype": t.dtype, "shape": t.shape, "size": t.size, "tied_to": t.tied_to}
                for t in tensors
            ]
            for file, tensors in content.tensors.items()
        }
    return table


def _difference_as_json(difference: Difference) -> dict[str, Any]:
    return {"path": difference.path, "what": difference.what, "max_abs": difference.max_abs}

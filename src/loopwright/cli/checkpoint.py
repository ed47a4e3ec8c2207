"""`loopwright checkpoint ...`: list, verify, show, diff and export what runs have saved."""

from __future__ import annotations

import argparse
from typing import Any

from . import checkpoint_commands as commands
from .exits import EXIT_CODES

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
    """Where commands are added, each with an example and the shared options."""

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
        commands.list_command,
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
        commands.verify_command,
        what="Compare every file of every checkpoint with its hash.",
        more="Exit code 1: something is damaged, or there is nothing to verify.",
        example="verify runs/digits",
    )
    parser.add_argument("run_directory", metavar="RUN", help=RUN)


def _add_show(group: _Group) -> None:
    parser = group.add(
        "show",
        commands.show_command,
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
        commands.diff_command,
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
        commands.export_command,
        what="Write a model's weights to a file of their own.",
        more="As plain safetensors, or as torch writes them where OUT ends in .pt, .pth or .bin.",
        example="export runs/digits/kept/update-00000690 digits.safetensors",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=f"{ONE}; or a file of weights to convert")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument("--model", metavar="NAME", help="which model, where the checkpoint holds several")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")

"""Programs with the real packages, each in a process of its own, and readers of what they wrote."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline file of wandb: a log of blocks, in which a record may be in several
    pieces."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, pieces = 7, b""
    while at < len(content):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        pieces += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record


def wandb_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an offline file, each with its step."""
    rows = []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {
                ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items
            }
            rows.append(row | {"_step": record.history.step.num})
    return rows

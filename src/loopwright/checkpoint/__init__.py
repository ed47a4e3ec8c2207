"""Checkpoints that are complete or absent: written, verified, found and pruned; nothing executes on
load.

Names are imported when first used: looking at a directory of checkpoints does without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .atomic import new_token
    from .compare import Difference, diff_checkpoints
    from .encoding import decode, encode
    from .format import Checkpoint, read_checkpoint, write_checkpoint
    from .inspect import (
        CheckpointContent,
        CheckpointInfo,
        describe_checkpoint,
        find_checkpoint,
        list_checkpoints,
    )
    from .layout import TensorInfo, read_header
    from .manifest import Manifest, read_manifest, verify_checkpoint
    from .policy import Candidate, KeepPolicy, ResumePolicy
    from .sharded import Group, TensorShard, load_stored, place_like, restore_into
    from .store import CheckpointStore, KeptModel, KeptModels, update_name
    from .tensors import StoredTensor, Tree
    from .weights import load_weights, save_weights
    from .writer import AsyncWriter, SnapshotBuffers, snapshot

__all__ = [
    "AsyncWriter",
    "Candidate",
    "Checkpoint",
    "CheckpointContent",
    "CheckpointInfo",
    "CheckpointStore",
    "Difference",
    "Group",
    "KeepPolicy",
    "KeptModel",
    "KeptModels",
    "Manifest",
    "ResumePolicy",
    "SnapshotBuffers",
    "StoredTensor",
    "TensorInfo",
    "TensorShard",
    "Tree",
    "decode",
    "describe_checkpoint",
    "diff_checkpoints",
    "encode",
    "find_checkpoint",
    "list_checkpoints",
    "load_stored",
    "load_weights",
    "new_token",
    "place_like",
    "read_checkpoint",
    "read_header",
    "read_manifest",
    "restore_into",
    "save_weights",
    "snapshot",
    "update_name",
    "verify_checkpoint",
    "write_checkpoint",
]

_HOMES = {
    "AsyncWriter": "writer",
    "Candidate": "policy",
    "Checkpoint": "format",
    "CheckpointContent": "inspect",
    "CheckpointInfo": "inspect",
    "CheckpointStore": "store",
    "Difference": "compare",
    "Group": "sharded",
    "KeepPolicy": "policy",
    "KeptModel": "store",
    "KeptModels": "store",
    "Manifest": "manifest",
    "ResumePolicy": "policy",
    "SnapshotBuffers": "writer",
    "StoredTensor": "tensors",
    "TensorInfo": "layout",
    "TensorShard": "sharded",
    "Tree": "tensors",
    "decode": "encoding",
    "describe_checkpoint": "inspect",
    "diff_checkpoints": "compare",
    "encode": "encoding",
    "find_checkpoint": "inspect",
    "list_checkpoints": "inspect",
    "load_stored": "sharded",
    "load_weights": "weights",
    "new_token": "atomic",
    "place_like": "sharded",
    "read_checkpoint": "format",
    "read_header": "layout",
    "read_manifest": "manifest",
    "restore_into": "sharded",
    "save_weights": "weights",
    "snapshot": "writer",
    "update_name": "store",
    "verify_checkpoint": "manifest",
    "write_checkpoint": "format",
}

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES)

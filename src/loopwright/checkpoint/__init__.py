"""Checkpoints that are complete or absent: written, verified, found and pruned; nothing executes on load.

Names are imported when first used: looking at a directory of checkpoints does without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from loopwright.checkpoint.atomic import new_token
    from loopwright.checkpoint.compare import CheckpointDiff, Difference, diff_checkpoints
    from loopwright.checkpoint.decoding import decode
    from loopwright.checkpoint.encoding import encode
    from loopwright.checkpoint.files import Checkpoint, read_checkpoint, write_checkpoint
    from loopwright.checkpoint.headers import TensorInfo, read_header
    from loopwright.checkpoint.inspect import (
        CheckpointContent,
        CheckpointInfo,
        describe_checkpoint,
        find_checkpoint,
        list_checkpoints,
    )
    from loopwright.checkpoint.kept import KeptModel, KeptModels
    from loopwright.checkpoint.manifest import Manifest, read_manifest, verify_checkpoint
    from loopwright.checkpoint.pieces import Group, Piece
    from loopwright.checkpoint.placing import load_stored, place_like, restore_into
    from loopwright.checkpoint.policy import Candidate, KeepPolicy, ResumePolicy
    from loopwright.checkpoint.snapshots import SnapshotBuffers, snapshot
    from loopwright.checkpoint.store import CheckpointStore, Entry, update_name
    from loopwright.checkpoint.stored import StoredTensor
    from loopwright.checkpoint.tree import Tree
    from loopwright.checkpoint.weights import load_weights, save_weights
    from loopwright.checkpoint.writer import AsyncWriter

__all__ = [
    "AsyncWriter",
    "Candidate",
    "Checkpoint",
    "CheckpointContent",
    "CheckpointDiff",
    "CheckpointInfo",
    "CheckpointStore",
    "Difference",
    "Entry",
    "Group",
    "KeepPolicy",
    "KeptModel",
    "KeptModels",
    "Manifest",
    "Piece",
    "ResumePolicy",
    "SnapshotBuffers",
    "StoredTensor",
    "TensorInfo",
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
    "Checkpoint": "files",
    "CheckpointContent": "inspect",
    "CheckpointDiff": "compare",
    "CheckpointInfo": "inspect",
    "CheckpointStore": "store",
    "Difference": "compare",
    "Entry": "store",
    "Group": "pieces",
    "KeepPolicy": "policy",
    "KeptModel": "kept",
    "KeptModels": "kept",
    "Manifest": "manifest",
    "Piece": "pieces",
    "ResumePolicy": "policy",
    "SnapshotBuffers": "snapshots",
    "StoredTensor": "stored",
    "TensorInfo": "headers",
    "Tree": "tree",
    "decode": "decoding",
    "describe_checkpoint": "inspect",
    "diff_checkpoints": "compare",
    "encode": "encoding",
    "find_checkpoint": "inspect",
    "list_checkpoints": "inspect",
    "load_stored": "placing",
    "load_weights": "weights",
    "new_token": "atomic",
    "place_like": "placing",
    "read_checkpoint": "files",
    "read_header": "headers",
    "read_manifest": "manifest",
    "restore_into": "placing",
    "save_weights": "weights",
    "snapshot": "snapshots",
    "update_name": "store",
    "verify_checkpoint": "manifest",
    "write_checkpoint": "files",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)

"""Checkpoints that are complete or absent: written, verified, found and pruned; nothing executes on load.

Names are imported when first used: looking at a directory of checkpoints does without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .atomic import new_token
    from .compare import CheckpointDiff, Difference, diff_checkpoints
    from .decoding import decode
    from .encoding import encode
    from .files import Checkpoint, read_checkpoint, write_checkpoint
    from .headers import TensorInfo, read_header
    from .inspect import CheckpointContent, CheckpointInfo, describe_checkpoint, find_checkpoint, list_checkpoints
    from .kept import KeptModel, KeptModels
    from .manifest import Manifest, read_manifest, verify_checkpoint
    from .pieces import Group, Piece
    from .policy import Candidate, KeepPolicy, ResumePolicy
    from .sharded import load_stored, place_like, restore_into
    from .store import CheckpointStore, Entry, update_name
    from .stored import StoredTensor
    from .tree import Tree
    from .weights import load_weights, save_weights
    from .writer import AsyncWriter, SnapshotBuffers, snapshot

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
    "SnapshotBuffers": "writer",
    "StoredTensor": "stored",
    "TensorInfo": "headers",
    "Tree": "tree",
    "decode": "decoding",
    "describe_checkpoint": "inspect",
    "diff_checkpoints": "compare",
    "encode": "encoding",
    "find_checkpoint": "inspect",
    "list_checkpoints": "inspect",
    "load_stored": "sharded",
    "load_weights": "weights",
    "new_token": "atomic",
    "place_like": "sharded",
    "read_checkpoint": "files",
    "read_header": "headers",
    "read_manifest": "manifest",
    "restore_into": "sharded",
    "save_weights": "weights",
    "snapshot": "writer",
    "update_name": "store",
    "verify_checkpoint": "manifest",
    "write_checkpoint": "files",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)

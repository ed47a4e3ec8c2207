"""Checkpoints that are complete or absent: written, verified, found and pruned; nothing executes on load."""

from loopwright.checkpoint.decoding import decode as decode
from loopwright.checkpoint.encoding import encode as encode
from loopwright.checkpoint.files import Checkpoint, read_checkpoint, write_checkpoint
from loopwright.checkpoint.kept import KeptModel, KeptModels
from loopwright.checkpoint.manifest import Manifest, read_manifest, verify_checkpoint
from loopwright.checkpoint.policy import Candidate, KeepPolicy, ResumePolicy
from loopwright.checkpoint.snapshot import SnapshotBuffers, snapshot
from loopwright.checkpoint.store import CheckpointStore, Entry, update_name
from loopwright.checkpoint.tree import Tree
from loopwright.checkpoint.weights import load_weights, save_weights
from loopwright.checkpoint.writer import AsyncWriter

__all__ = [
    "AsyncWriter",
    "Candidate",
    "Checkpoint",
    "CheckpointStore",
    "Entry",
    "KeepPolicy",
    "KeptModel",
    "KeptModels",
    "Manifest",
    "ResumePolicy",
    "SnapshotBuffers",
    "Tree",
    "decode",
    "encode",
    "load_weights",
    "read_checkpoint",
    "read_manifest",
    "save_weights",
    "snapshot",
    "update_name",
    "verify_checkpoint",
    "write_checkpoint",
]

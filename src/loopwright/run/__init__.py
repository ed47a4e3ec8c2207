"""The run directory: its layout and lock, its manifest, and the store of its metrics."""

from loopwright.run.directory import RunDirectory
from loopwright.run.manifest import RunManifest, update_manifest
from loopwright.run.metrics import EpochRow, MetricsStore, StepRow

__all__ = ["EpochRow", "MetricsStore", "RunDirectory", "RunManifest", "StepRow", "update_manifest"]

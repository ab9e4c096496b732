"""Checkpoints: heads and partition images as bytes, reading them on first use, writing new ones."""

from sarpstore._checkpoint.due import checkpoint_due, replay_ms, slowness
from sarpstore._checkpoint.head import CheckpointHead, NamespaceEntry
from sarpstore._checkpoint.loader import PartitionLoader, steps_by_partition
from sarpstore._checkpoint.writer import Checkpointer, named_slots

__all__ = [
    "CheckpointHead",
    "Checkpointer",
    "NamespaceEntry",
    "PartitionLoader",
    "checkpoint_due",
    "named_slots",
    "replay_ms",
    "slowness",
    "steps_by_partition",
]

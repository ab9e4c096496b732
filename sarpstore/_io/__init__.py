"""I/O off the event loop: a scheduler that batches, coalesces and bounds reads, and the backends that do them."""

from __future__ import annotations

from sarpstore._io.backend import Backend, CallJob, Job, ReadJob
from sarpstore._io.scheduler import BACKGROUND, MATCHING, Scheduler
from sarpstore._io.threads import ThreadBackend

__all__ = ["BACKGROUND", "MATCHING", "Backend", "CallJob", "Job", "ReadJob", "Scheduler", "ThreadBackend"]

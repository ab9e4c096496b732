"""I/O off the event loop: a scheduler that batches, coalesces and bounds reads, and the backends that do them."""

from __future__ import annotations

from sarpstore._io.backend import Backend, CallJob
from sarpstore._io.choice import choose_backend
from sarpstore._io.scheduler import BACKGROUND, MATCHING, Scheduler, Ticket
from sarpstore._io.table import ReadTable
from sarpstore._io.threads import ThreadBackend
from sarpstore._io.together import together
from sarpstore._io.turns import Turns, give_way
from sarpstore._io.uring import UringBackend

__all__ = [
    "BACKGROUND",
    "MATCHING",
    "Backend",
    "CallJob",
    "ReadTable",
    "Scheduler",
    "ThreadBackend",
    "Ticket",
    "Turns",
    "UringBackend",
    "choose_backend",
    "give_way",
    "together",
]

"""Eviction: which records go when the disk's bound is near. The policy is pure; the mechanism touches memory alone.

    insertions ──► bytes written ──► ticks: all levels sink          matches lift what they find (in the kernel)
    pressure ──► bytes to free ──► bytes by level ──► threshold ──► a sweep takes out what is below it

What goes is dead in its log file; compaction makes disk space of that.
"""

from sarpstore._eviction.evictor import Evictor
from sarpstore._eviction.policy import TICKS, boundary_file, boundary_level, boundary_offset, ticks_due

__all__ = ["TICKS", "Evictor", "boundary_file", "boundary_level", "boundary_offset", "ticks_due"]

"""The routing directory: which segment record, read once, tells how far a window of a query is held. No I/O."""

from sarpstore._directory.divergence import DIRTY, LOADED, DivergenceDirectory
from sarpstore._directory.interface import Cursor, Directory
from sarpstore._directory.postings import PostingsDirectory
from sarpstore._directory.recency import LEVELS, Evicted, Recency, Threshold

__all__ = [
    "DIRTY",
    "LEVELS",
    "LOADED",
    "Cursor",
    "Directory",
    "DivergenceDirectory",
    "Evicted",
    "PostingsDirectory",
    "Recency",
    "Threshold",
]

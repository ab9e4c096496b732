"""The routing directory: which segment record, read once, tells how far a window of a query is held. No I/O."""

from sarpstore._directory.divergence import DIRTY, LOADED, DivergenceDirectory
from sarpstore._directory.interface import Cursor, Directory
from sarpstore._directory.postings import PostingsDirectory

__all__ = ["DIRTY", "LOADED", "Cursor", "Directory", "DivergenceDirectory", "PostingsDirectory"]

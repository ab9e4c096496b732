"""The routing directory: which segment record, read once, tells how far a window of a query is held. No I/O."""

from sarpstore._directory.divergence import DIRTY, LOADED, DivergenceDirectory

__all__ = ["DIRTY", "LOADED", "DivergenceDirectory"]

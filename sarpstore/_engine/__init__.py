"""The engine: the Store facade over directory, log, checkpoints and recovery."""

from sarpstore._engine.namespace import Namespace
from sarpstore._engine.results import Match, PublishedStats, Stats, published_stats
from sarpstore._engine.store import Store, open_store

__all__ = ["Match", "Namespace", "PublishedStats", "Stats", "Store", "open_store", "published_stats"]

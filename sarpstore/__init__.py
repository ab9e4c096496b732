"""sarpstore: the KV-cache index that does not die.

An embedded asyncio storage engine. It answers which already computed KV-cache blocks match a request's token prefix
and where they live, keeps that on NVMe in files that are only ever appended to, and answers again milliseconds after
a crash.

    async with sarpstore.open("/nvme/kvindex") as store:
        llama = store.namespace("llama-2-7b")
        await llama.insert(tokens, locations)
        match = await llama.match(tokens)
"""

from sarpstore._chunks.layout import KVLayout, LinearScaling, Llama3Scaling, Rope, YarnScaling
from sarpstore._chunks.opening import open_chunks
from sarpstore._chunks.plan import Plan as ChunkPlan
from sarpstore._chunks.plan import Span as ChunkSpan
from sarpstore._chunks.policy import ChunkPolicy
from sarpstore._chunks.policy import Evicted as ChunkEvicted
from sarpstore._chunks.policy import Placed as ChunkPlaced
from sarpstore._chunks.rotation import rotate, rotate_keys
from sarpstore._chunks.stats import ChunkStats, PublishedChunkStats, published_chunk_stats
from sarpstore._chunks.store import Chunks
from sarpstore._engine import Match, Namespace, PublishedStats, Stats, Store, published_stats
from sarpstore._engine import open_store as open  # noqa: A004 - `sarpstore.open` is how it reads
from sarpstore._errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    FailedError,
    ForkedError,
    InputError,
    LimitError,
    LockedError,
    MismatchError,
    NamespaceError,
    NotAStoreError,
    OpenError,
    OptionError,
    ReadOnlyError,
    SarpError,
    StorageError,
    UsageError,
    VersionError,
    WrongLoopError,
)
from sarpstore._options import LOCATION, Options

__version__ = "0.1.0"

__all__ = [
    "LOCATION",
    "ChunkEvicted",
    "ChunkPlaced",
    "ChunkPlan",
    "ChunkPolicy",
    "ChunkSpan",
    "ChunkStats",
    "Chunks",
    "ClosedError",
    "CorruptionError",
    "DiskFullError",
    "FailedError",
    "ForkedError",
    "InputError",
    "KVLayout",
    "LimitError",
    "LinearScaling",
    "Llama3Scaling",
    "LockedError",
    "Match",
    "MismatchError",
    "Namespace",
    "NamespaceError",
    "NotAStoreError",
    "OpenError",
    "OptionError",
    "Options",
    "PublishedChunkStats",
    "PublishedStats",
    "ReadOnlyError",
    "Rope",
    "SarpError",
    "Stats",
    "StorageError",
    "Store",
    "UsageError",
    "VersionError",
    "WrongLoopError",
    "YarnScaling",
    "open",
    "open_chunks",
    "published_chunk_stats",
    "published_stats",
    "rotate",
    "rotate_keys",
]

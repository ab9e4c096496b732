"""The Namespace facade: matching and inserting sequences of one namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sarpstore._blocks import (
    as_ids,
    as_locations,
    as_tokens,
    canonical_root,
    ids_in_turns,
    locations_in_turns,
    tokens_in_turns,
)
from sarpstore._engine.queries import Key, Sequenced
from sarpstore._errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from sarpstore._engine.core import Core
    from sarpstore._engine.results import Match

__all__ = ["Namespace"]

# The store's own ids, and an engine's of the same length, are one scheme.
_NATIVE_KEY_BYTES: Final = 16
_BYTE: Final = np.dtype(np.uint8)
_NAME_BYTES_MAX: Final = 1024


class Namespace:
    """What must never mix with others: model, tokenizer, dtype, adapter, tenant. Made by `Store.namespace`.

    Tokens are anything that numpy reads as integers, or little-endian u32 bytes; only whole blocks count. Ids are
    (blocks, 16) uint8, or an engine's keys: equally long bytes, or 64-bit integers. All calls speak of one `holder`.
    Arrays may be changed as soon as a call has begun; a list must stay as it is until the call returns.
    """

    __slots__ = ("_core", "_key", "_root")

    def __init__(self, core: Core, name: str, adapter: str, salt: bytes) -> None:
        if not isinstance(name, str) or not isinstance(adapter, str) or not isinstance(salt, bytes):
            raise InputError("namespace: name and adapter are str, salt is bytes")
        _check_text("name", name)
        _check_text("adapter", adapter)
        self._core = core
        self._root = canonical_root(core.state.shape.hash, name, adapter, salt)
        self._key = Key(int.from_bytes(self._root[:8], "little"), name, adapter)

    @property
    def name(self) -> str:
        return self._key.name

    @property
    def name_space(self) -> int:
        """The 64 bits that its records carry."""
        return self._key.name_space

    @property
    def adapter(self) -> str:
        return self._key.adapter

    async def match(self, tokens: Any, *, locations: bool = True, holder: int = 0) -> Match:
        """How many of the tokens' leading blocks are held, with their ids and, unless told otherwise, locations.

        After damage, fewer blocks may have a location than a match without locations claims: those that can be located
        are returned, and inserting the others again mends it. InputError for tokens that are none; UsageError for a
        store that can't be called from here.
        """
        self._core.check()
        return await self._core.match_one(await self.hashed(tokens), locations=locations, holder=holder)

    async def match_ids(self, ids: Any, *, locations: bool = True, holder: int = 0) -> Match:
        """The same for block ids that the caller has: each must name the whole prefix that ends with its block."""
        self._core.check()
        sequenced = Sequenced(self._key, *as_ids(ids)) if isinstance(ids, np.ndarray) else await self.sequenced(ids)
        return await self._core.match_one(sequenced, locations=locations, holder=holder)

    async def insert(self, tokens: Any, locations: Any, *, holder: int = 0) -> int:
        """Hold the tokens' whole blocks; `locations` has a row for each. Returns how many blocks are new.

        Blocks that are held already keep the location that they have. When the call returns, the insertion can be
        matched; how durable it is then, `durability` says. LimitError past `directory_bytes_max` or `bytes_max`;
        FailedError after a failed write. Where a call raises, nothing is in, or of thousands of blocks a prefix.
        """
        self._core.check_writable()
        locations = _kept(locations, tokens)
        values = _kept(await tokens_in_turns(tokens), locations)
        shape = self._core.state.shape
        rows = await locations_in_turns(locations, shape.location_dtype, len(values) // shape.block_tokens)
        return await self._core.insert(await self.hashed(values), rows, holder)

    async def insert_ids(self, ids: Any, locations: Any, *, holder: int = 0, counted: bool = False) -> int:
        """The same for block ids that the caller has.

        `counted`: blocks that are held already count once more, and `remove_ids` removes them only when it was called
        as often: for engines that announce a block once for each of its copies. At most `counts_max` blocks are
        remembered as counting more than one; past that the oldest count one again.
        """
        self._core.check_writable()
        dtype = self._core.state.shape.location_dtype
        if isinstance(ids, np.ndarray) and isinstance(locations, np.ndarray):
            sequenced = Sequenced(self._key, *as_ids(ids))
            rows = as_locations(locations, dtype, len(sequenced.ids))
        else:
            locations = _kept(locations, ids)
            sequenced = await self.sequenced(ids)
            rows = await locations_in_turns(locations, dtype, len(sequenced.ids))
        return await self._core.insert(sequenced, rows, holder, counted=counted)

    async def match_holders(self, tokens: Any, *, exact: bool = True) -> dict[int, Any]:
        """How many blocks each holder has of the tokens' leading ones; holders that have none are left out.

        One hashing pass, and at most one read a holder. With `exact=False` (at least, at most) of each that may have
        some, from memory alone.
        """
        self._core.check()
        sequenced = await self.hashed(tokens)
        return await self._core.match_holders(sequenced) if exact else self._core.estimate_holders(sequenced)

    async def remove_ids(self, ids: Any, *, holder: int = 0) -> int:
        """Remove these blocks, given in any order, and all that follows them, of this holder.

        When the call returns they don't match any more; how durable that is, `durability` says. A block that was
        inserted `counted` more often than it was removed only counts one less. Returns how many blocks were removed,
        held or not: no search is made for them. Where `markers_max` removals are remembered, the call waits until a
        mark pass has made room.
        """
        self._core.check_writable()
        sequenced = Sequenced(self._key, *as_ids(ids)) if isinstance(ids, np.ndarray) else await self.sequenced(ids)
        return await self._core.remove(sequenced, holder)

    async def truncate(self, tokens: Any, *, blocks: int, holder: int = 0) -> None:
        """Keep the first `blocks` blocks of a path, and remove the next one and all that follows it, of this holder.

        What leaves the path before is not concerned. Counts are not looked at.
        """
        self._core.check_writable()
        await self._core.truncate(await self.hashed(tokens), blocks, holder)

    def estimate(self, tokens: Any, *, holder: int = 0) -> tuple[int, int]:
        """(at least, at most) blocks that match, from memory alone: no I/O.

        Right as long as no record is damaged; where something of the holder was removed or has a time to live, `at
        least` is what that can't concern. Under the routing "sarp" it hardly reaches past the first window: that the
        directory has something of a later one does not say that the windows before are whole.
        """
        self._core.check()
        return self._core.estimate(Sequenced(self._key, self.block_ids(tokens), _NATIVE_KEY_BYTES), holder)

    def block_ids(self, tokens: Any) -> npt.NDArray[np.uint8]:
        """The ids (blocks, 16) of the tokens' whole blocks."""
        return self._core.hasher.hash(self._root, as_tokens(tokens))

    async def hashed(self, tokens: Any) -> Sequenced:
        """The tokens' block ids; long sequences let the event loop run in between."""
        values = await tokens_in_turns(tokens)
        hasher = self._core.hasher
        if hasher.fits_one_slice(values):
            ids = hasher.hash(self._root, values)
        else:
            # A copy: the caller may change its array meanwhile.
            ids = await hasher.hash_in_slices(self._root, values.copy())
        return Sequenced(self._key, ids, _NATIVE_KEY_BYTES)

    def borrowed(self, ids: Any) -> Sequenced | None:
        """An array of ids of 16 bytes as it is, not copied; None for anything else."""
        if type(ids) is not np.ndarray or ids.dtype is not _BYTE or ids.ndim != 2 or ids.shape[1] != _NATIVE_KEY_BYTES:
            return None
        return Sequenced(self._key, ids, _NATIVE_KEY_BYTES if len(ids) else 0)

    async def sequenced(self, ids: Any) -> Sequenced:
        """Ids that the caller has, as the engine takes them."""
        return Sequenced(self._key, *await ids_in_turns(ids))

    def belongs_to(self, core: Core) -> bool:
        """Whether it was made by the store with that core."""
        return self._core is core

    def __repr__(self) -> str:
        return f"Namespace({self.name!r}, adapter={self.adapter!r})"


def _kept(values: Any, beside: object) -> Any:
    """A copy of an array that its caller may change while a long list given with it is read in turns."""
    return values.copy() if isinstance(beside, list | tuple) and isinstance(values, np.ndarray) else values


def _check_text(label: str, text: str) -> None:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InputError(f"namespace: {label} is not valid Unicode ({error})") from None
    if length > _NAME_BYTES_MAX:
        raise InputError(f"namespace: {label} has {length:,} bytes; at most {_NAME_BYTES_MAX:,}")

"""Which payloads are kept, in which region each goes, and which region goes for them. Pure: sizes and keys, no I/O.

Space comes back by whole regions, so a payload shares its fate with its neighbours. What decides:

- **Weight.** Every lookup of a key, found or not, adds one to its weight, and weights decay by half over
  `_HALF_LIFE` lookups for each payload held. (Decay by a growing unit: what is added grows instead of all else
  shrinking, so weights of any age compare as they stand.) Keys that are not held are remembered too, a bounded number.
- **Placement.** Several regions are open. A payload goes where it fits best; only one that is larger than a region
  spans several, the others would die with either of two.
- **Eviction.** The region goes whose payloads have the least weight for its size, each counted whole. Its heaviest
  payloads may be written again, so many that all writes stay below 1.1 times what was put.
- **Admission.** When room must be made, a payload is written only if it outweighs what would go, and, in a full store,
  if its key was asked for more than once lately: most of what is asked for once is not asked for again
  (Einziger, Friedman, Manes: TinyLFU, 2017).

Of the trace that `sarpstore chunks simulate` makes (workload C, 30 GB, regions of 256 MiB), 70.6 % of tokens hit, where
least recently used has 63.4 % and writes five times as much; with payloads spanning any two regions it was 69 %, with
everything admitted 70 % at the writes of least recently used, and 57 % with the oldest region evicted first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, TypeAlias

from sarpstore._errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ChunkPolicy", "Evicted", "Extent", "Placed", "Region"]

_HALF_LIFE: Final = 64
_HELD_MIN: Final = 160
_OPEN_MAX: Final = 8
_OPEN_SHARE: Final = 1 / 8
_AGAIN_SHARE: Final = 0.07
# A payload that is as much heavier than the next region that would go, for its size, is worth being written again.
_AGAIN_WEIGHT: Final = 1.0
_FIRST_SIGHT: Final = 1.5
_REMEMBERED_MIN: Final = 4096
_REMEMBERED_EACH: Final = 8
# Of the heap of closed regions, what of it is out of date before it is made anew.
_HEAP_SHARE: Final = 4
_HEAP_MIN: Final = 64
# Weights are brought down to their order of magnitude before a float would lose them.
_UNIT_MAX: Final = 2.0**64


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of a payload: bytes of a region from `offset` on, behind the region's header."""

    region: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """A step: the region goes, with the payloads of these keys. `again`: those of them that will be placed anew."""

    region: int
    keys: tuple[bytes, ...]
    again: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A step: the payload is written to these places."""

    key: bytes
    extents: tuple[Extent, ...]
    again: bool


@dataclass(slots=True)
class Region:
    """One region; `load` is the sum of weight x size of the payloads that would go with it."""

    number: int
    used: int = 0
    load: float = 0.0
    open: bool = True
    keys: dict[bytes, None] = field(default_factory=dict)


# (size, regions). Plain tuples, since those of numbers are nothing that the garbage collector goes through: objects of
# a class, a hundred thousand of them, hold the event loop for 50 ms and more, each time that it does.
_Held: TypeAlias = tuple[int, tuple[int, ...]]


class ChunkPolicy:
    """The payloads of one store, in at most `regions_max` regions of `region_bytes` each (headers not counted).

    `admission`: whether what is put may be refused in a full store; `oldest_first`: regions go in order of age instead,
    which is there to be compared with; `next_region`: number of the first region that it begins.
    """

    def __init__(
        self,
        regions_max: int,
        region_bytes: int,
        *,
        admission: bool = True,
        oldest_first: bool = False,
        next_region: int = 1,
    ) -> None:
        if regions_max < 2 or region_bytes < 1:
            raise OptionError(f"{regions_max} regions of {region_bytes} bytes: there must be two, and of a size")
        self.regions_max = regions_max
        self.region_bytes = region_bytes
        self._admission = admission
        self._oldest_first = oldest_first
        self._open_max = max(1, min(_OPEN_MAX, int(regions_max * _OPEN_SHARE)))
        self.regions: dict[int, Region] = {}
        """By number, ascending. There may be tens of thousands: no step goes through all of them."""
        self._opened: dict[int, Region] = {}
        """Those that are open."""
        self._closed: list[tuple[float, int]] = []
        """A heap of (worth, number) of those that are not: each is worth what it says, or more by now."""
        self._held: dict[bytes, _Held] = {}
        self._weights: dict[bytes, float] = {}
        """Of keys that are held or were asked for."""
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()
        """Those of them that are not held, the one that was asked for, or went, least lately first."""
        self._unit = 1.0
        self.next_region = next_region
        """The number of the next region that begins."""
        self.put_bytes = 0
        """Bytes of payloads put since the start."""
        self.again_bytes = 0
        """Bytes of payloads written again since the start."""

    # --- lookups

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def opened(self) -> set[int]:
        """The numbers of the regions that more may be put into."""
        return set(self._opened)

    def look(self, key: bytes) -> bool:
        """A lookup: whether the payload is held. Its weight grows."""
        self._unit *= 2.0 ** (1 / (_HALF_LIFE * max(_HELD_MIN, len(self._held))))
        self._weights[key] = self._weights.get(key, 0.0) + self._unit
        held = self._held.get(key)
        if held is None:
            self._remember(key)
        else:
            size, regions = held
            for number in regions:
                self.regions[number].load += self._unit * size
        if self._unit > _UNIT_MAX:
            self._scale_down()
        return held is not None

    def weight(self, key: bytes) -> float:
        """How often the key was asked for, as of now: a lookup just now counts one."""
        return self._weights.get(key, 0.0) / self._unit

    # --- what is put

    def admits(self, key: bytes, size: int) -> bool:
        """Whether a payload of so many bytes is to be written: it may be, and is worth what would go for it."""
        if not 0 < size <= (self.regions_max - 1) * self.region_bytes:
            return False
        if not self._admission or len(self.regions) < self.regions_max:
            return True
        weight = self._weights.get(key, 0.0)
        if weight <= _FIRST_SIGHT * self._unit:
            return False
        return self._fits(size) or weight > self._density(self._victim())

    def put(self, key: bytes, size: int) -> Iterator[Evicted | Placed]:
        """The steps that put an admitted payload, each true when it is told; they must be gone through to the end."""
        waiting = deque([(key, size, False)])
        while waiting:
            key, size, again = waiting.popleft()
            if key in self._held:
                continue
            while self._wants_region(size):
                victim = self._victim()
                kept = self._evict(victim.number)
                waiting.extend((other, kept[other], True) for other in kept)
                yield Evicted(victim.number, tuple(victim.keys), tuple(kept))
            yield Placed(key, self._place(key, size, again=again), again)

    def shrink(self) -> Iterator[Evicted]:
        """The steps after which there are no more regions than there may be, as where the bound was lowered."""
        while len(self.regions) > self.regions_max:
            victim = self._victim()
            self._evict(victim.number)
            yield Evicted(victim.number, tuple(victim.keys), ())

    def _wants_region(self, size: int) -> bool:
        """Whether one more region has to go before a payload of so many bytes can be placed."""
        whole, rest = divmod(size, self.region_bytes)
        new = whole + (rest > 0 and self._best_fit(rest) is None)
        return new > 0 and len(self.regions) + new > self.regions_max

    def _victim(self) -> Region:
        """The region that would go next. There is one."""
        while self._closed:
            worth, number = self._closed[0]
            region = self.regions.get(number)
            if region is None or region.open:
                heappop(self._closed)
            elif (now := self._worth(region)) > worth:
                heapreplace(self._closed, (now, number))
            else:
                return region
        return min(self._opened.values(), key=self._worth)

    def _evict(self, number: int) -> dict[bytes, int]:
        """The region goes, with all payloads that had a piece in it; sizes of those to be written again, best first."""
        gone = self.regions.pop(number)
        self._opened.pop(number, None)
        sizes = {key: self._held[key][0] for key in gone.keys}
        for key in gone.keys:
            self._drop(key, but=number)
        again: dict[bytes, int] = {}
        if self._oldest_first or not self.regions:
            return again
        left, least = _AGAIN_SHARE * self.put_bytes - self.again_bytes, _AGAIN_WEIGHT * self._density(self._victim())
        for key in sorted(sizes, key=self.weight, reverse=True):
            if sizes[key] <= left and self._weights.get(key, 0.0) > least:
                again[key] = sizes[key]
                left -= sizes[key]
        return again

    def _place(self, key: bytes, size: int, *, again: bool) -> tuple[Extent, ...]:
        whole, rest = divmod(size, self.region_bytes)
        extents = [self._take(self._begin(), self.region_bytes) for _ in range(whole)]
        if rest:
            extents.append(self._take(self._best_fit(rest) or self._begin(), rest))
            self._close_fullest()
        self.restore(key, extents)
        if again:
            self.again_bytes += size
        else:
            self.put_bytes += size
        return tuple(extents)

    def drop(self, key: bytes) -> None:
        """The payload is not held any more; its bytes come back with their regions."""
        self._drop(key)

    # --- what was there before

    def restore(self, key: bytes, extents: Iterable[Extent], weight: float | None = None) -> None:
        """The payload stands there. `weight`: as it was told by `weight`."""
        extents = tuple(extents)
        if weight is not None:
            self._weights[key] = weight * self._unit
        size = sum(extent.bytes for extent in extents)
        self._held[key] = size, tuple(extent.region for extent in extents)
        self._ghosts.pop(key, None)
        for extent in extents:
            region = self.region(extent.region)
            region.keys[key] = None
            region.used = max(region.used, extent.offset + extent.bytes)
            region.load += self._weights.get(key, 0.0) * size

    def reopen(self, number: int, used: int) -> None:
        """More may be placed behind the first `used` bytes of a region that was restored, as far as there may be."""
        region = self.region(number)
        region.used = max(region.used, used)
        if region.used < self.region_bytes:
            region.open = True
            self._opened[number] = region
        self._close_fullest()

    def region(self, number: int) -> Region:
        """The region with that number, which is made, and closed, if it was not known."""
        if number not in self.regions:
            self._close(Region(number))
            self.next_region = max(self.next_region, number + 1)
        return self.regions[number]

    # --- inside

    def _begin(self) -> Region:
        region = self.regions[self.next_region] = self._opened[self.next_region] = Region(self.next_region)
        self.next_region += 1
        return region

    def _close(self, region: Region) -> None:
        """Nothing more is put into it."""
        region.open = False
        self.regions[region.number] = region
        self._opened.pop(region.number, None)
        self._weigh(region)

    def _weigh(self, region: Region) -> None:
        """A closed region may be worth less than before."""
        heappush(self._closed, (self._worth(region), region.number))
        if len(self._closed) > _HEAP_SHARE * len(self.regions) + _HEAP_MIN:
            self._weigh_all()

    def _weigh_all(self) -> None:
        self._closed = [(self._worth(region), number) for number, region in self.regions.items() if not region.open]
        heapify(self._closed)

    def _close_fullest(self) -> None:
        """Of more open regions than there may be."""
        if len(self._opened) > self._open_max:
            self._close(max(self._opened.values(), key=lambda region: region.used))

    def _take(self, region: Region, size: int) -> Extent:
        extent = Extent(region.number, region.used, size)
        region.used += size
        if region.used >= self.region_bytes:
            self._close(region)
        return extent

    def _best_fit(self, size: int) -> Region | None:
        fitting = [r for r in self._opened.values() if r.used + size <= self.region_bytes]
        return max(fitting, key=lambda region: region.used, default=None)

    def _fits(self, size: int) -> bool:
        return size < self.region_bytes and self._best_fit(size) is not None

    def _density(self, region: Region) -> float:
        return region.load / self.region_bytes

    def _worth(self, region: Region) -> float:
        return region.number if self._oldest_first else region.load

    def _drop(self, key: bytes, but: int = 0) -> None:
        size, regions = self._held.pop(key)
        for number in regions:
            if number != but:
                region = self.regions[number]
                del region.keys[key]
                region.load -= self._weights.get(key, 0.0) * size
                if not region.open:
                    self._weigh(region)
        self._remember(key)

    def _remember(self, key: bytes) -> None:
        """A key that is not held; those that nobody has asked for in a while are forgotten."""
        self._weights.setdefault(key, 0.0)
        self._ghosts[key] = None
        self._ghosts.move_to_end(key)
        while len(self._ghosts) > max(_REMEMBERED_MIN, _REMEMBERED_EACH * len(self._held)):
            del self._weights[self._ghosts.popitem(last=False)[0]]

    def _scale_down(self) -> None:
        for key in self._weights:
            self._weights[key] /= self._unit
        for region in self.regions.values():
            region.load = sum(self._weights.get(key, 0.0) * self._held[key][0] for key in region.keys)
        self._weigh_all()
        self._unit = 1.0

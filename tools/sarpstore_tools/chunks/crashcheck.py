"""What must and what may be in a chunk store after its writers were killed, and asking it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sarpstore_tools.chunks.crashing import DOCUMENTS, END, NEVER_PUT, QUESTION, is_right, open_store, tokens_of
from sarpstore_tools.specreader.chunk_store import verify_chunks

if TYPE_CHECKING:
    from pathlib import Path

    from sarpstore_tools.chunks.crashing import Stored

MESSAGES_MAX: Final = 3
_PAGE: Final = 4096
_EVERY_SECONDS: Final = 0.005


class Checked(msgspec.Struct, kw_only=True):
    """What a check found, in documents; `recovery_ms` runs from the open to the first plan."""

    asked: int = 0
    held: int = 0
    gone: int = 0
    """Acknowledged, and gone with a region."""
    lost: int = 0
    """Acknowledged, with all regions there, and not held."""
    wrong: int = 0
    damaged: int = 0
    faults: int = 0
    recovery_ms: float = 0.0
    messages: list[str] = []

    def say(self, message: str) -> None:
        """Keep the first few."""
        if len(self.messages) < MESSAGES_MAX:
            self.messages.append(message)


class ChunkOracle:
    """The regions of every document that must be held unless one of them is gone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._must: dict[int, list[int]] = {}
        self._tried: set[int] = set()

    def began(self, document: int) -> None:
        """It may be held from now on."""
        self._tried.add(document)

    def stored(self, message: Stored) -> None:
        """It must be held from now on, as long as these regions are there."""
        self._must[message.document] = message.regions

    async def check(self, path: Path) -> Checked:
        """Verify the files as they are, open them, and ask for all documents, and for some that were never put.

        What the specification's reader finds, the engine must find, and nothing else; a document whose regions are all
        there must be among it; what is found must be what was put.
        """
        found = Checked()
        report = verify_chunks(path)
        found.faults = len(report.faults)
        for fault in report.faults:
            found.say(f"verify: {fault.file}:{fault.offset}: {fault.code}: {fault.meaning}")
        # A region goes with its entries file, whose name goes first.
        regions, entries = ({int(each.stem, 16) for each in path.glob(f"*.{kind}")} for kind in ("region", "entries"))
        there = regions & entries
        began = time.perf_counter()
        async with open_store(path, create=False) as chunks:
            (await chunks.plan([*tokens_of(self._seed, 0), *QUESTION])).close()
            found.recovery_ms = (time.perf_counter() - began) * 1e3
            held = {}
            for document in [*range(DOCUMENTS), *NEVER_PUT]:
                if (key := await self._ask(chunks, document, report.held, found)) is not None:
                    held[document] = [extent.region for extent in report.held[key].extents]
            found.damaged = chunks.stats().damaged_payloads
        self._judge(held, there, found)
        return found

    async def _ask(self, chunks: Any, document: int, held: dict[bytes, Any], found: Checked) -> bytes | None:
        """The key of a document that is held."""
        found.asked += 1
        # What comes first moves it to elsewhere than where it was put.
        prompt = [*range(10, 10 + document % 50), END, *tokens_of(self._seed, document), *QUESTION]
        with await chunks.plan(prompt, wait_ms=0) as plan:
            span = plan.spans[1]
            kv = await chunks.load(plan)
        if span.hit != (span.key in held):
            found.wrong += 1
            found.say(f"document {document}: the engine {_has(span.hit)} it, the specification's reader does not agree")
        if not span.hit:
            return None
        found.held += 1
        if document not in self._tried or not is_right(self._seed, document, span, kv):
            found.wrong += 1
            found.say(f"document {document} is held, and what is held is not what was ever put")
        return span.key if span.key in held else None

    def _judge(self, held: dict[int, list[int]], there: set[int], found: Checked) -> None:
        for document, regions in self._must.items():
            if document not in held and there.issuperset(regions):
                found.lost += 1
                found.say(f"document {document} was acknowledged, its regions {regions} are there, and it is not held")
            elif document not in held:
                found.gone += 1
        self._must = held


def _has(hit: bool) -> str:
    return "has" if hit else "misses"


def disk_bytes(path: Path) -> int | None:
    """Bytes that the cap counts: all files but the lock, in whole pages, and one of the folder; None: they change."""

    def sizes() -> dict[str, int]:
        return {each.name: each.stat().st_size for each in path.iterdir() if each.name != "LOCK"}

    try:
        before = sizes()
        if before != sizes():
            return None
    except FileNotFoundError:
        return None
    return _PAGE + sum(-(-size // _PAGE) * _PAGE for size in before.values())


class DiskWatch(threading.Thread):
    """Looks at what the files take, again and again, until it is stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.highest = 0
        self._path = path
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        self.highest = max(self.highest, disk_bytes(self._path) or 0)

    def stop(self) -> None:
        """Look a last time, nobody writing any more."""
        self._stopped.set()
        self.join()
        self._look()

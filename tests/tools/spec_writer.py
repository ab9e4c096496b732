"""Writes small stores from `format-spec/` alone, in the plainest Python: no engine code, and none of the reader's.

`StoreWriter` is the byte level: files, records, commits, seals, checkpoints. `insert` is the divergence rule of log.md
(d, dp, parent key, superseding) over a dict of owners. `spec_writer_sarp` builds stores with posting lists on it,
`spec_writer_removals` stores of version 1.1; this module writes version 1.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096
UNIT = 64
SEGMENT, NAMESPACE, COMMIT, SEAL, SUMMARY = 1, 4, 5, 7, 8
REMOVALS = 1  # the incompatible feature of version 1.1
MASK64 = (1 << 64) - 1
LOCATIONS = json.dumps([["address", "<u8"], ["length", "<u4"], ["tier", "|u1"], ["flags", "|u1"]])


def _table() -> list[int]:
    out = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        out.append(value)
    return out


_TABLE = _table()


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


def publish(path: Path, data: bytes | bytearray) -> None:
    """Under its final name a file is complete."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def sealed(magic: bytes, rest: bytes) -> bytes:
    """Magic, CRC32C of what follows it, and that."""
    return magic + struct.pack("<I", crc32c(rest)) + rest


def fmix64(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & MASK64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & MASK64
    return h ^ h >> 33


def directory_key(secret: bytes, block: bytes, namespace: int, holder: int) -> int:
    s0, s1 = struct.unpack("<QQ", secret)
    low, high = struct.unpack("<QQ", block)
    a = low ^ s0 ^ namespace
    b = high ^ s1 ^ (holder * 0x9E3779B97F4A7C15 & MASK64)
    product = a * b
    return fmix64((product & MASK64) ^ product >> 64) >> 16


def chain(tokens: list[int], root: bytes = b"") -> list[bytes]:
    """Block ids of one-token blocks."""
    ids, digest = [], root
    for token in tokens:
        digest = hashlib.sha256(digest + struct.pack("<I", token)).digest()
        ids.append(digest[:16])
    return ids


def namespace_root(name: str, adapter: str = "", salt: bytes = b"") -> bytes:
    text = b"sarpstore namespace 1"
    for part in (name.encode(), adapter.encode(), salt):
        text += struct.pack("<I", len(part)) + part
    return hashlib.sha256(text).digest()


@dataclass
class Owner:
    """A segment record that introduced blocks."""

    position: int
    key: int
    root_key: int
    ids: list[bytes]
    d: int
    dp: int
    supersedes: int
    parent_key: int
    bits: int = 0
    namespace: int = 0
    holder: int = 0
    window: int = 0
    before: bytes = bytes(16)
    path: tuple[bytes, ...] = ()
    born: int = 0
    root_born: int = 0


@dataclass
class Placed:
    """A record of the current file, as its summary needs it."""

    position: int
    kind: int
    owner: Owner | None


class StoreWriter:
    """Builds one store. `position` arguments and results are positions of log.md; `synced` is what commits will say."""

    routing = 0
    minor, incompatible = 0, 0

    def __init__(self, path: Path, location_bytes: int = 14) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        (path / "LOCK").write_text(str(os.getpid()))
        self.uuid = hashlib.md5(b"store").digest()
        self.secret = hashlib.md5(b"secret").digest()
        self.location_bytes = location_bytes
        self.locations = LOCATIONS if location_bytes == 14 else json.dumps([["x", f"|V{location_bytes}"]])
        self.file = 0
        self.data = bytearray()
        self.pages: list[bytearray] = []
        self.room = 0
        self.crcs: list[int] = []
        self.placed: list[Placed] = []
        self.sequence = 1
        self.commits = 0
        self.end = 0
        self.synced = 0
        self.owners: dict[tuple[int, int, bytes], Owner] = {}
        self.live: dict[int, Owner] = {}
        self.names: dict[int, bytes] = {}
        self.slots: dict[int, int] = {}

    # -- files

    @property
    def log_path(self) -> Path:
        return self.path / f"{self.file:016x}.log"

    def new_file(self, previous: tuple[int, int] | None = None) -> None:
        """A new log file; `previous` is (number, end position) of the last accepted commit if it is not the last."""
        number, end = previous or (self.commits, self.end)
        self.file += 1
        self.slots[self.file] = self.file + 6
        self.commits, self.synced = number, max(self.synced, end)
        versions = 1, self.minor, 0, 0, self.incompatible
        rest = struct.pack("<HHQQQ16sQHHBBHQQQ", *versions, self.uuid, self.file, self.slots[self.file], 16, 0,
                           self.routing, self.location_bytes, number, end, self.sequence)  # fmt: skip
        rest += self.secret + struct.pack("<QII", 1_700_000_000_000, 0, len(self.locations)) + self.locations.encode()
        page = sealed(b"\x89SAL\r\n\x1a\n", rest.ljust(PAGE - 12, b"\0"))
        self.data = bytearray(page * 2)
        self.placed = []
        self.end = end
        publish(self.log_path, self.data)

    # -- records

    def next_position(self, size: int) -> int:
        """Where a record of that many bytes goes next in the open commit."""
        units = -(-size // UNIT)
        if not self.pages or self.room + units > PAGE // UNIT:
            self.pages.append(bytearray(PAGE))
            self.room = 0
        offset = len(self.data) + (len(self.pages) - 1) * PAGE + self.room * UNIT
        return self.file << 24 | offset // UNIT

    def add(self, kind: int, fields: bytes, body: bytes = b"", n: int = 0, d: int = 0, dp: int = 0,
            units: int = 1, flags: int = 0, owner: Owner | None = None) -> int:  # fmt: skip
        """Puts a record into the open commit and returns its position."""
        length = 64 * units + len(body)
        position = self.next_position(length)
        offset = (position & 0xFFFFFF) * UNIT
        seed = self.uuid + struct.pack("<QQ", self.file, offset)
        head = struct.pack("<HBBBBBBQQ", length, kind, flags, n, d, dp, units, self.sequence, self.commits + 1)
        head = (struct.pack("<I", crc32c(seed + body)) + head + fields).ljust(64 * units - 4, b"\0")
        crc = crc32c(seed + head)
        at = self.room * UNIT
        self.pages[-1][at : at + length] = struct.pack("<I", crc) + head + body
        self.room += -(-length // UNIT)
        if kind != COMMIT:
            self.crcs.append(crc)
        self.sequence += 1
        self.placed.append(Placed(position, kind, owner))
        return position

    def commit(self, synced: int | None = None, flags: int = 0) -> int:
        """Ends and writes the open commit; returns its end position."""
        self.next_position(64)
        synced = self.synced if synced is None else synced
        checksum = crc32c(b"".join(struct.pack("<I", crc) for crc in self.crcs))
        self.add(COMMIT, struct.pack("<IIIIQ", len(self.pages), len(self.crcs), checksum, flags, synced))
        pages = b"".join(self.pages)
        self.data += pages
        with self.log_path.open("ab", buffering=0) as file:
            # In two writes, so that a reader of a live store sees half a commit now and then.
            file.write(pages[:1000])
            file.write(pages[1000:])
        self.pages, self.crcs, self.room = [], [], 0
        self.commits += 1
        self.end = self.file << 24 | len(self.data) // UNIT
        return self.end

    def mark(self) -> int:
        """A commit that only says that all before it is synced."""
        self.synced = self.end
        return self.commit(flags=1)

    def seal(self, closed: bool = False) -> int:
        """The sealing commit of the current file."""
        entries = [entry for one in self.placed if one.kind != COMMIT for entry in self.summary_entries(one)]
        groups = [entries[at : at + 126] for at in range(0, len(entries), 126)]
        first = self.file << 24 | len(self.data) // UNIT
        for group in groups:
            self.room = 64  # one a page
            self.add(SUMMARY, bytes(32), b"".join(group), n=len(group))
        self.room = 64
        self.synced = max(self.synced, self.end)
        self.add(SEAL, struct.pack("<IIQ", len(groups), len(entries), first))
        return self.commit(flags=2 if closed else 0)

    def summary_entries(self, one: Placed) -> list[bytes]:
        """What the summary says of a record."""
        units = one.position & 0xFFFFFF
        if one.owner is None:
            return [struct.pack("<QQQII", 0, one.kind << 56, 0, units, 0)]
        word0 = one.owner.key | len(one.owner.ids) << 48 | one.owner.d << 56
        word1 = one.owner.root_key | one.owner.dp << 48 | one.kind << 56
        return [struct.pack("<QQQII", word0, word1, one.owner.supersedes, units, 0)]

    def name(self, name: str, adapter: str = "") -> int:
        """A namespace record; returns the namespace. The empty one has a record like others."""
        number = int.from_bytes(namespace_root(name, adapter)[:8], "little") if name or adapter else 0
        head = struct.pack("<IHH", 16, len(name.encode()), len(adapter.encode()))
        self.add(NAMESPACE, head + struct.pack("<Q", number), name.encode() + adapter.encode())
        self.names[number] = struct.pack("<Q", number) + head + name.encode() + adapter.encode()
        return number

    # -- inserting

    def insert(self, ids: list[bytes], namespace: int = 0, holder: int = 0) -> list[int]:
        """Inserts a path of block ids as log.md says; returns the positions of its segment records."""
        positions = []
        if namespace == 0 and 0 not in self.names:
            self.name("")
        for window in range(-(-len(ids) // 64)):
            piece = ids[64 * window : 64 * window + 64]
            missing = next((at for at, one in enumerate(piece) if (holder, namespace, one) not in self.owners), None)
            if missing is not None:
                before = ids[64 * window - 1] if window else bytes(16)
                owner = Owner(
                    0, 0, 0, piece, 0, 0, 0, 0, 0, namespace, holder, window, before, tuple(ids[: 64 * window])
                )
                positions.append(self._insert(owner, missing))
        return positions

    def _insert(self, owner: Owner, first: int) -> int:
        """Enters what is held up to the offset `first` of its window."""
        piece, window, before, namespace, holder = owner.ids, owner.window, owner.before, owner.namespace, owner.holder
        parent = self.owners[holder, namespace, before] if window else None
        left = self.owners[holder, namespace, piece[first - 1]] if first else None
        d, dp, supersedes = first, parent.d if parent else 0, 0
        if left and len(left.ids) == first:
            d, dp, supersedes = left.d, left.dp, left.position
        elif left:
            dp = left.d
        owner.key, owner.root_key = (directory_key(self.secret, piece[at], namespace, holder) for at in (d, 0))
        owner.d, owner.dp, owner.supersedes, owner.parent_key = d, dp, supersedes, parent.key if parent else 0
        leads = left or parent
        owner.root_born = leads.root_born if leads else 0
        self.segment(owner)
        if d:
            root = next(one for one in self.live.values() if one.key == owner.root_key and one.d == 0)
            root.bits |= 1 << d // 4
        self.entered(owner)
        return owner.position

    def segment(self, owner: Owner, flags: int = 0) -> None:
        """Writes a segment record, and enters it in place of what it supersedes."""
        piece = owner.ids
        body = b"".join(piece) + bytes(range(self.location_bytes)) * len(piece)
        owner.position = self.next_position(128 + len(body))
        born, root_born = self.times(owner)
        fields = struct.pack("<IIQ16sQQQ", owner.holder, owner.window, owner.namespace, owner.before, born,
                             owner.parent_key, owner.supersedes)  # fmt: skip
        fields += self.header_tail(owner).ljust(8, b"\0") + struct.pack("<Q", root_born)
        self.add(SEGMENT, fields, body, len(piece), owner.d, owner.dp, units=2, flags=flags, owner=owner)
        if owner.supersedes:
            owner.bits = self.live.pop(owner.supersedes).bits
        self.live[owner.position] = owner
        for one in piece[owner.d :]:
            self.owners[owner.holder, owner.namespace, one] = owner

    def times(self, owner: Owner) -> tuple[int, int]:
        """Born and root born."""
        owner.born = owner.position
        return owner.born, 0

    def header_tail(self, owner: Owner) -> bytes:
        """What a segment header says behind `supersedes`."""
        return b""

    def entered(self, owner: Owner) -> None:
        """What follows when a segment record has been written."""

    # -- checkpoints

    def entry(self, owner: Owner) -> bytes:
        reference = self.slots[owner.position >> 24] << 24 | owner.position & 0xFFFFFF
        mask = owner.bits if owner.d == 0 else 0
        word1 = reference << 24 | (len(owner.ids) - 1) << 18 | owner.d << 12 | owner.dp << 6 | 5 << 1
        return struct.pack("<QQ", owner.key << 16 | mask, word1)

    def images(self, number: int, depth: int) -> tuple[bytes, list[bytes], int, int]:
        """The images of what is live, the head's partition rows, and the sums of entries and blocks."""
        images, rows, blocks, count = b"", [], 0, 0
        for part in range(1 << depth):
            prefix = part << 48 - depth
            owners = sorted((o for o in self.live.values() if o.key >> 48 - depth == part), key=lambda o: o.key)
            held = sum(len(o.ids) - o.d for o in owners)
            if not owners:
                rows.append(struct.pack("<QQIIIIB7x", prefix, 0, 0, 0, 0, 0, depth))
                continue
            image, crc = self.image(number, prefix, depth, held, [self.entry(o) for o in owners])
            page = len(images) // PAGE
            rows.append(struct.pack("<QQIIIIB7x", prefix, number, page, len(owners), crc, held, depth))
            images, blocks, count = images + image, blocks + held, count + len(owners)
        return images, rows, count, blocks

    def image(self, number: int, prefix: int, depth: int, held: int, entries: list[bytes],
              low_filter: int = 0) -> tuple[bytes, int]:  # fmt: skip
        """One image, up to the next page, and its checksum."""
        rest = struct.pack("<HBB16sQQIIQ", len(entries), depth, 0, self.uuid, prefix, number, held, 0, low_filter)
        image = sealed(b"\x89SAI\r\n\x1a\n", rest + b"".join(entries))
        return image.ljust(-(-len(image) // PAGE) * PAGE, b"\0"), int.from_bytes(image[8:12], "little")

    def tables(self) -> tuple[list[bytes], ...]:
        """The rows of a head's markers, epochs, counts and moments."""
        return [], [], [], []

    def checkpoint(self, number: int, start: tuple[int, int, int] | None = None, depth: int = 1,
                   change: dict[str, int] | None = None) -> None:  # fmt: skip
        """Images and a head of what is live now. `start` is (position, commit, next sequence), by default the end of
        the log, which is taken to be synced; `change` overrides fields of the head."""
        images, rows, count, blocks = self.images(number, depth)
        partitions = b"".join(rows)
        self.synced = self.end
        position, commit, sequence = start or (self.end, self.commits, self.sequence)
        slots = b"".join(struct.pack("<QHHI", file, slot, 0, 0) for file, slot in self.slots.items())
        names = b"".join(one.ljust(-(-len(one) // 8) * 8, b"\0") for one in self.names.values())
        head = {"start": position, "synced": self.end, "commit": commit, "sequence": sequence, "entries": count,
                "blocks": blocks, "partitions": len(rows), "slots": len(self.slots), "namespaces": len(self.names),
                **(change or {})}  # fmt: skip
        tables = self.tables()
        removed = b"".join(row for table in tables for row in table)
        length = 192 + len(slots) + len(partitions) + len(names) + len(removed)
        rest = struct.pack("<HHQQQ16sQQQQQQQQIIIIIB3xII40x", 1, self.minor, 0, 0, self.incompatible, self.uuid, number,
                           length, head["start"], head["synced"], head["commit"], head["sequence"], head["entries"],
                           head["blocks"], head["partitions"], head["slots"], head["namespaces"], len(tables[0]),
                           len(tables[1]), self.routing, len(tables[2]), len(tables[3]))  # fmt: skip
        if images:
            publish(self.path / f"{number:016x}.images", images)
        head_bytes = sealed(b"\x89SAC\r\n\x1a\n", rest + slots + partitions + names + removed)
        publish(self.path / f"{number:016x}.checkpoint", head_bytes)

    def stats(self, values: dict[str, object], process: int | None = None, time_ms: int = 1_700_000_000_000) -> None:
        text = json.dumps(values).encode()
        process = os.getpid() if process is None else process
        rest = struct.pack("<HH16sIIQ", 1, 0, self.uuid, process, len(text), time_ms) + text
        publish(self.path / "stats", sealed(b"\x89SAS\r\n\x1a\n", rest))


@dataclass
class Built:
    """A store of every kind of part, and the regions (file, from, to) in which damage is not a fault."""

    path: Path
    writer: StoreWriter
    void: tuple[str, int, int]
    unsynced: tuple[str, int]


def build_store(path: Path) -> Built:
    """Three files: sealed; ended by a void region; and the newest, with a mark, an unsynced commit and a torn tail.
    Two checkpoints, the second one fuzzy. Two namespaces, two holders, branches, superseding."""
    writer = StoreWriter(path)
    writer.new_file()
    base = chain(list(range(150)))
    writer.insert(base[:20])
    writer.commit()
    llama = writer.name("llama", "lora-1")
    writer.insert(chain(list(range(70)), namespace_root("llama", "lora-1")), llama)
    writer.insert(base)
    writer.insert(base[:30] + chain([7], base[29]) + chain([8, 9], base[30]))
    writer.commit()
    writer.seal()
    writer.checkpoint(1)

    writer.new_file()
    writer.insert(base[:100] + chain(list(range(40)), base[99]))
    writer.insert(base[:10], holder=3)
    accepted = writer.commits + 1, writer.commit()
    writer.placed.append(Placed(0, COMMIT, None))
    kept = dict(writer.owners), dict(writer.live), writer.sequence
    writer.insert(chain(list(range(500, 520))))
    writer.commit(synced=writer.end)
    void = (writer.log_path.name, (accepted[1] & 0xFFFFFF) * UNIT, len(writer.data))
    writer.owners, writer.live, writer.sequence = kept

    writer.new_file(accepted)
    writer.insert(base[:12], holder=3)
    start = writer.commit(), writer.commits, writer.sequence
    writer.insert(chain(list(range(900, 980))))
    writer.commit()
    writer.checkpoint(2, start, depth=2)
    writer.mark()
    writer.synced = writer.end
    writer.insert(base[:12] + chain([5] * 3, base[11]), holder=3)
    writer.commit()
    unsynced = (writer.log_path.name, (writer.synced & 0xFFFFFF) * UNIT)
    with writer.log_path.open("ab") as file:
        file.write(os.urandom(1000) + bytes(4096))
    writer.stats({"blocks": 300, "matches": 10})
    return Built(path, writer, void, unsynced)

"""Whole stores, as bytes by name, mutated with an eye to their structure, and mended: checksums, lengths, counts.

What is done is decided by the bytes of an input, so that a coverage-guided fuzzer can learn which are worth while.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from sarpstore import _format as fmt
from sarpstore._chunks.encoding import CHUNKS_SUFFIX, ENTRIES_HEADER_BYTES, ENTRIES_SUFFIX
from sarpstore._kernel import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping

Store = dict[str, bytearray]

_CHANGES_MAX: Final = 12
_VALUES: Final = (0, 1, 2, 63, 64, 126, 255, 256, 4096, 65535, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)
_TABLE_HEAD_BYTES: Final = 128
_IMAGE_AT: Final = struct.Struct("<IIII")  # in a head's row: page, entries, crc, blocks


class Choices:
    """The bytes of an input, taken one after another; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def number(self, end: int) -> int:
        """From 0 to `end` - 1."""
        size = max(1, (max(end, 1) - 1).bit_length() + 7 >> 3)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % max(end, 1)


def mutated(store: Mapping[str, bytes], data: bytes) -> Store:
    """A copy of the store, changed as the input says; mended unless its first byte's lowest bits say otherwise."""
    out = {name: bytearray(content) for name, content in store.items()}
    choices = Choices(data)
    mending = choices.number(8)
    for _ in range(_CHANGES_MAX):
        if not choices.left:
            break
        _change(out, choices)
    if mending:
        mend(out, commits=mending > 1)
    return out


def _change(store: Store, choices: Choices) -> None:
    names = sorted(store)
    name = names[choices.number(len(names))]
    content = store[name]
    kind = choices.number(64)  # mostly bytes: of what is gone there is nothing to be read
    if kind == 0:
        del content[choices.number(len(content) + 1) :]
    elif kind == 1:
        store[names[choices.number(len(names))]] = bytearray(content)
    elif kind == 2 and len(store) > 1:
        del store[name]
    elif kind == 3:
        other = store[names[choices.number(len(names))]]
        at, end = _place(name, content, choices), choices.number(4096)
        content[at : at + end] = other[at : at + end]
    elif content:
        _set(content, _place(name, content, choices), choices)


def _place(name: str, content: bytearray, choices: Choices) -> int:
    """A place that matters: in a header, or in a record's; now and then any."""
    if choices.number(8) == 0:
        return choices.number(len(content))
    if name.endswith(ENTRIES_SUFFIX):
        starts = entry_starts(content)
    elif name.endswith(fmt.LOG_SUFFIX):
        starts = record_starts(content)
    else:
        return choices.number(min(len(content), 1024))
    if not starts or choices.number(4) == 0:
        return choices.number(192)
    return starts[choices.number(len(starts))] + choices.number(192)


def _set(content: bytearray, at: int, choices: Choices) -> None:
    size = 1 << choices.number(4)
    at -= at % size
    if at + size > len(content):
        return
    old = int.from_bytes(content[at : at + size], "little")
    kind, value = choices.number(4), choices.number(256)
    new = (old ^ 1 << value % (8 * size), old + value - 128, _VALUES[value % len(_VALUES)], value)[kind]
    content[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")


def record_starts(content: bytearray) -> list[int]:
    """Where records of a log file begin, by their lengths."""
    found, at = [], fmt.LOG_HEADER_BYTES
    while at + fmt.UNIT <= len(content):
        length = int.from_bytes(content[at + 8 : at + 10], "little")
        room = fmt.PAGE - at % fmt.PAGE
        if not any(content[at : at + fmt.UNIT]) or not fmt.UNIT <= length <= room:
            at += fmt.UNIT
            continue
        found.append(at)
        at += -(-length // fmt.UNIT) * fmt.UNIT
    return found


def entry_starts(content: bytearray) -> list[int]:
    """Where entries of a chunk store's entries file begin, by their lengths."""
    found, at = [], ENTRIES_HEADER_BYTES
    while at + fmt.UNIT <= len(content):
        found.append(at)
        at += max(fmt.UNIT, int.from_bytes(content[at + 4 : at + 6], "little"))
    return found


# --- mending


def mend(store: Store, *, commits: bool = True) -> None:
    """Makes all checksums hold: of headers, records, heads and images; `commits`: what commit records sum up, too.

    Of a chunk store those of tables and entries, not of payloads: so what is loaded has to be what was put.
    """
    uuid = b""
    for name, content in store.items():
        if name.endswith(fmt.LOG_SUFFIX) and len(content) >= fmt.LOG_HEADER_BYTES:
            _mend_header(content)
            uuid = bytes(content[40:56])
            _mend_records(content, uuid + content[56:64], commits)
    crcs: dict[tuple[int, int], tuple[int, int]] = {}
    for number in fmt.numbered(list(store), fmt.IMAGES_SUFFIX):
        _mend_images(store[fmt.images_name(number)], number, crcs)
    for name, content in store.items():
        if name.endswith(fmt.CHECKPOINT_SUFFIX) and len(content) >= fmt.CHECKPOINT_HEAD.size:
            _mend_head(content, crcs)
        elif name == fmt.STATS_NAME:
            _seal(content, len(content))
        elif name.endswith(CHUNKS_SUFFIX) and len(content) >= _TABLE_HEAD_BYTES:
            content[64:72] = len(content).to_bytes(8, "little")
            _seal(content, len(content))
        elif name.endswith(ENTRIES_SUFFIX) and len(content) >= ENTRIES_HEADER_BYTES:
            _mend_entries(content)


def _seal(content: bytearray, end: int, begin: int = 0) -> int:
    """The checksum of a header, head or image, which is set."""
    crc = crc32c(bytes(content[begin + fmt.CRC_FROM : end]))
    content[begin + fmt.CRC_AT : begin + fmt.CRC_FROM] = crc.to_bytes(4, "little")
    return crc


def _mend_header(content: bytearray) -> None:
    _seal(content, fmt.PAGE)
    content[fmt.PAGE : 2 * fmt.PAGE] = content[: fmt.PAGE]


def _mend_entries(content: bytearray) -> None:
    _seal(content, ENTRIES_HEADER_BYTES)
    for at in entry_starts(content):
        end = at + max(fmt.UNIT, int.from_bytes(content[at + 4 : at + 6], "little"))
        seed = crc32c(bytes(content[40:64]) + at.to_bytes(8, "little"))
        content[at : at + 4] = crc32c(bytes(content[at + 4 : end]), seed).to_bytes(4, "little")


def _mend_records(content: bytearray, place: bytes, commits: bool) -> None:
    crcs, begin, records = b"", fmt.LOG_HEADER_BYTES, 0
    for at in record_starts(content):
        if content[at + 10] != fmt.RECORD_COMMIT:
            crcs += close_record(content, at, place)
            records += 1
            continue
        end = at - at % fmt.PAGE + fmt.PAGE
        if commits:
            struct.pack_into("<III", content, at + 32, (end - begin) // fmt.PAGE, records, crc32c(crcs))
        close_record(content, at, place)
        crcs, begin, records = b"", end, 0


def close_record(content: bytearray, at: int, place: bytes) -> bytes:
    """Sets a record's checksums; that of its header. `place`: the store's uuid and the file's number."""
    length, units = int.from_bytes(content[at + 8 : at + 10], "little"), content[at + 15]
    header = fmt.UNIT * (units if units in (1, 2) else 1)
    seed = crc32c(place + at.to_bytes(8, "little"))
    body = crc32c(bytes(content[at + header : at + max(length, header)]), seed)
    content[at + 4 : at + 8] = body.to_bytes(4, "little")
    content[at : at + 4] = crc32c(bytes(content[at + 4 : at + header]), seed).to_bytes(4, "little")
    return bytes(content[at : at + 4])


def _mend_images(content: bytearray, number: int, crcs: dict[tuple[int, int], tuple[int, int]]) -> None:
    for at in range(0, len(content) - fmt.IMAGE_HEADER.size + 1, fmt.PAGE):
        if content[at : at + 8] != fmt.MAGIC_IMAGE:
            continue
        entries = int.from_bytes(content[at + 12 : at + 14], "little")
        # Which of the two sizes an entry has the heads say; the image's last bytes that are not zero nearly do.
        used = len(content[at : at + fmt.PAGE * 24].rstrip(b"\0")) - fmt.IMAGE_HEADER.size
        size = 24 if entries and -(-used // 24) == entries else 16
        blocks = int.from_bytes(content[at + 48 : at + 52], "little")
        crcs[number, at // fmt.PAGE] = _seal(content, at + fmt.IMAGE_HEADER.size + entries * size, at), blocks


def _mend_head(content: bytearray, crcs: dict[tuple[int, int], tuple[int, int]]) -> None:
    content[64:72] = len(content).to_bytes(8, "little")
    fields = fmt.CHECKPOINT_HEAD.unpack_from(content)
    partitions, slots, routing = fields[16], fields[17], fields[21]
    size, at_number = (48, 24) if routing else (40, 8)
    for row in range(min(partitions, len(content) // size)):
        at = fmt.CHECKPOINT_HEAD.size + 16 * slots + size * row + at_number
        if at + 24 > len(content):
            break
        number = int.from_bytes(content[at : at + 8], "little")
        page, entries, crc, blocks = _IMAGE_AT.unpack_from(content, at + 8)
        crc, blocks = crcs.get((number, page), (crc, blocks))
        _IMAGE_AT.pack_into(content, at + 8, page, entries, crc, blocks)
    _seal(content, len(content))

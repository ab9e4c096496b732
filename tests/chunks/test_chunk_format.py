"""The bytes of chunk stores: as format-spec/chunks.md says, and nothing else is believed."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
from chunk_helpers import LAYOUT
from hypothesis import given
from hypothesis import strategies as st

import sarpstore
from sarpstore._chunks.encoding import (
    ENTRIES_HEADER_BYTES,
    Chunk,
    RegionRow,
    Table,
    decode_entries,
    decode_entries_header,
    encode_entries_header,
    encode_entry,
)
from sarpstore._chunks.keys import KeyMaker, delimiters_of, split
from sarpstore._chunks.payload import is_whole, pack, payload_bytes
from sarpstore._chunks.policy import Extent
from sarpstore._kernel.twin_hash import crc32c

UUID = bytes(range(16))

extents = st.lists(
    st.builds(Extent, st.integers(1, (1 << 40) - 1), st.integers(0, 1 << 20).map(lambda n: n * 4096), st.just(4096)),
    min_size=1,
    max_size=4,
).map(tuple)
chunks = st.builds(
    Chunk,
    st.binary(min_size=32, max_size=32),
    st.integers(1, 1 << 40),
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 31),
    st.integers(0, (1 << 32) - 1),
    st.just(20),
    extents,
)


@given(st.lists(st.integers(0, 5), max_size=60), st.sets(st.integers(0, 5), min_size=1))
def test_chunks_are_all_of_the_tokens_and_each_ends_with_its_delimiters(tokens, delimiters):
    ids = np.array(tokens, np.uint32)
    parts = split(ids, delimiters_of(delimiters))
    assert [token for begin, end in parts for token in tokens[begin:end]] == tokens
    for _, end in parts[:-1]:
        assert tokens[end - 1] in delimiters
        assert tokens[end] not in delimiters
    for begin, end in parts:
        inner = [token in delimiters for token in tokens[begin:end]]
        assert inner == sorted(inner) or begin == 0


def test_a_key_is_the_digest_that_the_format_says():
    maker = KeyMaker(b"weights", LAYOUT, "lora", b"system", b"tenant")
    tokens = np.array([1, 2, 70_000], np.uint32)
    parts = [b"sarpstore chunk 1", b"weights", LAYOUT.canonical(), b"lora", b"system", b"tenant"]
    parts.append(struct.pack("<3I", 1, 2, 70_000))
    text = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    assert maker.key(tokens) == hashlib.sha256(text).digest()


@pytest.mark.parametrize("tokens", [1, 3, 5000])
def test_a_payload_is_laid_out_as_the_format_says(tokens):
    layout = sarpstore.KVLayout(
        layers=3, kv_heads=1, head_dim=2, dtype="float16", rope=sarpstore.Rope(), windows=(2, None, 2)
    )
    random = np.random.default_rng(1)
    keys, values = (random.standard_normal((3, 1, tokens, 2)).astype("<f2") for _ in range(2))
    key = bytes(range(32))
    packed = pack(layout, keys, values, key)
    kept = [min(tokens, 2), tokens, min(tokens, 2)]
    body = b"".join(array[layer, :, tokens - kept[layer] :].tobytes() for layer in range(3) for array in (keys, values))
    body += bytes(-len(body) % 4)
    sums = b"".join(
        struct.pack("<I", crc32c(0, key + struct.pack("<Q", i) + body[i << 20 : (i + 1) << 20]))
        for i in range(-(-len(body) // (1 << 20)))
    )
    assert bytes(packed.data[: packed.bytes]) == body + sums
    assert packed.bytes == payload_bytes(layout, tokens) == len(body + sums)
    assert len(packed.data) % 4096 == 0
    assert packed.crc == crc32c(0, sums)


def test_every_flipped_bit_of_a_payload_is_seen():
    keys = np.arange(2 * 2 * 3 * 16, dtype="<f4").reshape(2, 2, 3, 16)
    packed = pack(LAYOUT, keys, -keys, bytes(32))
    chunk = Chunk(bytes(32), 1, packed.bytes, 3, packed.crc, packed.strip, (Extent(1, 0, 4096),))
    data = bytearray(packed.data)
    assert is_whole(LAYOUT, chunk, memoryview(data))
    for bit in range(8 * packed.bytes):
        data[bit // 8] ^= 1 << bit % 8
        assert not is_whole(LAYOUT, chunk, memoryview(data)), bit
        data[bit // 8] ^= 1 << bit % 8
    other = Chunk(bytes([1, *bytes(31)]), 1, packed.bytes, 3, packed.crc, packed.strip, chunk.extents)
    assert not is_whole(LAYOUT, other, memoryview(data))


@given(st.lists(chunks, min_size=1, max_size=5), st.data())
def test_entries_come_back_up_to_the_first_that_is_not_whole(made, data):
    at, encoded, ends = ENTRIES_HEADER_BYTES, b"", []
    for chunk in made:
        encoded += encode_entry(chunk, UUID, 7, at + len(encoded))
        ends.append(len(encoded))
    assert decode_entries(memoryview(encoded), UUID, 7, at) == (made, at + len(encoded))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    whole = sum(end <= bit // 8 for end in ends)
    assert decode_entries(memoryview(flipped), UUID, 7, at) == (made[:whole], at + ([0, *ends][whole]))
    cut = data.draw(st.integers(0, len(encoded)))
    whole = sum(end <= cut for end in ends)
    assert decode_entries(memoryview(encoded[:cut]), UUID, 7, at)[0] == made[:whole]
    for uuid, region, offset in ((bytes(16), 7, at), (UUID, 8, at), (UUID, 7, at + 64)):
        assert decode_entries(memoryview(encoded), uuid, region, offset)[0] == []


def test_every_flipped_bit_of_an_entries_header_is_refused():
    header = bytearray(encode_entries_header(UUID, 5))
    assert decode_entries_header(bytes(header), "x", 5, UUID) == UUID
    for bit in range(8 * len(header)):
        header[bit // 8] ^= 1 << bit % 8
        with pytest.raises(sarpstore.CorruptionError):
            decode_entries_header(bytes(header), "x", 5, UUID)
        header[bit // 8] ^= 1 << bit % 8
    for number, uuid, words in ((6, UUID, "number 5"), (5, bytes(16), "another store")):
        with pytest.raises(sarpstore.CorruptionError, match=words):
            decode_entries_header(bytes(header), "x", number, uuid)


def table_of(chunks, weights=None):
    """A table that no other one came before."""
    table = Table(UUID, 3, 1 << 33, 1 << 33, 1 << 41, 1 << 40)
    table.fill(table, [], list(zip(chunks, weights or [1.0] * len(chunks), strict=True)))
    return table


@given(st.lists(chunks, max_size=6), st.lists(chunks, max_size=3), st.data())
def test_a_table_that_is_made_of_the_last_one_has_the_rows_that_are_left_and_what_came_since(made, since, data):
    made = [replace(chunk, sequence=number) for number, chunk in enumerate(made, 1)]
    since = [replace(chunk, sequence=number) for number, chunk in enumerate(since, len(made) + 1)]
    last, left = table_of(made), sorted(data.draw(st.sets(st.integers(0, len(made) - 1)))) if made else []
    table = Table(UUID, 4, 1 << 33, 1 << 28, 99, 8)
    rows, late = [(row, float(row)) for row in left], [(chunk, 0.5) for chunk in since]
    table.fill(last, rows[::-1], late[::-1])
    assert [table.chunk(row) for row in range(len(table.rows))] == [made[row] for row in left] + since
    assert [table.weight(row) for row in range(len(table.rows))] == [*map(float, left), *([0.5] * len(since))]


@pytest.mark.parametrize(
    "change",
    [
        {"bytes_max": 1 << 63},
        {"next_sequence": (1 << 64) - 1},
        {"next_sequence": 5},
        {"next_region": 0},
        {"next_region": 7},
        {"next_region": (1 << 40) + 1},
        {"region_bytes": 0},
        {"region_bytes": 4095},
        {"region_bytes": 1 << 41},
        {"region_bytes": 8192},
        {"regions": [RegionRow(8, 4096, 0)]},
        {"regions": [RegionRow(2, 4096, 0), RegionRow(2, 4096, 0)]},
        {"regions": [RegionRow(0, 4096, 0)]},
        {"regions": [RegionRow(1, 1 << 63, 0)]},
        {"regions": [RegionRow(1, 4096, (1 << 28) + 4096)]},
    ],
    ids=str,
)
def test_a_table_with_a_number_that_cannot_be_is_not_believed(change):
    table = Table(UUID, 3, 1 << 33, 1 << 28, 6, 8)
    chunk = Chunk(bytes(32), 5, 9000, 3, 0, 20, (Extent(7, 4096, 8192),))
    table.fill(table, [], [(chunk, 1.0)])
    Table.decode(table.encode(), "x", 3)
    for name, value in change.items():
        setattr(table, name, value)
    with pytest.raises(sarpstore.CorruptionError):
        Table.decode(table.encode(), "x", 3)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_table_with_a_weight_that_is_none_is_not_believed(weight):
    chunk = Chunk(bytes(32), 5, 9000, 3, 0, 20, (Extent(7, 4096, 8192),))
    with pytest.raises(sarpstore.CorruptionError, match="no weight"):
        Table.decode(table_of([chunk], [weight]).encode(), "x", 3)


@pytest.mark.parametrize(
    ("sequence", "extent"),
    [(1 << 63, Extent(7, 0, 4096)), (1, Extent(0, 0, 4096)), (1, Extent(1 << 40, 0, 4096)), (1, Extent(7, 0, 0)),
     (1, Extent(7, (1 << 40) - 4096, 8192))],
)  # fmt: skip
def test_an_entry_with_a_number_that_cannot_be_is_not_believed(sequence, extent):
    chunk = Chunk(bytes(32), sequence, 9000, 3, 0, 20, (extent,))
    encoded = encode_entry(chunk, UUID, 7, ENTRIES_HEADER_BYTES)
    assert decode_entries(memoryview(encoded), UUID, 7, ENTRIES_HEADER_BYTES) == ([], ENTRIES_HEADER_BYTES)


@given(st.lists(chunks, max_size=6), st.data())
def test_a_table_comes_back_and_no_flipped_bit_is_believed(made, data):
    made.sort(key=lambda chunk: chunk.sequence)
    weights = [float(i) / 3 for i in range(len(made))]
    table = table_of(made, weights)
    table.regions = [RegionRow(1, 4096, 77), RegionRow(5, 8192, 0)]
    encoded = table.encode()
    again = Table.decode(encoded, "x", 3)
    assert [again.chunk(row) for row in range(len(made))] == made
    assert [again.weight(row) for row in range(len(made))] == weights
    assert again.keys(np.arange(len(made))) == [chunk.key for chunk in made]
    assert again.regions == table.regions
    assert again.encode() == encoded
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises((sarpstore.CorruptionError, sarpstore.VersionError)):
        Table.decode(bytes(flipped), "x", 3)
    with pytest.raises(sarpstore.CorruptionError):
        Table.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))], "x", 3)

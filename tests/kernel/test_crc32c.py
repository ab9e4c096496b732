"""CRC32C: known answers, every path against the twin at every length and alignment, and chaining."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarpstore._kernel import FEATURES, ffi, lib, twin_hash

PATHS = sorted({0, FEATURES & lib.SARP_CPU_SSE42, FEATURES})

KNOWN = {
    b"": 0x00000000,
    b"123456789": 0xE3069283,
    # RFC 3720, appendix B.4 (there the checksum's bytes stand in the order they are sent).
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(
        "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
    ): 0xD9963A56,
}


def crc(features: int, start: int, data: bytes, offset: int = 0) -> int:
    """The kernel's checksum of `data` at an address `offset` bytes past an aligned one."""
    buffer = ffi.new("uint8_t[]", offset + len(data))
    ffi.memmove(buffer + offset, data, len(data))
    return int(lib.sarp_crc32c(features, start, buffer + offset, len(data)))


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize(("data", "expected"), KNOWN.items())
def test_known_answers(features: int, data: bytes, expected: int) -> None:
    assert crc(features, 0, data) == expected
    assert twin_hash.crc32c(0, data) == expected


@pytest.mark.parametrize("features", PATHS)
def test_no_bytes_need_no_pointer(features: int) -> None:
    assert lib.sarp_crc32c(features, 0x12345678, ffi.NULL, 0) == 0x12345678


@pytest.mark.parametrize("features", PATHS)
def test_every_length_equals_the_twin(features: int) -> None:
    data = random.Random(1).randbytes(2200)
    expected = 7
    for length in range(len(data)):
        assert crc(features, 7, data[:length], offset=length % 8) == expected
        expected = twin_hash.crc32c(expected, data[length : length + 1])


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("length", [4096, 65_536, 100_003])
def test_long_data_equals_the_twin(features: int, length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert crc(features, 0, data, offset=3) == twin_hash.crc32c(0, data)


@pytest.mark.parametrize("features", PATHS)
@given(start=st.integers(0, 2**32 - 1), data=st.binary(max_size=600), offset=st.integers(0, 15))
def test_any_start_and_alignment_equals_the_twin(features: int, start: int, data: bytes, offset: int) -> None:
    assert crc(features, start, data, offset) == twin_hash.crc32c(start, data)


@pytest.mark.parametrize("features", PATHS)
@given(pieces=st.lists(st.binary(max_size=300), max_size=6))
def test_a_chain_of_pieces_equals_one_pass(features: int, pieces: list[bytes]) -> None:
    chained = 0
    for piece in pieces:
        chained = crc(features, chained, piece)
    assert chained == crc(features, 0, b"".join(pieces))


@pytest.mark.parametrize("features", PATHS)
def test_a_flipped_bit_anywhere_in_a_record_changes_the_checksum(features: int) -> None:
    data = bytearray(random.Random(2).randbytes(1920))
    whole = crc(features, 0, bytes(data))
    for bit in range(0, len(data) * 8, 13):
        data[bit // 8] ^= 1 << bit % 8
        assert crc(features, 0, bytes(data)) != whole
        data[bit // 8] ^= 1 << bit % 8

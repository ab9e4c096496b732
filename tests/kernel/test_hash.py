"""Block ids: known answers, every path against the twin, slices, empty roots and refused arguments."""

from __future__ import annotations

import hashlib
import random
import struct

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarpstore._kernel import FEATURES, ffi, lib, twin_hash

PATHS = sorted({0, FEATURES & lib.SARP_CPU_SHA_NI, FEATURES})
HASHES = [lib.SARP_HASH_SHA256, lib.SARP_HASH_MMH3]
BLOCK_TOKENS = (1, 3, 16, 17, 64, 100)

# FIPS 180-2's examples and NIST CAVP's SHA256ShortMsg, as far as their messages are whole tokens of four bytes.
NIST_SHA256 = {
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    ),
    b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
    b"hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu": (
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"
    ),
    bytes.fromhex("74ba2521"): "b16aa56be3880d18cd41e68384cf1ec8c17680c45a02b1575dc1518923ae8b0e",
    bytes.fromhex(
        "5a86b737eaea8ee976a0a24da63e7ed7eefad18a101c1211e2b3650c5187c2a8"
        "a650547208251f6d4237e661c7bf4c77f335390394c37fa1a9f9be836ac28509"
    ): "42e61e174fbb3897d6dd6cef3dd2802fe67b331953b06114a65c772859dfc1aa",
}


def bytes_of_tokens(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def chain(
    features: int, hash_: int, previous: bytes, tokens: list[int], block_tokens: int, offset: int = 0
) -> tuple[bytes, bytes]:
    """The kernel's ids and last digest, with the tokens `offset` bytes past an aligned address."""
    raw = bytes_of_tokens(tokens)
    buffer = ffi.new("uint8_t[]", offset + len(raw))
    ffi.memmove(buffer + offset, raw, len(raw))
    blocks = len(tokens) // block_tokens
    ids = ffi.new("uint8_t[]", blocks * lib.SARP_HASH_ID_BYTES)
    last = ffi.new("uint8_t[]", lib.sarp_hash_state_bytes(hash_))
    status = lib.sarp_hash_chain(
        features,
        hash_,
        previous or ffi.NULL,
        len(previous),
        ffi.cast("uint32_t *", buffer + offset),
        blocks,
        block_tokens,
        ids,
        last,
    )
    assert status == 0
    return bytes(ffi.buffer(ids)), bytes(ffi.buffer(last))


def test_enums_equal_the_twins() -> None:
    assert (lib.SARP_HASH_SHA256, lib.SARP_HASH_MMH3) == (twin_hash.SHA256, twin_hash.MMH3)
    assert lib.SARP_HASH_ID_BYTES == twin_hash.ID_BYTES


def test_state_is_the_full_digest() -> None:
    assert [lib.sarp_hash_state_bytes(hash_) for hash_ in HASHES] == [32, 16]
    assert [twin_hash.state_bytes(hash_) for hash_ in HASHES] == [32, 16]
    assert lib.sarp_hash_state_bytes(2) == lib.sarp_hash_state_bytes(-1) == 0
    with pytest.raises(ValueError, match="unknown hash"):
        twin_hash.state_bytes(2)


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize(("message", "expected"), NIST_SHA256.items())
def test_sha256_equals_the_standards_answers(features: int, message: bytes, expected: str) -> None:
    tokens = list(struct.unpack(f"<{len(message) // 4}I", message))
    ids, last = chain(features, lib.SARP_HASH_SHA256, b"", tokens, len(tokens))
    assert last.hex() == expected
    assert ids == last[:16]


@pytest.mark.parametrize("features", PATHS)
def test_sha256_ids_are_sglang_page_keys(features: int) -> None:
    """SGLang's get_hash_str: SHA-256 over the prior digest's bytes, then each token as little-endian u32."""
    tokens = [random.Random(3).randrange(2**32) for _ in range(16 * 5)]
    ids, prior = b"", b""
    for page in range(5):
        hasher = hashlib.sha256(prior)
        for token in tokens[16 * page : 16 * page + 16]:
            hasher.update(token.to_bytes(4, "little"))
        prior = bytes.fromhex(hasher.hexdigest())
        ids += prior[:16]
    assert chain(features, lib.SARP_HASH_SHA256, b"", tokens, 16) == (ids, prior)


def test_mmh3_ids_are_the_packages_digests() -> None:
    digest = getattr(mmh3, "mmh3_x64_128_digest", None) or (lambda data: mmh3.hash_bytes(data, 0, True))
    first, second = list(range(16)), list(range(100, 116))
    expected_first = digest(bytes_of_tokens(first))
    expected_second = digest(expected_first + bytes_of_tokens(second))
    assert chain(0, lib.SARP_HASH_MMH3, b"", first + second, 16) == (expected_first + expected_second, expected_second)


def test_mmh3_known_answer() -> None:
    # As mmh3 5.3 gives it, kept here so that a change of that package is seen.
    message = b"The quick brown fox jumps over the lazy dog!"
    tokens = list(struct.unpack("<11I", message))
    assert chain(0, lib.SARP_HASH_MMH3, b"", tokens, 11)[1].hex() == "a9437c5a111b4f3fa1cdcdca08a30387"


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("hash_", HASHES)
@pytest.mark.parametrize("rooted", [False, True])
def test_every_block_size_equals_the_twin(features: int, hash_: int, rooted: bool) -> None:
    source = random.Random(4)
    previous = source.randbytes(lib.sarp_hash_state_bytes(hash_)) if rooted else b""
    for block_tokens in [*range(1, 70), 100, 255, 256, 1023, 1024]:
        tokens = [source.randrange(2**32) for _ in range(2 * block_tokens)]
        expected = twin_hash.hash_chain(hash_, previous, tokens, block_tokens)
        assert chain(features, hash_, previous, tokens, block_tokens, offset=block_tokens % 8) == expected


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("hash_", HASHES)
@given(data=st.data())
def test_any_chain_equals_the_twin(features: int, hash_: int, data: st.DataObject) -> None:
    block_tokens = data.draw(st.sampled_from(BLOCK_TOKENS))
    blocks, seed = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 2**32))
    source = random.Random(seed)
    previous = data.draw(st.sampled_from([b"", source.randbytes(lib.sarp_hash_state_bytes(hash_))]))
    tokens = [source.randrange(2**32) for _ in range(blocks * block_tokens)]
    ids, last = chain(features, hash_, previous, tokens, block_tokens, offset=data.draw(st.integers(0, 15)))
    expected_ids, expected_last = twin_hash.hash_chain(hash_, previous, tokens, block_tokens)
    assert ids == expected_ids
    if blocks or previous:
        assert last == expected_last


@pytest.mark.parametrize("features", PATHS)
@pytest.mark.parametrize("hash_", HASHES)
@given(data=st.data())
def test_slices_equal_one_pass(features: int, hash_: int, data: st.DataObject) -> None:
    block_tokens = data.draw(st.sampled_from(BLOCK_TOKENS))
    slices = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    source = random.Random(sum(slices))
    tokens = [source.randrange(2**32) for _ in range(sum(slices) * block_tokens)]
    ids, previous, start = b"", b"", 0
    for blocks in slices:
        end = start + blocks * block_tokens
        some_ids, last = chain(features, hash_, previous, tokens[start:end], block_tokens)
        ids, start = ids + some_ids, end
        previous = last if blocks or previous else b""
    expected = chain(features, hash_, b"", tokens, block_tokens)
    assert ids == expected[0]
    if tokens:
        assert previous == expected[1]


@pytest.mark.parametrize("hash_", HASHES)
def test_the_last_digest_may_take_the_previous_ones_place(hash_: int) -> None:
    tokens = list(range(64))
    expected = twin_hash.hash_chain(hash_, b"", tokens, 16)[1]
    state = ffi.new("uint8_t[]", lib.sarp_hash_state_bytes(hash_))
    given_tokens = ffi.new("uint32_t[]", tokens)
    for block in range(4):
        status = lib.sarp_hash_chain(
            FEATURES, hash_, state, len(state) if block else 0, given_tokens + 16 * block, 1, 16, ffi.NULL, state
        )
        assert status == 0
    assert bytes(ffi.buffer(state)) == expected


@pytest.mark.parametrize("hash_", HASHES)
def test_no_blocks_hand_the_previous_digest_on(hash_: int) -> None:
    previous = bytes(range(lib.sarp_hash_state_bytes(hash_)))
    last = ffi.new("uint8_t[]", b"\xee" * len(previous))
    assert lib.sarp_hash_chain(FEATURES, hash_, ffi.NULL, 0, ffi.NULL, 0, 16, ffi.NULL, last) == 0
    assert bytes(ffi.buffer(last))[:-1] == b"\xee" * len(previous)
    assert lib.sarp_hash_chain(FEATURES, hash_, previous, len(previous), ffi.NULL, 0, 16, ffi.NULL, last) == 0
    assert bytes(ffi.buffer(last))[:-1] == previous


@pytest.mark.parametrize(
    "bad",
    [
        {"hash_": 2},
        {"hash_": -1},
        {"previous_bytes": 16},
        {"previous_bytes": 31},
        {"previous_bytes": 33},
        {"previous": ffi.NULL},
        {"tokens": ffi.NULL},
        {"blocks": 2**62},
        {"block_tokens": 0},
        {"block_tokens": 1025},
        {"block_tokens": 2**62},
        {"last": ffi.NULL},
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(bad: dict[str, object]) -> None:
    ids, last = ffi.new("uint8_t[]", b"\xee" * 16), ffi.new("uint8_t[]", b"\xee" * 32)
    good: dict[str, object] = {
        "hash_": lib.SARP_HASH_SHA256,
        "previous": bytes(32),
        "previous_bytes": 32,
        "tokens": ffi.new("uint32_t[]", 16),
        "blocks": 1,
        "block_tokens": 16,
        "ids": ids,
        "last": last,
    }
    assert lib.sarp_hash_chain(FEATURES, *(good | bad).values()) == lib.SARP_HASH_BAD_ARGUMENT
    assert bytes(ffi.buffer(ids))[:16] == b"\xee" * 16
    assert bytes(ffi.buffer(last))[:32] == b"\xee" * 32


def test_the_twin_refuses_what_the_kernel_refuses() -> None:
    with pytest.raises(ValueError, match="31 bytes, not 32"):
        twin_hash.hash_chain(twin_hash.SHA256, bytes(31), [], 16)
    with pytest.raises(ValueError, match="below 1"):
        twin_hash.hash_chain(twin_hash.SHA256, b"", [], 0)

"""The specification's reader, piece by piece, against the specification's writer."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import spec_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from sarpstore_tools.specreader import structures
from sarpstore_tools.specreader.accept import accept
from sarpstore_tools.specreader.crc import PlaceSeed, advance, crc32c, extend, tail_crcs
from sarpstore_tools.specreader.faults import DamagedError, Faults
from sarpstore_tools.specreader.files import close_logs, open_logs
from sarpstore_tools.specreader.folder import list_folder
from sarpstore_tools.specreader.keys import directory_keys
from sarpstore_tools.specreader.log import SEGMENT, offset_of, walk
from sarpstore_tools.specreader.state import Directory, differences
from spec_writer import StoreWriter, build_store, chain, sealed

if TYPE_CHECKING:
    from pathlib import Path


def test_crc_of_the_check_string_is_the_specified_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.integers(0, 3000), st.integers(0, 2**32))
@settings(max_examples=40)
def test_crc_of_any_length_equals_the_bytewise_one(length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    assert crc32c(data) == spec_writer.crc32c(data)


def test_advancing_a_state_is_the_same_as_zero_bytes() -> None:
    for count in (1, 2, 7, 60, 64, 4096):
        state = np.array([0x12345678, 0xFFFFFFFF], dtype=np.uint32)
        expected = [extend(int(one), bytes(count)) for one in state]
        assert advance(count)(state).tolist() == expected


def test_place_seeds_are_the_crc_states_of_uuid_file_and_offset() -> None:
    uuid = bytes(range(16))
    offsets = np.array([8192, (1 << 30) - 64], dtype=np.int64)
    expected = [extend(0xFFFFFFFF, uuid + struct.pack("<QQ", 77, int(one))) for one in offsets]
    assert PlaceSeed(uuid, 77).states(offsets).tolist() == expected


def test_tails_of_all_lengths_continue_a_state() -> None:
    tails = np.frombuffer(os.urandom(64 * 64), dtype=np.uint8).reshape(64, 64)
    states = np.arange(64, dtype=np.uint32) * np.uint32(0x9E3779B1)
    expected = [extend(int(states[at]), tails[at, :at].tobytes()) for at in range(64)]
    assert tail_crcs(states, tails, np.arange(64)).tolist() == expected


@given(
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=200)
def test_directory_keys_equal_those_by_big_integers(secret: bytes, block: bytes, namespace: int, holder: int) -> None:
    low, high = struct.unpack("<QQ", block)
    arrays = (np.array([value], dtype=np.uint64) for value in (low, high, namespace, holder))
    keys = directory_keys(struct.unpack("<QQ", secret), *arrays)
    assert keys.tolist() == [spec_writer.directory_key(secret, block, namespace, holder)]


def test_walking_finds_every_record_that_was_written(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.new_file()
    for length in (1, 2, 5, 31, 64, 200):
        writer.insert(chain(list(range(length, 3 * length))))
    writer.commit()
    files = open_logs(list_folder(tmp_path), Faults())
    header = files[0].header
    assert header is not None
    slices = list(walk(files[0].descriptor, header, 8192, files[0].size))
    close_logs(files)
    rows = slices[0].rows
    assert not slices[0].damage
    assert not rows["problem"].any()
    assert rows["position"].tolist() == [one.position for one in writer.placed]
    segments = rows[rows["type"] == SEGMENT]
    owners = [one.owner for one in writer.placed if one.owner]
    assert segments["key"].tolist() == [owner.key for owner in owners]
    assert segments["root_key"].tolist() == [owner.root_key for owner in owners]
    assert segments["parent_key"].tolist() == [owner.parent_key for owner in owners]
    last = [segment.tobytes() for segment in segments["last"]]
    assert last == [owner.ids[-1] for owner in owners]
    assert slices[0].record(segments[0]) == bytes(writer.data[offset_of(segments[0]) :][: int(segments[0]["length"])])


def test_a_wrong_length_costs_one_record(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.new_file()
    positions = [writer.insert(chain([number, 1, 2]))[0] for number in range(5)]
    writer.commit()
    data = bytearray(writer.log_path.read_bytes())
    at = (positions[2] & 0xFFFFFF) * 64
    data[at + 8 : at + 10] = b"\xff\xff"
    writer.log_path.write_bytes(data)
    files = open_logs(list_folder(tmp_path), Faults())
    assert files[0].header is not None
    (piece,) = walk(files[0].descriptor, files[0].header, 8192, files[0].size)
    close_logs(files)
    assert piece.rows["position"].tolist()[1:5] == [*positions[:2], *positions[3:]]
    assert next(stretch.offset for stretch in piece.damage) == at


PARSERS = [
    (structures.parse_header, structures.MAGIC_LOG),
    (structures.parse_head, structures.MAGIC_HEAD),
    (structures.parse_image, structures.MAGIC_IMAGE),
    (structures.parse_statistics, structures.MAGIC_STATS),
]


@pytest.mark.parametrize(("parse", "magic"), PARSERS)
@given(data=st.data())
@settings(max_examples=60)
def test_parsers_refuse_garbage_even_with_a_right_checksum(parse, magic, data) -> None:
    raw = data.draw(st.binary(max_size=300))
    major = struct.pack("<HH", 1, 0)
    for candidate in (raw, magic + raw, sealed(magic, raw), sealed(magic, (major + raw).ljust(4084, b"\0"))):
        with contextlib.suppress(DamagedError):
            parse(candidate)


def test_a_header_of_another_version_or_with_unknown_features_is_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.new_file()
    page = bytes(writer.data[:4096])
    assert structures.parse_header(page).options.locations == spec_writer.LOCATIONS
    for at, code in ((12, "version"), (32, "features")):
        changed = bytearray(page)
        changed[at] ^= 2
        with pytest.raises(DamagedError) as caught:
            structures.parse_header(sealed(page[:8], bytes(changed[12:])))
        assert caught.value.code == code
    minor = bytearray(page)
    minor[14], minor[16], minor[24] = 9, 1, 1
    assert structures.parse_header(sealed(page[:8], bytes(minor[12:]))).minor == 9


def _accepted(path: Path):
    faults = Faults()
    files = open_logs(list_folder(path), faults)
    log = accept(files, [], faults)
    close_logs(files)
    return log


def test_replaying_any_suffix_twice_changes_nothing(tmp_path: Path) -> None:
    build_store(tmp_path / "s")
    log = _accepted(tmp_path / "s")
    once = Directory()
    once.replay(log.rows)
    for boundary in log.boundaries:
        twice = Directory()
        twice.replay(log.rows)
        twice.replay(log.rows[log.rows["position"] >= boundary])
        assert not list(differences(once, twice))
        assert not list(differences(twice, once))


def test_replayed_directory_is_what_the_writer_holds(tmp_path: Path) -> None:
    built = build_store(tmp_path / "s")
    directory = Directory()
    directory.replay(_accepted(tmp_path / "s").rows)
    held = {
        (key, entry.position, entry.n, entry.d, entry.dp, entry.mask)
        for key, bucket in directory.entries.items()
        for entry in bucket
    }
    expected = {
        (one.key, one.position, len(one.ids), one.d, one.dp, one.bits if one.d == 0 else 0)
        for one in built.writer.live.values()
    }
    assert held == expected
    assert directory.blocks == sum(len(one.ids) - one.d for one in built.writer.live.values())


def test_a_divergence_before_its_root_waits_as_a_placeholder() -> None:
    directory = Directory()
    directory.apply(position=100, key=1, root_key=9, supersedes=0, n=20, d=8, dp=0)
    assert directory.placeholders == {9: 1 << 2}
    directory.apply(position=200, key=9, root_key=9, supersedes=0, n=8, d=0, dp=0)
    assert directory.placeholders == {}
    assert directory.entries[9][0].mask == 1 << 2


def test_a_second_root_takes_the_mask_of_the_first() -> None:
    directory = Directory()
    directory.apply(position=100, key=9, root_key=9, supersedes=0, n=8, d=0, dp=0)
    directory.apply(position=110, key=1, root_key=9, supersedes=0, n=9, d=4, dp=0)
    directory.apply(position=200, key=9, root_key=9, supersedes=0, n=8, d=0, dp=0)
    assert [entry.mask for entry in directory.entries[9]] == [1 << 1, 1 << 1]


def test_the_inspection_tools_import_nothing_of_the_engine() -> None:
    code = "import sys, sarpstore_tools.dump, sarpstore_tools.verify, sarpstore_tools.stats as s; "
    code += "sys.exit(any(name.split('.')[0] == 'sarpstore' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_root_that_goes_hands_its_mask_on() -> None:
    directory = Directory()
    for position in (100, 200):
        directory.apply(position=position, key=9, root_key=9, supersedes=0, n=8, d=0, dp=0)
    directory.entries[9][0].mask = 6
    directory.apply(position=200, key=9, root_key=9, supersedes=100, n=8, d=0, dp=0)
    assert [(entry.position, entry.mask) for entry in directory.entries[9]] == [(200, 6)]

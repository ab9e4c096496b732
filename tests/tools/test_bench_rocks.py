"""The RocksDB designs that sarpstore is compared with answer exactly, alone and concurrently, and after a kill."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.extra

SOURCES = Path(__file__).resolve().parents[2] / "tools" / "sarpstore_tools" / "bench" / "rocks"
COMPILER = shutil.which("c++") or shutil.which("g++")
ALL = [(design, variant) for design in ("blockhash", "segmenthash", "radix") for variant in ("paper", "best")]
ROOT = bytes(16)


class Request(NamedTuple):
    session: int
    history: list[bytes]
    added: list[bytes]
    expected: int


def chain(before: bytes, blocks: int, seed: int) -> list[bytes]:
    """`blocks` block ids that follow `before`: each is a hash of all before it, as real ones are."""
    ids = []
    for i in range(blocks):
        before = hashlib.blake2b(before + seed.to_bytes(8, "little") + i.to_bytes(4, "little"), digest_size=16).digest()
        ids.append(before)
    return ids


def last(ids: list[bytes]) -> bytes:
    return ids[-1] if ids else ROOT


def matched(held: set[bytes], ids: list[bytes]) -> int:
    return next((i for i, block in enumerate(ids) if block not in held), len(ids))


def conversations(sessions: int, turns: int, seed: int) -> list[Request]:
    """Sessions in turn, behind shared prompts that end inside windows, some rewritten or cut short, some twins."""
    rng = random.Random(seed)
    prompts = [chain(ROOT, blocks, rng.getrandbits(60)) for blocks in (0, 5, 37, 64, 100)]
    told: list[list[bytes]] = []
    held: set[bytes] = set()
    requests = []
    for turn in range(turns):
        for session in range(sessions):
            if turn == 0:
                prompt = rng.choice(prompts)
                told.append(prompt + chain(last(prompt), rng.choice((1, 20, 64, 150)), rng.getrandbits(60)))
            history = told[session]
            kind = rng.random()
            if kind < 0.3:  # the end is rewritten, or left out
                history = history[: rng.randint(0, len(history))]
                history = history + chain(last(history), rng.choice((0, 0, 1, 70)), rng.getrandbits(60))
            elif kind < 0.4:  # goes on as another session did
                history = told[rng.randrange(len(told))]
            twin = rng.getrandbits(60) if rng.random() < 0.8 else session % 2
            added = chain(last(history), rng.choice((0, 1, 7, 30, 64, 130)), twin)
            requests.append(Request(session, history, added, matched(held, history)))
            held.update(history, added)
            told[session] = history + added
    return requests


def write(path: Path, requests: list[Request]) -> Path:
    parts = [b"SRPQ0001", struct.pack("<Q", len(requests))]
    for session, history, added, expected in requests:
        parts.append(struct.pack("<4I", session, len(history), len(history) + len(added), expected))
        parts += history + added
    path.write_bytes(b"".join(parts))
    return path


def probes(requests: list[Request]) -> list[Request]:
    """What must match once all of `requests` is held: whole sequences, and one that leaves them inside a window."""
    held = {block for request in requests for block in request.history + request.added}
    whole = [request.history + request.added for request in requests]
    longest = max(whole, key=len)
    strayed = longest[:-9] + chain(longest[-10], 80, 1)
    return [Request(0, ids, [], matched(held, ids)) for ids in (longest, strayed, whole[0], whole[-1])]


@pytest.fixture(scope="session")
def rocks_bench() -> Path:
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    source = b"#include <rocksdb/db.h>\n"
    if subprocess.run([COMPILER, "-x", "c++", "-E", "-"], input=source, capture_output=True).returncode:
        pytest.skip("the RocksDB headers (librocksdb-dev) are not installed")
    digest = hashlib.sha256(COMPILER.encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"sarpstore-rocks-{digest.hexdigest()[:16]}"
    program = folder / "rocks_bench"
    if program.exists():
        return program
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as building:

        def compiled(path: Path) -> str:
            target = f"{building}/{path.stem}.o"
            command = [str(COMPILER), "-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-c", str(path), "-o", target]
            built = subprocess.run(command, capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
            return target

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compiled, sorted(SOURCES.glob("*.cpp"))))
        fresh = f"{building}/rocks_bench"
        subprocess.run([COMPILER, *objects, "-o", fresh, "-lrocksdb", "-lpthread"], check=True)
        Path(fresh).rename(program)
    return program


@pytest.fixture(scope="session")
def requests() -> list[Request]:
    return conversations(10, 10, 7)


class Bench:
    def __init__(self, program: Path, folder: Path, design: str, variant: str) -> None:
        self.program, self.folder = program, folder
        self.chosen = ["--design", design, "--variant", variant, "--cache-bytes", "400000"]

    def call(self, mode: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), mode, *self.chosen, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    def result(self, mode: str, *arguments: object) -> dict[str, Any]:
        out = self.folder / "out.json"
        done = self.call(mode, *arguments, "--out", out)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(out.read_bytes())
        return found

    def answers(self, db: Path, all_probes: list[Request]) -> list[tuple[int, int]]:
        found = []
        for probe in all_probes:
            one = self.result("recover", "--db", db, "--probe", write(self.folder / "probe.bin", [probe]))
            assert 0 < one["open_ms"] <= one["loaded_ms"]
            assert one["open_ms"] <= one["first_match_ms"]
            found.append((one["matched"], one["expected"]))
        return found


@pytest.fixture(params=ALL, ids=[f"{design}-{variant}" for design, variant in ALL])
def bench(request: pytest.FixtureRequest, rocks_bench: Path, tmp_path: Path) -> Bench:
    return Bench(rocks_bench, tmp_path, *request.param)


def test_one_thread_gives_exactly_the_oracles_answers(bench: Bench, requests: list[Request], tmp_path: Path) -> None:
    found = bench.result("run", "--requests", write(tmp_path / "r.bin", requests), "--db", tmp_path / "db")
    assert found["requests"] == len(requests)
    assert (found["wrong"], found["lost_blocks"]) == (0, 0)
    assert found["matched_blocks"] == sum(request.expected for request in requests)
    assert found["latency_us"]["p50"] <= found["latency_us"]["p99"] <= found["latency_us"]["p999"]
    assert found["db_bytes"] > 30 * len({block for request in requests for block in request.history})
    assert found["rss_bytes"] >= found["rss_current_bytes"] > 0


def test_nothing_is_lost_when_eight_threads_insert_at_once(bench: Bench, tmp_path: Path) -> None:
    requests = conversations(16, 6, 11)
    # The same conversations from three more sessions each, so that threads insert the same blocks at the same time.
    crowd = [request._replace(session=request.session + 100 * i) for request in requests for i in range(4)]
    requests_file = write(tmp_path / "r.bin", crowd)
    found = bench.result("run", "--requests", requests_file, "--db", tmp_path / "db", "--threads", 8)
    assert (found["requests"], found["wrong"]) == (len(crowd), 0)
    answers = bench.answers(tmp_path / "db", probes(requests))
    assert [answer for answer, _ in answers] == [expected for _, expected in answers]


def test_all_is_found_again_after_a_kill(bench: Bench, requests: list[Request], tmp_path: Path) -> None:
    filled = bench.call("fill", "--requests", write(tmp_path / "r.bin", requests), "--db", tmp_path / "db")
    assert filled.returncode == -signal.SIGKILL, filled.stderr
    answers = bench.answers(tmp_path / "db", probes(requests))
    assert [answer for answer, _ in answers] == [expected for _, expected in answers]


def test_what_is_not_a_request_file_is_refused(rocks_bench: Path, requests: list[Request], tmp_path: Path) -> None:
    bench = Bench(rocks_bench, tmp_path, "blockhash", "best")
    path = write(tmp_path / "r.bin", requests)
    path.write_bytes(path.read_bytes()[:-1])
    refused = bench.call("run", "--requests", path, "--db", tmp_path / "db", "--out", tmp_path / "out.json")
    assert refused.returncode == 1
    assert "cut short" in refused.stderr

"""`sarpstore bench compare`: requests, driver, judge and workers at tiny sizes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from sarpstore_tools.bench import shapes
from sarpstore_tools.bench.compare import check, engine, measure, model, requests, rocks, worker, workloads
from sarpstore_tools.bench.compare.dictionary import Dictionary
from sarpstore_tools.bench.compare.driver import Driver, Played
from sarpstore_tools.traces import TraceError, TraceSpec


def small_trace(tmp_path, shape="chat", sessions=12, turns=3, **rest):
    spec = TraceSpec(label=shape, generate=shape, sessions=sessions, turns=turns, **rest)
    path = tmp_path / "requests.bin"
    workload = workloads.prepare(spec, path, tmp_path / "hashing", 10.0, lambda done, total: None)
    return path, workload


def written(path, *added):
    """A request file of (session, history, expected, ordinals): the id of a block is a function of its ordinal."""
    with requests.RequestWriter(path) as writer:
        for session, history, expected, ordinals in added:
            ids = np.frombuffer(b"".join(number.to_bytes(16, "little") for number in ordinals), np.uint8)
            writer.add(session, history, expected, ids.reshape(-1, 16), np.array(ordinals))
    return requests.read_requests(path)


def play(made, what, concurrency, limit=None):
    """(what happened) when an engine plays these requests."""

    async def run():
        played = Played(len(made))
        await what.open(None, create=True)
        await Driver(what, made, played, limit).run(concurrency, 60.0)
        return played

    return asyncio.run(run())


def test_a_request_file_gives_back_what_was_written(tmp_path):
    made = written(tmp_path / "r", (3, 1, 0, [0, 1]), (4, 0, 0, []), (3, 2, 2, [0, 1, 2]))
    assert made.session.tolist() == [3, 4, 3]
    assert made.history.tolist() == [1, 0, 2]
    assert made.expected.tolist() == [0, 0, 2]
    assert [len(made.ids_of(i)) for i in range(3)] == [2, 0, 3]
    assert made.ordinals_of(2).tolist() == [0, 1, 2]
    assert np.array_equal(made.ids_of(0), made.ids_of(2)[:2])
    assert np.array_equal(made.locations_of(2), made.ids_of(2)[:, :14])


def test_the_bytes_of_a_request_file_are_those_of_the_protocol(tmp_path):
    ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
    with requests.RequestWriter(tmp_path / "r") as writer:
        writer.add(7, 1, 1, ids, np.zeros(2))
    numbers = b"".join(value.to_bytes(4, "little") for value in (7, 1, 2, 1))
    assert (tmp_path / "r").read_bytes() == b"SRPQ0001" + (1).to_bytes(8, "little") + numbers + ids.tobytes()


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"X" + data[1:], lambda data: data[:20]])
def test_a_damaged_request_file_is_refused(tmp_path, damage):
    path = tmp_path / "r"
    written(path, (0, 1, 0, [0, 1]))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(requests.RequestFileError, match="r: "):
        requests.read_requests(path)


def test_percentiles_are_interpolated_and_in_microseconds():
    latency = measure.latency_of(np.arange(1, 1002, dtype=np.int64) * 1000)
    assert (latency.mean, latency.p50, latency.p99, latency.p999) == pytest.approx((501.0, 501.0, 991.0, 1000.0))
    assert measure.latency_of(np.zeros(0, np.int64)) == model.Latency()
    assert model.Spread.of([3.0, 1.0, 2.0]) == model.Spread(2.0, 1.0, 3.0)


def test_the_oracle_and_the_ids_of_a_trace_agree(tmp_path):
    path, workload = small_trace(tmp_path, "agent", sessions=4)
    made = requests.read_requests(path)
    held: set[bytes] = set()
    for i in range(len(made)):
        keys = [row.tobytes() for row in made.ids_of(i)]
        known = next((n for n, key in enumerate(keys) if key not in held), len(keys))
        assert made.expected[i] == min(known, made.history[i])
        held.update(keys)
    assert workload.blocks == len(held) == len(set(made.ordinals.tolist()))
    assert (workload.requests, workload.sessions) == (len(made), 4)


def test_shapes_are_named_and_differ(tmp_path):
    spec = TraceSpec(label="x", generate="chat")
    system, stripped = workloads.shaped(spec, "system"), workloads.shaped(spec, "stripped")
    assert (system.label, system.system_prompt) == ("x + 600", 600)
    assert (stripped.label, stripped.strip_reasoning) == ("x stripped", True)
    assert workloads.shaped(spec, "plain") is spec
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TraceError):
        workloads.prepare(
            TraceSpec(label="e", path=str(tmp_path / "empty.jsonl")), tmp_path / "r", tmp_path / "h", 10, print
        )


def test_a_match_must_find_what_was_inserted_before_it_and_may_find_what_overlaps_it(tmp_path):
    made = written(tmp_path / "r", (0, 0, 0, [0, 1]), (1, 3, 0, [0, 1, 2]), (2, 3, 0, [0, 1, 2]))
    played = Played(3)
    for request, event in [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (1, 1), (1, 2), (2, 0), (1, 3), (2, 1), (2, 2)]:
        played.note(request, event)
    least, most, blocks = check.bounds(made, played)
    assert (least.tolist(), most.tolist(), blocks) == ([0, 0, 2], [0, 2, 3], 3)
    played.matched[:] = [0, 1, 3]
    assert check.judge(made, played, exact=True, concurrency=3).wrong == 0
    played.matched[:] = [0, 3, 1]
    verdict = check.judge(made, played, exact=True, concurrency=3)
    assert (verdict.wrong, verdict.lost_blocks) == (2, 1)
    assert verdict.mismatches[0] == "request 1: 3 blocks match, 0 to 2 are held"
    assert check.judge(made, played, exact=False, concurrency=3).wrong == 1


class Claiming(Dictionary):
    async def match(self, native):
        blocks, found = await super().match(native)
        return (blocks + 1, [*found, b"?" * 14]) if blocks else (blocks, found)


class Forgetting(Dictionary):
    async def match(self, native):
        blocks, found = await super().match(native)
        return blocks // 2, found[: blocks // 2]


class Misplacing(Dictionary):
    def locations(self, found):
        return super().locations(found)[::-1]


@pytest.mark.parametrize(("kind", "wrong"), [(Dictionary, 0), (Claiming, 1), (Forgetting, 1), (Misplacing, 1)])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_wrong_engine_is_found_out(tmp_path, kind, wrong, concurrency):
    made = requests.read_requests(small_trace(tmp_path)[0])
    played = play(made, kind(1 << 20, 1000), concurrency)
    verdict = check.judge(made, played, exact=True, concurrency=concurrency)
    assert (verdict.wrong > 0) == bool(wrong)
    assert bool(verdict.mismatches) == bool(wrong)
    if kind in (Dictionary, Forgetting):
        assert (verdict.lost_blocks > 0) == bool(wrong)


class Waiting(Dictionary):
    """Every call gives the others their turn; notes what overlaps."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.inside = []
        self.most = 0

    async def match(self, native):
        self.inside.append(native[0][0])
        assert len(set(self.inside)) == len(self.inside)
        self.most = max(self.most, len(self.inside))
        await asyncio.sleep(0)
        return await super().match(native)

    async def insert(self, native):
        await asyncio.sleep(0)
        self.inside.remove(native[0][0])


def test_so_many_requests_are_in_flight_and_never_two_of_a_session(tmp_path):
    rows = [(session, 1, 0, [session]) for turn in range(5) for session in range(6)]
    made = written(tmp_path / "r", *rows)
    for concurrency, most in ((1, 1), (4, 4), (42, 6)):
        what = Waiting(1, 1)
        what.prepare_insert = lambda native, matched: native
        played = play(made, what, concurrency)
        assert (what.most, played.flight_max) == (most, most)
        assert played.done.all()
        for session in range(6):
            begun = [code // 4 for code in played.events if code % 4 == 0 and made.session[code // 4] == session]
            assert begun == sorted(begun)


def test_a_run_stops_at_its_time_and_at_its_limit(tmp_path):
    made = requests.read_requests(small_trace(tmp_path)[0])
    assert play(made, Dictionary(1, 1), 1, limit=5).done.tolist() == [True] * 5 + [False] * (len(made) - 5)
    played = Played(len(made))

    async def run():
        what = Dictionary(1, 1)
        await what.open(None, create=True)
        await Driver(what, made, played).run(4, 0.0)

    asyncio.run(run())
    assert not played.done.any()


@pytest.mark.extra
@pytest.mark.parametrize("name", ["divergence", "divergence-length", "dict", "lmdb", "dynamo", "redis"])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_engines_answer_as_the_oracle_does(tmp_path, name, concurrency):
    path, workload = small_trace(tmp_path, "stripped")
    job = model.CellJob(
        engine=name,
        folder=str(tmp_path / "store"),
        requests=str(path),
        concurrency=concurrency,
        budget_bytes=workload.budget_bytes,
        seconds_max=30.0,
        warm_up=3,
    )
    try:
        found = asyncio.run(worker.run_cell(job))
    except engine.NotAvailableError as error:
        pytest.skip(str(error))
    assert (found.wrong, found.lost_blocks, found.mismatches) == (0, 0, [])
    assert (found.requests, found.blocks) == (workload.requests, workload.blocks)
    assert 0 < found.matched_blocks <= found.history_blocks
    assert found.seconds > 0
    assert found.latency_us.p50 <= found.latency_us.p99 <= found.latency_us.p999
    if name.startswith("divergence"):
        assert found.directory_bytes
        assert found.reads is not None
        assert found.folder_bytes > 16 * workload.blocks


@pytest.mark.extra
@pytest.mark.parametrize("name", ["divergence", "dict", "lmdb", "dynamo", "redis"])
def test_engines_answer_again_from_what_they_kept(tmp_path, name):
    made = written(tmp_path / "r", (0, 20, 0, range(1, 30)))

    async def run():
        kind = engine.engine_class(name)
        first = kind(1 << 20, 100)
        await first.open(tmp_path, create=True)
        native = first.prepare(made.ids_of(0), made.locations_of(0), 20)
        await first.insert(first.prepare_insert(native, 0))
        await first.persist(tmp_path)
        await first.close()
        again = kind(1 << 20, 100)
        await again.open(tmp_path, create=False)
        matched, found = await again.match(native)
        assert matched == 20
        if again.keeps_locations:
            assert again.locations(found) == made.locations_of(0)[:20].tobytes()
        await again.close()

    try:
        asyncio.run(run())
    except engine.NotAvailableError as error:
        pytest.skip(str(error))


def test_an_engine_without_its_library_is_not_available(monkeypatch):
    monkeypatch.setitem(engine.ENGINES, "lmdb", "nowhere:Lmdb")
    with pytest.raises(engine.NotAvailableError, match="not installed here"):
        engine.engine_class("lmdb")


def test_without_a_compiler_or_sources_rocksdb_is_not_available(monkeypatch, tmp_path):
    monkeypatch.setattr(rocks, "SOURCES", tmp_path)
    with pytest.raises(engine.NotAvailableError, match="sources"):
        rocks.RocksProgram().path()
    (tmp_path / "main.cpp").write_text("int main() {}")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(engine.NotAvailableError, match="compiler"):
        rocks.RocksProgram().path()


@pytest.mark.extra
def test_dynamo_events_name_the_block_before_them():
    dynamo = pytest.importorskip("sarpstore_tools.bench.compare.dynamo")
    ids = shapes.random_ids(np.random.default_rng(0), 4)
    hashes = dynamo.hashes_of(ids)
    assert hashes[0] == int.from_bytes(ids[0, :8].tobytes(), "little")
    tree = dynamo.new_tree()
    tree.apply_event(dynamo.WORKER, dynamo.stored_event(0, None, hashes[:2]))
    tree.apply_event(dynamo.WORKER, dynamo.stored_event(1, hashes[1], hashes[2:]))
    assert max(tree.find_matches(hashes).scores.values()) == 4
    assert dynamo.stored_event(2, None, []) == b""

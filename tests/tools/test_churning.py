"""Killing a process that inserts and removes: nothing comes back, and the check would notice if something did."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sarpstore_tools.bench.shapes import locations_of
from sarpstore_tools.churncheck import ChurnOracle
from sarpstore_tools.churning import Churned, churned_tree
from sarpstore_tools.crashing import TASKS, namespace_of
from sarpstore_tools.main import main

import sarpstore

TREE = 5
HOLDER = TREE % TASKS


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_nothing_removed_comes_back_over_a_few_kills(capsys, tmp_path, durability):
    report = tmp_path / "report.json"
    arguments = ["--removals", "--kills", "3", "--seed", "8", "--durability", durability, "--json", str(report)]
    with pytest.raises(SystemExit) as exit_info:
        main(["crashtest", *arguments])
    assert exit_info.value.code == 0, capsys.readouterr().out
    figures = {figure["name"]: figure for figure in json.loads(report.read_bytes())["figures"]}
    assert figures["kills"]["value"] == 3
    assert figures["acknowledged operations"]["value"] > 0
    assert figures["removed blocks that came back"]["value"] == 0
    assert figures["lost blocks"]["value"] == figures["wrong answers"]["value"] == 0


def ids_of(member=0):
    return churned_tree(0, TREE)[member]


def insertion(blocks, member=0, op=0):
    return Churned(op, "insert", TREE, member, [blocks])


def removal(*blocks, member=0, op=1):
    return Churned(op, "remove", TREE, member, list(blocks))


async def held(path, blocks, member=0, locations=locations_of):
    async with sarpstore.open(path) as store:
        ids = ids_of(member)[:blocks]
        await store.namespace(namespace_of(TREE)).insert_ids(ids, locations(ids), holder=HOLDER)


async def check(path, begun, acknowledged):
    oracle = ChurnOracle(0)
    for step in begun:
        oracle.began(step)
    for step in begun[:acknowledged]:
        oracle.acknowledged(step)
    return await oracle.check(str(path), [], read_only=True)


def faults(found):
    return found.lost_blocks, found.returned_blocks, found.wrong


async def test_the_check_is_content_with_any_number_of_operations_from_the_acknowledged_on(tmp_path):
    length = len(ids_of())
    steps = [insertion(length), removal(length - 1), insertion(length, op=2)]
    await held(tmp_path, length)
    for acknowledged in (0, 1, 2, 3):
        found = await check(tmp_path, steps, acknowledged)
        assert (faults(found), found.messages) == ((0, 0, 0), [])
        assert found.queries > 100


async def test_the_check_sees_a_removal_that_came_back(tmp_path):
    length = len(ids_of())
    await held(tmp_path, length)
    steps = [insertion(length), removal(length - 3, length - 2)]
    assert faults(await check(tmp_path, steps, 1)) == (0, 0, 0)
    found = await check(tmp_path, steps, 2)
    assert found.returned_blocks >= 3
    assert "removed" in found.messages[0]


async def test_the_check_sees_a_clearing_and_a_truncation_that_came_back(tmp_path):
    await held(tmp_path, len(ids_of()))
    cleared, truncated = Churned(1, "clear", TREE, 0, []), Churned(1, "truncate", TREE, 0, [1])
    for step in (cleared, truncated):
        assert (await check(tmp_path, [insertion(len(ids_of())), step], 2)).returned_blocks >= 1


async def test_the_check_sees_a_lost_block(tmp_path):
    length = len(ids_of())
    await held(tmp_path, length - 1)
    found = await check(tmp_path, [insertion(length)], 1)
    assert found.lost_blocks >= 1
    assert found.messages


async def test_the_check_sees_what_no_number_of_operations_makes(tmp_path):
    length = len(ids_of())
    await held(tmp_path, length - 1)
    assert faults(await check(tmp_path, [insertion(length)], 0)) != (0, 0, 0)


async def test_the_check_sees_wrong_locations(tmp_path):
    await held(tmp_path, len(ids_of()), locations=lambda ids: np.roll(locations_of(ids), 1))
    assert (await check(tmp_path, [insertion(len(ids_of()))], 1)).wrong >= 1


async def test_the_check_sees_what_another_holder_has(tmp_path):
    await held(tmp_path, len(ids_of()))
    async with sarpstore.open(tmp_path) as store:
        ids = ids_of()
        await store.namespace(namespace_of(TREE)).insert_ids(ids, locations_of(ids), holder=(HOLDER + 1) % TASKS)
    found = await check(tmp_path, [insertion(len(ids_of()))], 1)
    assert found.wrong == 1
    assert "another holder" in found.messages[0]


async def test_the_oracle_goes_on_with_what_it_found(tmp_path):
    """What a kill left undone can't be done by the next one."""
    oracle = ChurnOracle(0)
    length = len(ids_of())
    await held(tmp_path, length)
    for step in (insertion(length), removal(0)):
        oracle.began(step)
    assert faults(await oracle.check(str(tmp_path), [], read_only=True)) == (0, 0, 0)
    async with sarpstore.open(tmp_path) as store:
        await store.namespace(namespace_of(TREE)).remove_ids(ids_of()[:1], holder=HOLDER)
    assert (await oracle.check(str(tmp_path), [], read_only=True)).lost_blocks >= length

from __future__ import annotations
import os
import pytest
from hypothesis import HealthCheck, given, settings
from kernel_machine import Machine, Operation, Setup, runs

EXAMPLES = int(os.environ.get("SARPSTORE_EXAMPLES", "100"))


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("damage", [False, True])
def test_machine(damage: bool, collide: bool) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(runs(damage=damage, collide=collide))
    def run(drawn: tuple[Setup, list[Operation]]) -> None:
        setup, operations = drawn
        Machine(setup).run(operations)

    run()

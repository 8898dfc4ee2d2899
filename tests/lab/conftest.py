"""Check after every test with a lab that it left no fault and no process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab_fixture import leftovers, standing


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    yield
    for lab in standing():
        healed = [str(fault) for fault in lab.heal()]
        assert (lab.name, healed, leftovers(lab)) == (lab.name, [], [])

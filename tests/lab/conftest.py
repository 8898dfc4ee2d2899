"""What holds after every test on the shared lab: no fault in force, no process left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab_fixture import leftovers


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "lab" not in request.fixturenames:
        return
    lab = request.getfixturevalue("lab")
    healed = [str(fault) for fault in lab.heal()]
    assert (healed, leftovers(lab)) == ([], [])

"""A machine is overloaded by what its kernel reports, and a limit waits for it within bounds."""

from __future__ import annotations

import os

import pytest

from clusterrun.model import contract
from clusterrun.runtime import overload
from clusterrun.runtime.overload import PatientLimit, is_overloaded

PRESSURE = "some avg10={0} avg60=0.00 avg300=0.00 total=1\nfull avg10={1} avg60=0.00 avg300=0.00 total=1\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    files = {"/proc/loadavg": "0.10 0.10 0.10 1/500 1234\n"}
    monkeypatch.setattr(overload, "content", lambda path: files.get(path, "").encode())
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return files


@pytest.mark.parametrize(
    ("path", "text", "overloaded"),
    [
        ("/proc/loadavg", "400.00 300.00 20.00 32/900 1234\n", False),
        ("/proc/loadavg", "0.00 0.00 0.00 33/900 1234\n", True),
        ("/proc/loadavg", "", False),
        ("/proc/pressure/memory", PRESSURE.format("99.00", "49.99"), False),
        ("/proc/pressure/memory", PRESSURE.format("99.00", "50.00"), True),
        ("/proc/pressure/io", PRESSURE.format("99.00", "87.10"), True),
        ("/proc/pressure/io", "some avg10=99.00 avg60=0.00 avg300=0.00 total=1\n", False),
    ],
)
def test_the_kernel_tells(kernel: dict[str, str], path: str, text: str, overloaded: bool) -> None:
    kernel[path] = text
    assert is_overloaded() == overloaded


def test_a_limit_waits_for_an_overloaded_machine_within_bounds(
    kernel: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time = [0.0]
    monkeypatch.setattr(overload, "steady", lambda: time[0])
    limit = PatientLimit(10.0)
    assert [limit.expires_within(10.0), limit.expires_within(10.1)] == [False, True]
    kernel["/proc/loadavg"] = "9.00 9.00 9.00 500/900 1234\n"
    last = 10.0 + 10.0 * contract.OVERLOAD_FACTOR
    for now in range(0, int(last), 2):
        time[0] = float(now)
        assert not limit.expires_within(1.0), now
    time[0] = last
    assert limit.expires_within(1.0)

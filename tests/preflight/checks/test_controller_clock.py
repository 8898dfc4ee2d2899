"""The clock of Slurm's controller, as scontrol prints it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from clusterrun.preflight.checks import controller_clock
from clusterrun.preflight.tasks import LocalAnswer, ProbeReading, Target
from tests.preflight.checks.values import asked

UNKNOWN = (-math.inf, math.inf)


def bounds(*nodes: int) -> tuple[float, float]:
    peers = tuple(Target(node, f"n{node}", f"10.0.0.{node}", (), 0) for node in nodes)
    value = json.dumps(controller_clock.probe(asked(peers=peers)))
    return controller_clock.bounds(LocalAnswer((ProbeReading("controller-clock", value),)))


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "scontrol"
    program.write_text(
        '#!/bin/sh\necho "Configuration data as of $(date +$SLURM_TIME_FORMAT -d @1700000000)"\n'
    )
    program.chmod(0o755)
    return program


def test_only_the_first_of_two_nodes_asks(scontrol: Path) -> None:
    before = time.time()
    least, most = bounds(0, 1)
    assert 1700000000 - time.time() <= least < most <= 1700000001 - before
    assert [bounds(*nodes) for nodes in ((1, 0), (0, 1, 2))] == [UNKNOWN, UNKNOWN]


def test_a_controller_that_does_not_answer_is_no_clock(scontrol: Path) -> None:
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    assert (bounds(0, 1), controller_clock.bounds(None)) == (UNKNOWN, UNKNOWN)

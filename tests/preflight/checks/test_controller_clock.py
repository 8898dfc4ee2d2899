"""The clock of Slurm's controller, as scontrol prints it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clusterrun.preflight.checks import controller_clock
from clusterrun.preflight.tasks import ProbeReading, Target
from tests.preflight.checks.values import asked


def reading(*nodes: int) -> ProbeReading:
    peers = tuple(Target(node, f"n{node}", f"10.0.0.{node}", (), 0) for node in nodes)
    return ProbeReading("controller-clock", json.dumps(controller_clock.probe(asked(peers=peers))), 0.1)


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
    at, asked_at, answered_at = controller_clock.times(reading(0, 1)) or (0.0, 0.0, 0.0)
    assert (at, asked_at < answered_at <= time.time() + 0.5) == (1700000000.5, True)
    assert [controller_clock.times(reading(*nodes)) for nodes in ((1, 0), (0, 1, 2))] == [None, None]


def test_a_controller_that_does_not_answer_is_no_clock(scontrol: Path) -> None:
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    assert controller_clock.times(reading(0, 1)) is None

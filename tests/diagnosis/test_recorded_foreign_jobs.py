"""Looks at real hanging jobs under several launchers, as `benchmarks/bench_foreign_jobs.py` records them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clusterrun.diagnosis.job_looks import JobLook
from clusterrun.diagnosis.job_worlds import JobHistory, diagnose_looks
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.document import decode
from clusterrun.model.frozen import replace

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "foreign-jobs.json"
JOBS: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", JOBS)
def test_the_rank_to_blame_is_named_and_never_another(name: str) -> None:
    """The second look is half a minute later and shows the same: py-spy may have woken ranks in the first."""
    looks = [decode(JobLook, look) for look in JOBS[name]["looks"]]
    history = JobHistory()
    first = diagnose_looks(looks, (), history).diagnosis
    assert {culprit.rank for culprit in first.culprits} <= set(JOBS[name]["culprits"]), first.message
    diagnosis = diagnose_looks([_later(look, 30.0) for look in looks], (), history).diagnosis
    blamed = [culprit.rank for culprit in diagnosis.culprits]
    if name.endswith(("-computes", "-endless_loop", "-waits_for_its_worker")):
        # Long work looks the same, so the rank is only named.
        assert (blamed, diagnosis.verdict) == ([], Verdict.UNDETERMINED)
        assert f"for rank {JOBS[name]['culprits'][0]}, which is busy" in diagnosis.message
    else:
        assert blamed == JOBS[name]["culprits"], diagnosis.message
    assert all(seconds < 1000 for seconds in map(int, re.findall(r"waited (\d+) s", str(diagnosis.evidence))))


@pytest.mark.parametrize(
    "name, rank, call",
    [("torchrun-h100_extra_barrier", 1, "barrier"), ("srun-h100_recv_without_send", 1, "recv from rank 0")],
)
def test_a_rank_in_another_call_than_the_others_is_named_but_not_blamed(
    name: str, rank: int, call: str
) -> None:
    """A GPU call that does not end does not show which collective the GPU waits for."""
    looks, history = [decode(JobLook, look) for look in JOBS[name]["looks"]], JobHistory()
    diagnose_looks(looks, (), history)
    diagnosis = diagnose_looks([_later(look, 30.0) for look in looks], (), history).diagnosis
    assert diagnosis.verdict is Verdict.UNDETERMINED
    assert f"rank {rank} waits in {call} at cases.py" in diagnosis.message


def _later(look: JobLook, seconds: float) -> JobLook:
    ranks = []
    for rank in look.ranks:
        snapshot = replace(rank.snapshot, clock=rank.snapshot.clock + seconds)
        ranks.append(replace(rank, snapshot=snapshot))
    return replace(look, ranks=tuple(ranks))


def test_looks_of_all_launchers_are_recorded() -> None:
    launchers = {name.partition("-")[0] for name in JOBS}
    assert launchers >= {"torchrun", "srun", "mpirun", "accelerate", "spawn", "lightning", "lightning_alone"}

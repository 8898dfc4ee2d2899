"""The law: flight records of a healthy job blame nobody, whenever each rank is looked at.

`tests/recorded/flight-records` holds records of torch's own recorder. Each job was healthy, or had one fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import Group, RankSnapshot
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.monitor.rank_channels import records
from clusterrun.rank_hooks import clusterrun_prelude
from tests.diagnosis.ranks import ALL_REDUCE, LOOP, case, rank
from tests.monitor.stage import ROOT

FOLDER = ROOT / "tests/recorded/flight-records"
# The culprits of the jobs with a fault; a job without an entry is healthy.
FAULTY = {"absent": {1}, "order": {1}, "extra": {0}}
Job = list[dict[str, Any]]


def recorded_jobs(is_healthy: bool) -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.json")):
        for kind, job in json.loads(path.read_text())["jobs"].items():
            if (kind not in FAULTY) == is_healthy:
                yield pytest.param(kind, job, id=f"{path.stem} {kind}")


@pytest.fixture(scope="module")
def read_by_witness() -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the thread in a rank reports of the rank's flight records."""
    space = clusterrun_prelude.witness(str(ROOT / "clusterrun/rank_hooks"))

    def read(dump: dict[str, Any]) -> list[dict[str, Any]]:
        modules = {
            "torch.distributed.distributed_c10d": SimpleNamespace(
                _world=SimpleNamespace(pg_map={}, pg_names={})
            ),
            "torch._C._distributed_c10d": SimpleNamespace(
                _dump_nccl_trace_json=lambda collectives, active: json.dumps(dump)
            ),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, module in modules.items():
                patch.setitem(sys.modules, name, module)
            return space["flight"](64)  # type: ignore[no-any-return]

    return read


def clock_of(job: Job) -> float:
    """Return when the ranks were looked at: just after the newest call."""
    return max(int(entry["time_created_ns"]) for dump in job for entry in dump["entries"]) / 1e9 + 0.01


def ranks_of(job: Job, read: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> list[RankSnapshot]:
    ranks = []
    for number, dump in enumerate(job):
        own_records = records({"records": read(dump)})
        groups = []
        for name, config in dump["pg_config"].items():
            members = json.loads(config["ranks"]) or list(range(len(job)))
            begun = max((record.sequence for record in own_records if record.group == name), default=0)
            folded = fold([str(member) for member in members]).strip("[]")
            is_default = config.get("desc") == "default_pg"
            groups.append(Group(name, len(members), begun, is_default, "nccl", folded))
        waits = bool(own_records) and not own_records[-1].done
        ranks.append(
            rank(
                number,
                len(job),
                records=own_records,
                groups=tuple(groups),
                node=f"n{number}",
                stack=ALL_REDUCE if waits else LOOP,
                state="R",
                busy=1.0,
                moved=True,
                clock=clock_of(job),
                quiet=1.0,
            )
        )
    return ranks


def without_newest(observed: RankSnapshot, count: int) -> RankSnapshot:
    """Return the rank as it was some calls earlier, when it waited in one."""
    earlier = observed.records[: len(observed.records) - count]
    earlier = (*earlier[:-1], replace(earlier[-1], done=False)) if earlier else ()
    return replace(observed, records=earlier)


def ahead(observed: RankSnapshot, seconds: float) -> RankSnapshot:
    late = tuple(replace(record, at=record.at + seconds) for record in observed.records)
    return replace(observed, records=late, clock=observed.clock + seconds)


CLOCK_AHEAD = 40.0
CONDITIONS: dict[str, Callable[[list[RankSnapshot]], list[RankSnapshot]]] = {
    "as recorded": lambda ranks: ranks,
    "the first rank was seen earlier": lambda ranks: [without_newest(ranks[0], 2), *ranks[1:]],
    "the last rank was seen earlier": lambda ranks: [*ranks[:-1], without_newest(ranks[-1], 3)],
    "a clock is ahead": lambda ranks: [ahead(ranks[0], CLOCK_AHEAD), *ranks[1:]],
    "few records are left": lambda ranks: [replace(one, records=one.records[-4:]) for one in ranks],
    "one rank did not answer": lambda ranks: [
        *ranks[:-1],
        replace(ranks[-1], records=(), groups=(), answered=False),
    ],
}


def diagnosed(ranks: list[RankSnapshot], **more: Any) -> Diagnosis:
    return decide(case(*ranks, **more)).diagnosis


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(("kind", "job"), list(recorded_jobs(is_healthy=True)))
def test_no_healthy_recording_blames_a_rank(
    kind: str, job: Job, condition: str, read_by_witness: Callable[..., list[dict[str, Any]]]
) -> None:
    offsets = (("n0", CLOCK_AHEAD),) if condition == "a clock is ahead" else ()
    result = diagnosed(CONDITIONS[condition](ranks_of(job, read_by_witness)), offsets=offsets)
    assert (result.culprits, result.verdict) == ((), Verdict.NOTHING), result


@pytest.mark.parametrize(("kind", "job"), list(recorded_jobs(is_healthy=False)))
def test_a_recording_of_a_faulty_job_names_the_rank(
    kind: str, job: Job, read_by_witness: Callable[..., list[dict[str, Any]]]
) -> None:
    ranks = [replace(observed, moved=False, quiet=60.0) for observed in ranks_of(job, read_by_witness)]
    ranks = [replace(one, clock=one.clock + 60.0) for one in ranks]
    result = diagnosed(ranks, stalled=60.0)
    assert {culprit.rank for culprit in result.culprits} == FAULTY[kind], result

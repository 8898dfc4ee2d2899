"""Runs inside an allocation of the user's: its nodes are shared out, and nobody ends the job but its user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.document import BadDocument, decode, encode_set
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import fields, frozen, replace
from clusterrun.model.record import RunRecord, RunState
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.operations.cancel import cancel
from clusterrun.operations.clean import _ReasonsToKeep
from clusterrun.operations.context import Context
from clusterrun.operations.interactive import (
    SILENT_SECONDS,
    allocation,
    batch_environment,
    fit_to_allocation,
    held,
)
from clusterrun.operations.job_matching import Jobs
from clusterrun.operations.run_state import RunEvidence, judge
from clusterrun.slurm.allocation import Allocation, read
from tests.logs.test_follow import HandClock
from tests.operations.test_status import Slurm, add
from tests.operations.values import NOW, RECORD, SPEC, row, state

THERE = Allocation("41", ("n0", "n1", "n2"), 4, "train", "clusterrun:x:token")
PLAIN = JobSpec(("train.py",), cwd="/home/me")
INSIDE = replace(
    RECORD,
    in_allocation=True,
    must_understand=("in_allocation",),
    process="12.99",
    spec=replace(SPEC, nodes=1, nodelist="n1"),
)
OLD = state(updated_at=NOW - 400)


@pytest.mark.parametrize(
    "changes, explicit, taken, answer",
    [
        # options that are not explicit follow the allocation's
        ({}, "", {}, (3, 4, "n[0-2]")),
        ({"spares": 1}, "", {}, (2, 4, "n[0-2]")),
        ({"ranks_per_node": 2}, "", {}, (3, 0, "n[0-2]")),
        ({"gpus": 2}, "gpus", {}, (3, 2, "n[0-2]")),
        ({"gpus": 0}, "gpus", {}, (3, 0, "n[0-2]")),
        # fewer nodes, chosen nodes, and the remaining nodes
        ({"nodes": 1}, "nodes", {}, (1, 4, "n0")),
        ({"nodes": 1}, "nodes", {"n0": "x"}, (1, 4, "n1")),
        ({"nodelist": "n[2,1]"}, "nodelist", {"n0": "x"}, (2, 4, "n[1-2]")),
        ({"exclude": "n1"}, "exclude", {}, (2, 4, "n[0,2]")),
        ({"nodes": 1, "spares": 1}, "nodes", {"n1": "x"}, (1, 4, "n[0,2]")),
        # more than there are
        ({"nodes": 4}, "nodes", {}, "4 nodes are requested; job 41 has 3 for it: n[0-2]"),
        ({"nodes": 3, "spares": 1}, "nodes", {}, "4 nodes are requested; job 41 has 3 for it: n[0-2]"),
        ({"spares": 3}, "", {}, "4 nodes are requested; job 41 has 3 for it: n[0-2]"),
        ({"exclude": "n[0-2]"}, "exclude", {}, "1 nodes are requested; job 41 has 0 for it: none"),
        ({"nodelist": "n[2-3]"}, "nodelist", {}, "--nodelist: job 41 does not have n3"),
        ({"gpus": 8}, "gpus", {}, "--gpus 8: job 41 has 4 on each node"),
        # nodes that other runs have
        ({}, "", {"n1": "x"}, "of the nodes n[0-2] other runs have n1: x"),
        ({"nodes": 2}, "nodes", {"n0": "x", "n1": "y"}, "of the nodes n[0-2] other runs have n[0-1]: x, y"),
    ],
)
def test_a_run_uses_nodes_of_the_allocation_that_no_other_run_has(
    changes: dict[str, Any], explicit: str, taken: dict[str, str], answer: object
) -> None:
    try:
        spec = fit_to_allocation(replace(PLAIN, **changes), explicit.split(), THERE, taken)
    except BadInput as error:
        assert error.seen == answer
        return
    assert (spec.nodes, spec.gpus, spec.nodelist) == answer
    assert (spec.cluster, spec.exclude) == (Cluster.SLURM, "")


JOB = """\
JobId=2 JobName=interactive
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[0001-0002]
   BatchHost=n0001
   TRES=cpu=2,mem=125G,node=2,billing=2
   JOB_GRES=gpu:4
     Nodes=n[0001-0002] CPU_IDs=0 Mem=64000 GRES=gpu:2(IDX:0-1)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   TresPerNode=gres:gpu:2
"""
"""The description of a running job by scontrol of 22.05."""


def test_an_allocation_is_read_as_slurm_tells_it() -> None:
    unlike = JOB.replace(
        "     Nodes=n[0001-0002] CPU_IDs=0 Mem=64000 GRES=gpu:2(IDX:0-1)\n",
        "     Nodes=n0001 CPU_IDs=0 Mem=1 GRES=gpu:a100:8(IDX:0-7)\n"
        "     Nodes=n0002 CPU_IDs=0 Mem=1 GRES=gpu:a100:3(IDX:0-2)\n",
    )
    bare = JOB.replace("GRES=gpu:2(IDX:0-1)", "GRES=")
    assert [read("2", text) for text in (JOB, unlike, bare)] == [
        Allocation("2", ("n0001", "n0002"), gpus, "interactive") for gpus in (2, 3, 0)
    ]
    ours = JOB.replace("JobName=interactive", "JobName=a b") + "   Comment=clusterrun:x:token\n"
    assert (read("2", ours).name, read("2", ours).comment) == ("a b", "clusterrun:x:token")
    for text, message in (
        (JOB.replace("RUNNING", "COMPLETING"), "is COMPLETING, not one that is RUNNING"),
        ("", "is not known to Slurm"),
        (JOB + JOB, "is RUNNING and RUNNING, not one that is RUNNING"),
    ):
        with pytest.raises(BadInput, match=message):
            read("2", text)
    with pytest.raises(BadInput, match="SLURM_JOB_ID is not set"):
        allocation(Context({}))


@pytest.mark.parametrize("node_list, nodes", [("n0002", ("n0002",)), ("n[0001-0002]", ("n0001", "n0002"))])
def test_a_run_stays_on_the_fit_nodes_of_this_job(
    node_list: str, nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def allocation(self, job_id: str) -> Allocation:
            return read(job_id, JOB)

    environ = {"SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": node_list, "CLUSTERRUN_FIT_NODELIST": "n0002"}
    context = Context(environ)
    monkeypatch.setattr(context, "client", Client)
    assert allocation(context).nodes == nodes


def test_srun_gets_the_job_and_no_variable_of_the_step_around_us() -> None:
    around = {"PATH": "/bin", "SLURM_JOB_ID": "41", "SLURM_CONF": "/etc/x", "SLURM_STEP_ID": "0"}
    around |= {
        "SLURM_NTASKS": "1",
        "SLURM_CPU_BIND": "x",
        "SQUEUE_PARTITION": "x",
        "SLURM_JOB_NODELIST": "n[0-2]",
        "SLURM_NNODES": "1",
    }
    around |= {"SLURMD_NODENAME": "n0"}
    of_the_job = {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_NAME": "fit", "SLURM_SUBMIT_DIR": "/home/me"}
    of_the_job |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CLUSTER_NAME": "c", "SLURM_JOB_GPUS": "0,1"}
    assert batch_environment({**around, **of_the_job}, "41", ("n1", "n2")) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/x",
        "SLURMD_NODENAME": "n0",
        **of_the_job,
        "SLURM_JOB_ID": "41",
        "SLURM_JOBID": "41",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
    }


LIVES, ENDED, GONE = row(), row("TIMEOUT"), row("COMPLETED")


@pytest.mark.parametrize(
    "evidence, answer",
    [
        # the run's own word, whatever becomes of the allocation
        ({"row": LIVES, "state": state(State.COMPLETED)}, State.COMPLETED),
        ({"row": ENDED, "state": state(State.COMPLETED)}, State.COMPLETED),
        ({"row": ENDED, "state": state(State.FAILED)}, State.FAILED),
        ({"row": None, "state": state(State.FAILED)}, State.FAILED),
        ({"row": LIVES, "alive": True, "state": OLD}, State.RUNNING),
        ({"row": LIVES}, State.RUNNING),
        ({"row": LIVES, "alive": True}, State.RUNNING),
        # its coordinator is gone without a word; for a moment its state may be on its way
        ({"row": LIVES, "alive": False, "state": OLD}, State.FAILED),
        ({"row": LIVES, "alive": False, "state": state()}, State.RUNNING),
        ({"row": LIVES, "alive": False, "cancel_asked": True}, State.CANCELLED),
        ({"answered": False, "alive": False, "state": OLD}, State.FAILED),
        # seen from another machine
        ({"row": LIVES, "state": OLD}, State.RUNNING),
        ({"row": ENDED, "state": OLD}, State.TIMEOUT),
        ({"row": GONE, "state": OLD}, State.FAILED),
        ({"row": None, "state": OLD}, State.FAILED),
        ({"row": None, "answered": False, "state": OLD}, State.UNKNOWN),
        ({"row": LIVES, "answered": False, "state": OLD, "asked_at": NOW - 9}, State.UNKNOWN),
        ({"row": None, "elsewhere": "far", "state": OLD}, State.UNKNOWN),
    ],
)
def test_the_allocation_lives_on_after_the_run_and_may_end_before_it(
    evidence: dict[str, Any], answer: State
) -> None:
    status = judge(RunEvidence(**{"record": INSIDE, "run_dir": "/r", "now": NOW, **evidence}))
    assert status.state is answer
    assert "scancel" not in status.reason
    assert (status.phase is Phase.ENDED) == answer.ended


def test_the_end_of_a_run_in_an_allocation_has_its_reason() -> None:
    def reason(**evidence: Any) -> str:
        return judge(RunEvidence(record=INSIDE, run_dir="/r", now=NOW, **evidence)).reason

    assert reason(row=GONE, state=OLD) == "its allocation, job 41, ended before it (COMPLETED)"
    assert reason(row=LIVES, state=state(State.CANCELLED), cancel_asked=True) == (
        "by Ctrl-C or clusterrun cancel"
    )
    assert reason(row=LIVES, alive=False, state=OLD).startswith(
        "ended without giving a reason: its coordinator is gone"
    )


def test_an_older_client_does_not_take_the_allocation_for_the_runs_job() -> None:
    older = frozen(
        type(
            "Older",
            (),
            {
                "__module__": RunRecord.__module__,
                "__annotations__": {
                    name: kind
                    for name, kind in RunRecord.__annotations__.items()
                    if name not in ("in_allocation", "process", "must_understand")
                },
            },
        )
    )
    with pytest.raises(BadDocument, match="'in_allocation' is of a newer clusterrun"):
        decode(older, json.loads(json.dumps(encode_set(INSIDE))))
    assert decode(RunRecord, json.loads(json.dumps(encode_set(INSIDE)))) == INSIDE
    assert {"in_allocation", "process", "must_understand"}.isdisjoint(encode_set(RECORD))


def test_a_job_of_the_same_number_that_began_after_the_run_is_another_job() -> None:
    record = replace(INSIDE, submitted_at=NOW)
    rows = [row(start=NOW - 60, comment=""), row(start=NOW + 3600, comment=""), row(job_id="42")]
    assert [Jobs([job_row]).of(record) == [job_row] for job_row in rows] == [True, False, False]
    assert Jobs(rows[:1], lambda _: "far").of(record) == []


@pytest.fixture
def context(tmp_path: Path) -> Context:
    clock = HandClock()
    clock.time = NOW
    slurm = Slurm(row(comment="", name="train"))
    environ = {"CLUSTERRUN_HOME": str(tmp_path / "home")}
    return Context(environ, clock, slurm)  # type: ignore[arg-type]


def changes(record: RunRecord = INSIDE) -> dict[str, Any]:
    return {name: value for name, value in fields(record).items() if name not in ("run_id", "job_id")}


def test_cancel_ends_the_run_and_leaves_the_allocation(context: Context) -> None:
    slurm = context.client()
    chosen = add(context, **{**changes(), "host": "elsewhere"}, run_state=state())
    ((_, after),) = cancel(context, [chosen], print)
    assert after.state is State.RUNNING, "nobody is there who could end it"
    assert (slurm.cancelled, context.store.cancel_asked(chosen)) == ([], True)  # type: ignore[attr-defined]


def test_an_ended_run_may_be_removed_while_its_allocation_lives(context: Context) -> None:
    chosen = add(context, **changes(), run_state=state(State.COMPLETED))
    (status,) = context.inquiry().statuses([chosen])
    assert _ReasonsToKeep(context)(status) == ""


@pytest.mark.parametrize(
    "record, run_state, answer",
    [
        (INSIDE, state(), ["n1"]),
        (INSIDE, None, ["n1"]),
        (INSIDE, state(State.FAILED), []),
        (INSIDE, state(updated_at=NOW - SILENT_SECONDS - 1), []),
        (replace(INSIDE, submitted_at=NOW - SILENT_SECONDS - 1), None, []),
        (RECORD, state(), ["n0", "n1", "n2"]),
        (replace(RECORD, token="older"), state(), []),
    ],
)
def test_nodes_of_live_runs_are_in_use(
    context: Context, record: RunRecord, run_state: RunState | None, answer: list[str]
) -> None:
    chosen = add(context, **{**changes(record), "host": "elsewhere"}, run_state=run_state)
    add(context, "42", **changes(INSIDE), run_state=state())
    assert held(context, THERE) == dict.fromkeys(answer, chosen)


def test_no_job_is_queued_behind_a_run_in_an_allocation(context: Context) -> None:
    from clusterrun.operations.submit import _job_ids

    chosen = add(context, **changes(), run_state=state())
    with pytest.raises(ClusterrunError, match="is not in Slurm's queue"):
        list(_job_ids([chosen], context))

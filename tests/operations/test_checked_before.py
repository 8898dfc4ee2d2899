"""Which earlier check counts for a run in the same allocation, and what takes its word away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.document import encode, encode_set
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.model.record import RunState
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.operations import checked_before
from clusterrun.operations.checked_before import COUNTS_SECONDS, earlier, key, recent_ids, without_own_check
from clusterrun.operations.context import Context
from clusterrun.operations.report import NoReport, report_of
from clusterrun.runs.store import CheckedFor, run_id
from clusterrun.script.plan import MachineFacts, Plan, plan
from tests.logs.test_follow import HandClock
from tests.operations.test_status import add
from tests.operations.values import ATTEMPT, FAILURE, NOW, state

CHOSEN = (("NCCL_SOCKET_IFNAME", "=ib0"),)
RAN = replace(ATTEMPT, ranks_at=NOW - 40, ended_at=NOW - 4)
WELL = state(State.COMPLETED, attempts=(RAN,))
MISTAKE = replace(FAILURE, code=1, last_lines=("Traceback (most recent call last):", "NameError: name 'x'"))
SITE = MachineFacts(slurm=True, python="/usr/bin/python3", allocation="41")


def planned(nodes: str = "n[0-1]", **changes: Any) -> Plan:
    requested = JobSpec(("train.py",), "/home/me", cluster=Cluster.SLURM, nodes=2, gpus=4, nodelist=nodes)
    return plan(replace(requested, **changes), "run", "token", "/runs/run", SITE)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    clock = HandClock()
    clock.time = NOW
    return Context({"CLUSTERRUN_HOME": str(tmp_path / "home")}, clock)


def ended(
    context: Context, run_state: RunState | None, nodes: str, at: float = NOW - 60, by: str = "x"
) -> str:
    """Add a run of the allocation that relied on the check of another one."""
    spec = replace(planned(nodes).spec, environment=())
    chosen = add(
        context, at=at, run_state=run_state, spec=spec, in_allocation=True, must_understand=("in_allocation",)
    )
    Path(context.store.paths(chosen).checked_for).write_text(json.dumps(encode_set(CheckedFor("key", by))))
    return chosen


def checked(
    context: Context,
    level: str = "full",
    grade: Grade = Grade.PASS,
    nodes: str = "n[0-1]",
    at: float = NOW - 90,
) -> str:
    """Add a run of the allocation that made a check and whose ranks completed."""
    chosen = ended(context, WELL, nodes, at, by="")
    world = ("n0", "n1") if nodes == "n[0-1]" else (nodes,)
    report = Report(
        chosen, "c", level, grade, at, 9.0, 60.0, 1, "gloo", world, (), (), (), environment=CHOSEN
    )
    path = Path(context.store.paths(chosen).attempt(0).preflight)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(encode(report)))
    return chosen


def answer(context: Context, planned_run: Plan, own_key: str = "key") -> Report | None:
    records = [context.store.read(run) for run in context.store.ids()]
    return earlier(planned_run, own_key, records, context)


@pytest.mark.parametrize(
    "earlier_run, changes, counts",
    [
        ({}, {}, True),
        ({"grade": Grade.WARN}, {}, True),
        ({}, {"nodelist": "n1", "nodes": 1}, True),
        ({}, {"preflight": "quick"}, True),
        ({"level": "quick"}, {"preflight": "quick"}, True),
        ({"level": "quick"}, {}, False),
        ({"grade": Grade.UNDETERMINED}, {}, False),
        ({"nodes": "n0"}, {}, False),
        ({}, {"nodelist": "n[1-2]"}, False),
        ({"at": NOW - COUNTS_SECONDS - 1}, {}, False),
    ],
)
def test_a_check_counts_for_the_same_nodes_and_no_more_than_it_looked_at(
    context: Context, earlier_run: dict[str, Any], changes: dict[str, Any], counts: bool
) -> None:
    by = checked(context, **earlier_run)
    expected = context.store.report(by, 0) if counts else None
    assert answer(context, planned(**changes)) == expected
    assert answer(context, planned(**changes), "another key") is None


@pytest.mark.parametrize(
    "run_state, nodes, counts",
    [
        (WELL, "n[0-1]", True),
        (replace(WELL, state=State.CANCELLED), "n0", True),
        (state(State.FAILED, attempts=(replace(RAN, failure=MISTAKE),)), "n[0-1]", True),
        # elsewhere in the allocation
        (state(State.FAILED, attempts=(replace(RAN, failure=FAILURE),)), "n2", True),
        (None, "n2", True),
        # a reason to doubt the nodes
        (state(State.FAILED, attempts=(replace(RAN, failure=FAILURE),)), "n1", False),
        (state(State.FAILED, attempts=(replace(RAN, failure=replace(MISTAKE, code=-9)),)), "n1", False),
        (state(State.FAILED, attempts=(replace(RAN, failure=replace(MISTAKE, rank=-1)),)), "n1", False),
        (state(State.FAILED, attempts=(replace(RAN, failure=replace(MISTAKE, noticed=True)),)), "n1", False),
        (state(State.FAILED), "n1", False),
        (state(State.NODE_FAIL, attempts=(RAN,)), "n1", False),
        (replace(WELL, attempts=(RAN, RAN)), "n1", False),
        (replace(WELL, warnings=("no rank has done anything for 600 s",)), "n1", False),
        (replace(WELL, excluded=("n1",)), "n1", False),
        # ended before its ranks ran, never heard of, or still running without being heard of
        (state(State.CANCELLED), "n1", False),
        (None, "n1", False),
        (state(attempts=(RAN,)), "n1", False),
    ],
)
def test_a_run_that_casts_doubt_on_a_node_revokes_the_check(
    context: Context, run_state: RunState | None, nodes: str, counts: bool
) -> None:
    checked(context)
    ended(context, run_state, nodes)
    assert (answer(context, planned()) is not None) is counts


@pytest.mark.parametrize(
    "lines, own",
    [
        (("NameError: name 'x' is not defined",), True),
        (("KeyError: 'x'", "During handling of the above exception", "ValueError: y"), True),
        (("subprocess.CalledProcessError: x",), False),
        (("TypeError: x", "torch.distributed.DistBackendError: NCCL error"), False),
        (("RuntimeError: CUDA error: an illegal memory access",), False),
        (("ModuleNotFoundError: No module named 'x'",), False),
        (("no exception at all",), False),
    ],
)
def test_only_a_mistake_in_the_programs_text_clears_its_nodes(lines: tuple[str, ...], own: bool) -> None:
    failed = state(State.FAILED, attempts=(replace(RAN, failure=replace(MISTAKE, last_lines=lines)),))
    assert checked_before.undisturbed(failed) is own


def test_the_newest_check_that_suffices_counts_past_another_kind_of_run(context: Context) -> None:
    full = checked(context)
    checked(context, level="quick", at=NOW - 70)
    report = answer(context, planned())
    assert report and report.run_id == full


def test_unreadable_records_are_ignored(context: Context) -> None:
    chosen = checked(context)
    Path(context.store.paths(chosen).checked_for).write_text("{")
    assert answer(context, planned()) is None


def test_a_different_python_container_environment_or_allocation_is_checked_again(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    packages = tmp_path / "env" / "lib" / "python3.9" / "site-packages"
    packages.mkdir(parents=True)
    planned_run = planned(python=str(python))
    same = key(planned_run, {"HOME": "/a", "LR": "1"})
    assert key(planned("n5", command=("other.py",), python=str(python)), {"HOME": "/b"}) == same
    others = {
        key(planned_run, {"NCCL_DEBUG": "INFO"}),
        key(planned_run, {"LD_LIBRARY_PATH": "/x"}),
        key(planned_run, {"SLURM_RESTART_COUNT": "1"}),
        key(planned(python=str(python), environment=(("GLOO_SOCKET_IFNAME", "eth1"),)), {}),
        key(planned(python=str(python), gpus=2), {}),
        key(planned(python=str(python), setup=("module load x",)), {}),
        key(planned(python=str(python), preflight_limit=(("noise", 0.5),)), {}),
        key(planned(python="/other/bin/python"), {}),
        key(replace(planned_run, allocation="42"), {}),
    }
    os.utime(packages, (1, 1))  # as after pip install
    assert same not in others | {key(planned_run, {})}
    assert len(others) == 9


def test_ranks_get_the_earlier_checks_choice_if_the_user_set_nothing() -> None:
    chosen = (*CHOSEN, ("GLOO_SOCKET_IFNAME", "ib0"))
    check = Report("x", "c", "full", Grade.PASS, NOW, 9, 60, 1, "", (), (), (), (), environment=chosen)
    planned_run = without_own_check(planned(environment=(("A", "1"),)), check, {"GLOO_SOCKET_IFNAME": "eth0"})
    assert planned_run.orders.environment == (("A", "1"), *CHOSEN)
    assert (planned_run.orders.preflight, planned_run.orders.preflight.level) == (Preflight(), Level.OFF)
    assert planned_run.spec.level is Level.FULL, "the line that submits it again says nothing of a check"
    in_setup = without_own_check(planned(setup=("export NCCL_SOCKET_IFNAME=eth1",)), check, {})
    assert in_setup.orders.environment == (("GLOO_SOCKET_IFNAME", "ib0"),)


def test_only_runs_of_the_last_hour_are_opened() -> None:
    ids = [run_id("a", NOW - seconds, b"ab") for seconds in (1, 3000, 9000, 9001)]
    assert list(recent_ids(iter(ids), NOW)) == ids[:2]


def test_the_report_of_a_run_without_a_check_points_to_the_one_that_counted(context: Context) -> None:
    by = checked(context)
    chosen = ended(context, WELL, "n[0-1]", by=by)
    with pytest.raises(NoReport, match=f"{by} had checked") as refused:
        report_of(context, chosen)
    assert refused.value.remedy == f"clusterrun report {by}"

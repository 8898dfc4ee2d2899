"""Options for survival: their defaults, the options of sbatch, the orders for the nodes."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from clusterrun.config import settings
from clusterrun.config.settings import Source, settle
from clusterrun.config.spec_fields import spec_of
from clusterrun.model.errors import BadInput
from clusterrun.model.orders import Survival
from clusterrun.model.spec import JobSpec
from clusterrun.script.plan import MachineFacts, Plan, plan
from clusterrun.script.requeue_options import described

RUN_DIR = "/runs/r"
SCRIPT = f"{RUN_DIR}/script.sh"
SBATCH = ("sbatch", "--parsable")
NO_DEPENDENCY = ("--dependency=", "{dependency}")


def planned(slurm: bool = True, kill_wait_of_slurm: float = 30.0, **wish: Any) -> Plan:
    spec = spec_of(("train.py",), "/", {"preflight": "full", **wish})
    facts = MachineFacts(slurm=slurm, python="/usr/bin/python3", kill_wait=kill_wait_of_slurm)
    return plan(spec, "r", "t", RUN_DIR, facts)


def directives(**wish: Any) -> list[str]:
    requested = re.compile(r"^#SBATCH --(requeue(?:=.*)?|no-requeue|signal=.*)$", re.MULTILINE)
    return requested.findall(planned(**wish).script)


@pytest.mark.parametrize(
    "wish, restarts",
    [
        ({}, 0),
        ({"spares": 1}, 3),
        ({"requeue": True}, 3),
        ({"requeue_by": "chain"}, 3),
        ({"max_restarts": 0, "requeue": True}, 0),
        ({"max_restarts": 7, "spares": 1}, 7),
        ({"spares": 1, "preflight": "off"}, 3),
    ],
)
def test_failures_are_survived_on_request_or_if_a_way_is_set(wish: dict[str, Any], restarts: int) -> None:
    created = planned(**wish)
    assert (created.orders.max_restarts, created.spec.max_restarts) == (restarts, restarts)


@pytest.mark.parametrize(
    "wish, message",
    [
        ({}, []),
        ({"alone": True}, ["no-requeue"]),
        ({"sbatch": ("no-requeue",)}, ["no-requeue"]),
        ({"requeue": False}, ["no-requeue"]),
        ({"requeue": False, "sbatch": ("no-requeue",)}, ["no-requeue"]),
        ({"requeue": True}, ["requeue", "signal=B:USR2@120"]),
        ({"requeue_by": "requeue"}, ["requeue", "signal=B:USR2@120"]),
        ({"requeue_by": "chain", "notice": "5m"}, ["no-requeue", "signal=B:USR2@300"]),
        ({"requeue": True, "time": "3m"}, ["requeue", "signal=B:USR2@90"]),
        ({"requeue": True, "time": "61s"}, ["requeue", "signal=B:USR2@60"]),
        ({"requeue": True, "time": "10h", "time_min": "3m"}, ["no-requeue", "signal=B:USR2@90"]),
        ({"requeue": True, "nodes": "1-4"}, ["no-requeue", "signal=B:USR2@120"]),
        ({"sbatch": ("requeue",)}, ["signal=B:USR2@120", "requeue"]),
        ({"requeue": True, "sbatch": ("signal=B:USR2@300",)}, ["requeue", "signal=B:USR2@300"]),
        ({"requeue_by": "chain", "sbatch": ("no-requeue",)}, ["signal=B:USR2@120", "no-requeue"]),
        ({"sbatch": ("signal=USR1@60",)}, ["signal=USR1@60"]),
        ({"sbatch": ("requeue=expedite",)}, ["signal=B:USR2@120", "requeue=expedite"]),
    ],
)
def test_slurm_gets_the_requeue_option_and_the_time_of_the_notice(
    wish: dict[str, Any], message: list[str]
) -> None:
    assert directives(**wish) == message


@pytest.mark.parametrize(
    "wish, arguments",
    [
        ({"requeue_by": "chain", "sbatch": ("requeue",)}, "would continue in two jobs"),
        ({"requeue": True, "sbatch": ("no-requeue",)}, "contradict each other"),
        ({"requeue_by": "requeue", "nodes": "1-4"}, "asks for what it had, not for all that was wanted"),
        ({"sbatch": ("requeue",), "time_min": "3m"}, "--time-min: a job that Slurm queues again asks for"),
        ({"time": "3m", "time_min": "4m"}, "--time-min is longer than --time"),
        ({"requeue_by": "often"}, "requeue_by: 'often' is not requeue or chain"),
        ({"max_restarts": -2}, "--max-restarts must be at least 0, not -2"),
        ({"max_preemptions": -1}, "--max-preemptions must be at least 0, not -1"),
        ({"notice": "20s"}, "--notice must be at least "),
        ({"notice": "1d"}, "--notice must be at most "),
        ({"on_event": "a\0b"}, "NUL"),
    ],
)
def test_impossible_requeue_options_are_refused(wish: dict[str, Any], arguments: str) -> None:
    with pytest.raises(BadInput, match=re.escape(arguments)):
        planned(**wish)


def test_the_nodes_get_the_command_that_queues_the_run_again() -> None:
    created = planned(
        requeue_by="chain",
        exclude="n[1-2]",
        max_preemptions=4,
        max_time_limits=5,
        no_progress=2,
        notice="90s",
        on_event="mail me",
    )
    assert created.orders.survival == Survival(
        requeue="chain",
        resubmit=(*SBATCH, "--exclude=n[1-2],{excluded}", *NO_DEPENDENCY, SCRIPT),
        notice=90.0,
        max_preemptions=4,
        max_time_limits=5,
        no_progress=2,
        on_event="mail me",
    )


def test_the_next_job_carries_the_token_of_its_run() -> None:
    created = planned(requeue_by="chain")
    assert created.orders.survival.resubmit[-1] == SCRIPT and "--comment=clusterrun:r:t" in created.script


@pytest.mark.parametrize(
    ("wish", "option"),
    [
        ({"exclude": "/tmp/bad"}, "--exclude"),
        ({"sbatch": ("exclude=n1",)}, "--sbatch"),
        ({"nodelist": "n1"}, "--nodelist"),
    ],
)
def test_an_exclusion_that_cannot_grow_is_kept_with_a_notice(wish: dict[str, Any], option: str) -> None:
    created = planned(requeue=True, **wish)
    assert created.orders.survival.resubmit == (*SBATCH, *NO_DEPENDENCY, SCRIPT)
    assert len(created.notices) == 1 and option in created.notices[0]


def test_requeue_of_sbatch_is_reported_with_its_effect_and_its_opposite() -> None:
    (notice,) = planned(sbatch=("requeue",)).notices
    assert all(word in notice for word in ("--requeue", "20 time limits", "120 s", "--sbatch no-requeue"))


def test_a_run_that_ends_with_its_job_gets_only_valid_notices() -> None:
    created = planned(no_progress=2, max_restarts=1, on_event="x")
    assert created.orders.survival == Survival(no_progress=2, on_event="x")


@pytest.mark.parametrize(
    "wish, notices",
    [
        (
            {"max_preemptions": 3, "notice": "5m"},
            ("--max-preemptions, --notice are ignored without --requeue",),
        ),
        ({"no_progress": 5}, ("--no-progress is ignored without --max-restarts",)),
        ({"requeue": True, "time": "2m"}, ("the job gets a notice 60 s before its end (half of --time)",)),
        (
            {"requeue": True, "sbatch": ("signal=USR1@60",)},
            ("--sbatch signal takes the place of --signal",),
        ),
        ({"requeue": True, "sbatch": ("mail-type=END",)}, ()),
        ({"elastic": True, "requeue": True}, ("--elastic is ignored without --nodes MIN-MAX",)),
        ({"elastic": True, "nodes": "1-4"}, ("--elastic is ignored without --requeue",)),
        ({"elastic": True, "nodes": "1-4", "requeue": True}, ()),
        ({"slurm": False, "requeue_by": "chain", "notice": "5m"}, ("--requeue is ignored in local runs",)),
    ],
)
def test_an_ineffective_option_is_reported(wish: dict[str, Any], notices: tuple[str, ...]) -> None:
    assert planned(**wish).notices == notices


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize(
    "value, number, seconds",
    [
        ("B:USR1@60", signal.SIGUSR1, 60),
        ("USR1@90", signal.SIGUSR1, 90),
        ("SIGTERM", signal.SIGTERM, 60),
        ("RB:int@300", signal.SIGINT, 300),
        ("B:10@60", signal.SIGUSR1, 60),
        ("USR2@60", signal.SIGUSR2, 60),
        ("FOO@60", 0, 120),
    ],
)
def test_the_users_own_signal_is_the_notice_at_its_time(
    requeue: bool, value: str, number: int, seconds: int
) -> None:
    survival = planned(requeue=requeue, sbatch=(f"signal={value}",)).orders.survival
    assert (survival.signal, survival.notice) == (number, seconds)


@pytest.mark.parametrize("requeue, seconds", [(True, 30), (False, 10)])
def test_a_late_signal_of_the_user_is_accepted_and_ranks_have_time_to_save(
    requeue: bool, seconds: int
) -> None:
    created = planned(requeue=requeue, sbatch=("signal=B:USR1@10",))
    assert "#SBATCH --signal=B:USR1@10" in created.script or "signal=B:USR1@10" in " ".join(created.argv)
    assert (created.orders.survival.signal, created.orders.survival.notice) == (signal.SIGUSR1, seconds)


def test_usr2_to_the_batch_step_is_our_notice_if_the_run_continues() -> None:
    requested = {requeue: planned(requeue=requeue, sbatch=("signal=B:USR2@60",)) for requeue in (True, False)}
    assert requested[True].orders.survival.signal == 0
    assert requested[False].orders.survival.signal == signal.SIGUSR2


@pytest.mark.parametrize(
    "by_slurm, wish, seconds, notices",
    [
        (30.0, {}, 27.0, 0),
        (60.0, {}, 54.0, 0),
        (300.0, {}, 290.0, 0),
        (5.0, {}, 4.0, 0),
        (0.0, {}, 1.0, 0),
        (30.0, {"kill_wait": "10s"}, 10.0, 0),
        (30.0, {"kill_wait": "2m"}, 27.0, 1),
        (30.0, {"slurm": False}, 30.0, 0),
        (30.0, {"slurm": False, "kill_wait": "2m"}, 120.0, 0),
    ],
)
def test_ranks_have_slurms_time_less_a_margin(
    by_slurm: float, wish: dict[str, Any], seconds: float, notices: int
) -> None:
    created = planned(kill_wait_of_slurm=by_slurm, **wish)
    assert created.orders.kill_wait == seconds
    assert sum("KillWait" in notice for notice in created.notices) == notices


@pytest.mark.parametrize(
    "by_slurm, wish, seconds",
    [(30.0, {}, 27.0), (0.0, {}, 8.0), (30.0, {"max_restarts": 1}, 8.0), (30.0, {"spares": 1}, 8.0)],
)
def test_ranks_have_the_same_time_after_a_failure_unless_a_restart_waits(
    by_slurm: float, wish: dict[str, Any], seconds: float
) -> None:
    assert planned(kill_wait_of_slurm=by_slurm, **wish).orders.grace == seconds


def test_a_run_on_this_machine_ends_with_its_only_job() -> None:
    created = planned(slurm=False, requeue=True, on_event="x")
    assert (created.orders.survival, created.spec.goes_on) == (Survival(on_event="x"), "")


def test_a_check_alone_is_not_queued_again() -> None:
    created = planned(alone=True, requeue=True)
    assert (created.spec.goes_on, created.orders.survival) == ("", Survival())


def test_slurms_own_mail_is_passed_on() -> None:
    script = planned(sbatch=("mail-type=END,FAIL,REQUEUE", "mail-user=ada@example.org")).script
    assert "#SBATCH --mail-type=END,FAIL,REQUEUE\n#SBATCH --mail-user=ada@example.org\n" in script


def test_a_dry_run_shows_all_of_it() -> None:
    spec = planned(requeue_by="chain", time="1h", on_event="notify 'me'").spec
    assert described(spec) == (
        "restarts after failures: 3, no more than 3 in a row without progress",
        "continues after 20 time limits and 20 preemptions: the next job is queued when this one starts;"
        " the job gets a notice 120 s before its end",
        "at each event: /bin/sh -c \"notify 'me'\"",
    )
    assert described(JobSpec(("train.py",), cwd="/")) == ()


def sources(*values: dict[str, settings.Value]) -> list[Source]:
    return [Source(f"place {n}", tuple(entry.items())) for n, entry in enumerate(values)]


@pytest.mark.parametrize(
    "values, answer",
    [
        (({},), (False, "")),
        (({"requeue-by": "chain"},), (True, "chain")),
        (({"requeue-by": "chain"}, {"requeue": False}), (True, "chain")),
        (({"requeue": False}, {"requeue-by": "chain"}), (False, "")),
        (({"requeue": True}, {"requeue-by": "chain"}), (True, "chain")),
        (({"requeue": True}, {"requeue": False, "requeue-by": "chain"}), (True, "chain")),
    ],
)
def test_a_way_to_continue_implies_it_unless_a_stronger_place_denies_it(
    values: tuple[dict[str, settings.Value], ...], answer: tuple[bool, str]
) -> None:
    result = settle(sources(*values))
    assert (result["requeue"].value, result["requeue-by"].value) == answer


def test_one_place_with_both_settings_is_refused() -> None:
    with pytest.raises(BadInput, match="contradict each other"):
        settle(sources({"requeue": False, "requeue-by": "chain"}))


def test_sbatch_gets_the_range_with_spares_and_the_least_time() -> None:
    created = planned(nodes="1-4", spares=1, time="10h", time_min="1h", requeue=True)
    requested = re.findall(r"^#SBATCH --((?:n|time).*=.*)$", created.script, re.MULTILINE)
    assert requested == ["nodes=2-5", "time=10:00:00", "time-min=01:00:00"]
    assert (created.orders.nodes, created.orders.min_nodes, created.orders.elastic) == (4, 1, False)
    assert created.orders.survival.requeue == "chain"


@pytest.mark.parametrize("requeue, is_ignored", [(None, False), (False, False), (True, True)])
def test_a_local_run_ignores_a_request_to_go_on_and_nothing_else(
    requeue: bool | None, is_ignored: bool
) -> None:
    notices = planned(slurm=False, cluster="local", requeue=requeue).notices
    assert any("--requeue is ignored" in notice for notice in notices) == is_ignored

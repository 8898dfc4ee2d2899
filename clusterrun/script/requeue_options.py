"""Decide how a run continues after its job ends: the orders, the options of sbatch, and the notices."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from clusterrun.model.contract import DEPENDENCY_PLACE, NOTICE_SIGNAL
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.model.orders import Survival
from clusterrun.model.spec import JobSpec
from clusterrun.notify.notify_address import shortened
from clusterrun.script.sbatch_options import Option, excluding, passed

# Slurm counts time limits in minutes, and checks them at that interval.
MINUTE = 60
# The value of sbatch's ``--signal``: ``[R][B]:NAME_OR_NUMBER[@SECONDS]``.
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?([A-Z0-9]+?)(?:@(\d+))?", re.IGNORECASE)
_BUDGETS = ("max_preemptions", "max_time_limits", "notice")


def settled(spec: JobSpec) -> JobSpec:
    """Return ``spec`` with the effect of ``--sbatch requeue``, and with a notice that fits its time limit."""
    if spec.alone:
        return replace(spec, requeue=None, requeue_by="")
    requested, user_options = spec.requeue_by, {key for key, _ in passed(spec.sbatch, "--sbatch")}
    if "requeue" in user_options and spec.goes_on == "chain":
        problem = "--sbatch requeue with --requeue-by chain: the run would continue in two jobs"
        raise BadInput(problem, "leave one out")
    if "no-requeue" in user_options and spec.goes_on == "requeue":
        problem = "--sbatch no-requeue with --requeue contradict each other"
        raise BadInput(problem, "leave one out, or --requeue-by chain")
    spec = replace(spec, requeue_by=spec.goes_on or ("requeue" if "requeue" in user_options else ""))
    if spec.fits_holes and spec.requeue_by == "requeue":
        if requested == "requeue" or "requeue" in user_options:
            option = "--nodes MIN-MAX" if spec.min_nodes else "--time-min"
            reason = "a job that Slurm queues again asks for what it had, not for all that was wanted"
            raise BadInput(f"{option}: {reason}", "continue in another job: --requeue-by chain")
        spec = replace(spec, requeue_by="chain")
    users_signal = _users_signal(spec)
    notice = spec.notice
    minutes = -(-(spec.time_min or spec.time) // MINUTE)
    if spec.goes_on and users_signal:
        # The coordinator notifies the ranks by its own clock if the user's signal comes too late for a save.
        notice = max(users_signal[1], CONFIGURABLE["notice"].least)
    elif spec.goes_on and minutes:
        # Slurm sends a notice longer than the time limit at the start of the job.
        notice = min(notice, minutes * MINUTE // 2)
    requeue = bool(spec.requeue_by) or spec.requeue
    return replace(spec, requeue=requeue, notice=notice, max_restarts=spec.restarts)


def _users_signal(spec: JobSpec) -> tuple[int, int] | None:
    """Return the number and the seconds of ``--sbatch signal=…``; None if it is missing or not parsable."""
    value = _SIGNAL.fullmatch(_value_of_signal(spec))
    if not value:
        return None
    name, seconds = value[1].upper(), int(value[2] or MINUTE)
    if name.isdecimal():
        return int(name), seconds
    number = getattr(signal, f"SIG{name}", None)
    return (int(number), seconds) if isinstance(number, signal.Signals) else None


def _value_of_signal(spec: JobSpec) -> str:
    return dict(passed(spec.sbatch, "--sbatch")).get("signal", "")


def sbatch_words(spec: JobSpec) -> tuple[Option, ...]:
    """Return the sbatch options for requeue (not in a chain, where the next job waits) and for the notice.

    Without ``--requeue`` or ``--no-requeue`` the site decides, as for any batch script.
    """
    if not spec.goes_on:
        return (("no-requeue", ""),) if spec.alone or spec.requeue is False else ()
    requeue = "requeue" if spec.goes_on == "requeue" else "no-requeue"
    return ((requeue, ""), ("signal", f"B:USR2@{spec.notice}"))


def orders(spec: JobSpec, argv: Sequence[str], requeue_exit: str = "") -> Survival:
    """Return the orders for the coordinator. ``argv`` queued the run, or is empty without a scheduler.

    ``requeue_exit``: the site's ``RequeueExit``.
    """
    user_signal = _users_signal(spec)
    survival = Survival(no_progress=spec.no_progress, on_event=spec.on_event, notify=spec.notify)
    if argv and user_signal:
        survival = replace(survival, signal=user_signal[0], notice=float(user_signal[1]))
    if not argv or not spec.goes_on:
        return replace(survival, requeue_exit=requeue_exit)
    if (
        user_signal
        and user_signal[0] == NOTICE_SIGNAL
        and "B" in _value_of_signal(spec).partition(":")[0].upper()
    ):
        survival = replace(survival, signal=0)  # clusterrun handles this signal itself, also if it is early
    resubmit = (*argv[:-1], *_excluding(spec), "--dependency=", DEPENDENCY_PLACE, argv[-1])
    most = {name: getattr(spec, name) for name in ("max_preemptions", "max_time_limits")}
    return replace(survival, requeue=spec.goes_on, resubmit=resubmit, notice=float(spec.notice), **most)


def _excluding(spec: JobSpec) -> tuple[str, ...]:
    """Return the option that excludes bad nodes from the next job.

    The result is empty if the user's list cannot be extended.
    """
    try:
        return (excluding(spec, "--requeue"),)
    except BadInput:
        return ()


def ignored(options: Sequence[str], when: str) -> tuple[str, ...]:
    are = "is" if len(options) == 1 else "are"
    return (f"{', '.join(options)} {are} ignored {when}",) if options else ()


def notices(submitted: JobSpec, spec: JobSpec) -> tuple[str, ...]:
    """Return notices for options in ``submitted`` that are ignored or reduced in the settled ``spec``."""
    messages: list[str] = []
    plain = JobSpec(command=("x",), cwd="/")
    idle = [
        "--" + field.replace("_", "-")
        for field in _BUDGETS
        if getattr(submitted, field) != getattr(plain, field)
    ]
    if idle and not spec.goes_on and not submitted.goes_on:
        messages += ignored(idle, "without --requeue")
    if submitted.elastic and not (submitted.min_nodes and spec.goes_on):
        lacks = "without --requeue" if submitted.min_nodes else "without --nodes MIN-MAX"
        messages += ignored(["--elastic"], lacks)
    if submitted.no_progress != plain.no_progress and not spec.restarts:
        messages += ignored(["--no-progress"], "without --max-restarts")
    if spec.goes_on and not submitted.goes_on:
        effect = "; ".join(described(spec))
        messages.append(f"--sbatch requeue acts as --requeue ({effect}); --sbatch no-requeue prevents it")
    if spec.goes_on and spec.notice < submitted.notice and not _users_signal(spec):
        time_option = "--time-min" if spec.time_min else "--time"
        messages.append(f"the job gets a notice {spec.notice} s before its end (half of {time_option})")
    if spec.goes_on and not _excluding(spec):
        because = "--exclude names a file or was given by --sbatch"
        if spec.nodelist:
            because = "--nodelist asks for them"
        messages.append(f"the next job does not exclude unfit nodes: {because}")
    return tuple(messages)


def described(spec: JobSpec) -> tuple[str, ...]:
    """Return lines that describe what the run survives."""
    lines = []
    if spec.restarts:
        until = f", no more than {spec.no_progress} in a row" if spec.no_progress else ""
        lines.append(f"restarts after failures: {spec.restarts}{until} without progress")
    if spec.goes_on:
        requeue_text, chain = "Slurm queues the job again", "the next job is queued when this one starts"
        after = f"continues after {spec.max_time_limits} time limits and {spec.max_preemptions} preemptions"
        way = requeue_text if spec.goes_on == "requeue" else chain
        lines.append(f"{after}: {way}; the job gets a notice {spec.notice} s before its end")
    if spec.min_nodes and spec.goes_on:
        world = "asks for all of them again" if spec.elastic else "has as many nodes as the first"
        lines.append(f"starts on {spec.nodes_asked} nodes; each job that continues the run {world}")
    if spec.notify:
        lines.append(f"messages go to {', '.join(map(shortened, spec.notify))}")
    if spec.on_event:
        lines.append(f"at each event: /bin/sh -c {spec.on_event!r}")
    return tuple(lines)

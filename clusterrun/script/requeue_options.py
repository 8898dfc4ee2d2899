"""How a run outlives its job: the orders, the options of sbatch, and the notices."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from clusterrun.model.contract import DEPENDENCY_PLACE, NOTICE_SIGNAL
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.spec import JobSpec
from clusterrun.script.sbatch_options import Option, excluding, passed

MINUTE = 60
"""Slurm counts time limits in minutes, and looks at them as often."""
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?([A-Z0-9]+?)(?:@(\d+))?", re.IGNORECASE)
"""The value of sbatch's ``--signal``: ``[R][B]:NAME_OR_NUMBER[@SECONDS]``."""
_BUDGETS = ("max_preemptions", "max_time_limits", "notice")


def settled(spec: JobSpec) -> JobSpec:
    """``spec`` with what ``--sbatch requeue`` means for it, and with its notice inside its time limit."""
    if spec.alone:
        return replace(spec, requeue=False, requeue_by="")
    asked, own = spec.requeue_by, {key for key, _ in passed(spec.sbatch, "--sbatch")}
    if "requeue" in own and spec.goes_on == "chain":
        seen = "--sbatch requeue with --requeue-by chain: the run would continue in two jobs"
        raise BadInput(seen, "leave one out")
    if "no-requeue" in own and spec.goes_on == "requeue":
        seen = "--sbatch no-requeue with --requeue contradict each other"
        raise BadInput(seen, "leave one out, or --requeue-by chain")
    spec = replace(spec, requeue_by=spec.goes_on or ("requeue" if "requeue" in own else ""))
    if spec.fits_holes and spec.requeue_by == "requeue":
        if asked == "requeue" or "requeue" in own:
            option = "--nodes MIN-MAX" if spec.min_nodes else "--time-min"
            again = "a job that Slurm queues again asks for what it had, not for all that was wanted"
            raise BadInput(f"{option}: {again}", "continue in another job: --requeue-by chain")
        spec = replace(spec, requeue_by="chain")
    return replace(spec, requeue=bool(spec.requeue_by), notice=_notice(spec), max_restarts=spec.restarts)


def _notice(spec: JobSpec) -> int:
    """Seconds; at most half of the time limit, for Slurm gives a longer notice at the start of the job."""
    own = _users_signal(spec)
    said = own[1] if own else spec.notice
    minutes = -(-(spec.time_min or spec.time) // MINUTE)
    return min(said, minutes * MINUTE // 2) if minutes and spec.goes_on and not own else said


def _users_signal(spec: JobSpec) -> tuple[int, int] | None:
    """The number and the seconds of ``--sbatch signal=…``; None if there is none that we can read."""
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
    """The options of sbatch: requeue (not in a chain: the next job waits), and the notice of the end."""
    requeue = ("requeue" if spec.goes_on == "requeue" else "no-requeue", "")
    return (requeue, ("signal", f"B:USR2@{spec.notice}")) if spec.goes_on else (requeue,)


def orders(spec: JobSpec, argv: Sequence[str]) -> Survival:
    """What the coordinator is told; ``argv`` is what queues the run, empty if no scheduler does."""
    own = _users_signal(spec)
    kept = Survival(no_progress=spec.no_progress, on_event=spec.on_event)
    if argv and own:
        kept = replace(kept, signal=own[0], notice=float(own[1]))
    if not argv or not spec.goes_on:
        return kept
    if own and own[0] == NOTICE_SIGNAL and "B" in _value_of_signal(spec).partition(":")[0].upper():
        kept = replace(kept, signal=0)  # the same as ours, which waits for its time if Slurm is early
    resubmit = (*argv[:-1], *_excluding(spec), "--dependency=", DEPENDENCY_PLACE, argv[-1])
    most = {name: getattr(spec, name) for name in ("max_preemptions", "max_time_limits")}
    return replace(kept, requeue=spec.goes_on, resubmit=resubmit, notice=float(spec.notice), **most)


def _excluding(spec: JobSpec) -> tuple[str, ...]:
    """The word that keeps the next job off bad nodes; none where nothing can be added to the user's own."""
    try:
        return (excluding(spec, "--requeue"),)
    except BadInput:
        return ()


def ignored(options: Sequence[str], when: str) -> tuple[str, ...]:
    are = "is" if len(options) == 1 else "are"
    return (f"{', '.join(options)} {are} ignored {when}",) if options else ()


def notices(asked: JobSpec, spec: JobSpec) -> tuple[str, ...]:
    """What ``asked`` wants that is ignored, or less than it says, in ``spec`` as it was settled."""
    said: list[str] = []
    plain = JobSpec(command=("x",), cwd="/")
    idle = ["--" + n.replace("_", "-") for n in _BUDGETS if getattr(asked, n) != getattr(plain, n)]
    if idle and not spec.goes_on and not asked.goes_on:
        said += ignored(idle, "without --requeue")
    if asked.elastic and not (asked.min_nodes and spec.goes_on):
        lacks = "without --requeue" if asked.min_nodes else "without --nodes MIN-MAX"
        said += ignored(["--elastic"], lacks)
    if asked.no_progress != plain.no_progress and not spec.restarts:
        said += ignored(["--no-progress"], "without --max-restarts")
    if spec.goes_on and spec.notice < asked.notice and not _users_signal(spec):
        half = "--time-min" if spec.time_min else "--time"
        said.append(f"the job is told {spec.notice} s before its end (half of {half})")
    if spec.goes_on and not _excluding(spec):
        said += ["the next job does not exclude unfit nodes: --exclude names a file or was given by --sbatch"]
    return tuple(said)


def described(spec: JobSpec) -> tuple[str, ...]:
    """What a run will survive, in lines for the person who asks before submitting."""
    lines = []
    if spec.restarts:
        until = f", no more than {spec.no_progress} in a row" if spec.no_progress else ""
        lines.append(f"restarts after failures: {spec.restarts}{until} without progress")
    if spec.goes_on:
        again, chain = "Slurm queues the job again", "the next job is queued when this one starts"
        after = f"continues after {spec.max_time_limits} time limits and {spec.max_preemptions} preemptions"
        way = again if spec.goes_on == "requeue" else chain
        lines.append(f"{after}: {way}; the job is told {spec.notice} s before its end")
    if spec.min_nodes and spec.goes_on:
        world = "asks for all of them again" if spec.elastic else "has as many nodes as the first"
        lines.append(f"starts on {spec.nodes_asked} nodes; each job that continues the run {world}")
    if spec.on_event:
        lines.append(f"at each event: /bin/sh -c {spec.on_event!r}")
    return tuple(lines)

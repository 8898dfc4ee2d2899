"""Decide whether a run in an allocation may rely on the pre-flight check of an earlier run on the same nodes.

Each run records the subject of its check in ``checked.json``. All other facts come from the files of the
earlier runs.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import expand
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.model.record import Failure, RunRecord, RunState
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.runs.store import run_id
from clusterrun.script.plan import Plan

# Seconds for which a check counts. Hardware faults appear over days, and a check takes seconds.
COUNTS_SECONDS = 3600.0
_ORDER = (Level.OFF.value, Level.QUICK.value, Level.FULL.value)
# Variables that affect the result of a check.
_OF_THE_CHECK = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|CUDA|HIP|ROCR|HSA|ZE|UCX|FI|OFI|LD|PYTHON|CONDA|SLURM_RESTART)_"
    r"|(PATH|PYTHON[A-Z]+|VIRTUAL_ENV)$"
)
# Exceptions that a fault of the program causes, on every node.
_OWN_MISTAKES = frozenset(
    ("SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError", "AttributeError")
    + ("TypeError", "KeyError", "IndexError", "ValueError", "NotImplementedError", "ZeroDivisionError")
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Warning))(?::|$)")


def key(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return a key that is equal for runs whose checks test the same things in the same way, on any nodes."""
    spec, orders = plan.spec, plan.orders
    values = {**environ, **dict(spec.environment)}
    variables = sorted((name, value) for name, value in values.items() if _OF_THE_CHECK.match(name))
    prefix = os.path.dirname(os.path.dirname(orders.preflight.python))
    packages = sorted(glob.glob(os.path.join(glob.escape(prefix), "lib", "python*", "site-packages")))
    facts = (
        (plan.allocation, orders.preflight.python, [os.stat(path).st_mtime_ns for path in packages]),
        (orders.gpus_per_node, orders.ranks_per_node, orders.hide_gpus, spec.per_node, spec.cpus_per_rank),
        (
            orders.preflight.limits,
            orders.preflight.check_commands,
            repr(orders.container),
            spec.setup,
            spec.srun,
            variables,
        ),
    )
    return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogatepass")).hexdigest()


def earlier(plan: Plan, own_key: str, records: Iterable[RunRecord], context: Context) -> Report | None:
    """Return the newest report that replaces the check of ``plan``; None if ``plan`` needs its own check.

    ``records`` are the other runs of the allocation, newest first. A run on one of the nodes makes older
    checks void if it needed another start, or if it failed for any reason other than a mistake of its
    program.
    """
    nodes = set(expand(plan.spec.nodelist))
    for record in records:
        if not nodes.intersection(expand(record.spec.nodelist)):
            continue
        try:
            state, check = context.store.state(record.run_id), context.store.checked_for(record.run_id)
            report = context.store.report(record.run_id, 0)
        except ClusterrunError:
            return None
        if not undisturbed(state):
            return None
        if not (report and check and check.key == own_key):
            continue
        level = plan.orders.preflight.level
        is_thorough = report.level in _ORDER and _ORDER.index(report.level) >= _ORDER.index(level)
        if is_thorough and report.verdict in (Grade.PASS, Grade.WARN) and nodes <= set(report.world):
            return report if context.clock.now() - report.at <= COUNTS_SECONDS else None
    return None


def undisturbed(state: RunState | None) -> bool:
    """Return whether a run gives no reason to doubt its nodes.

    The run completed, was cancelled, or failed by a mistake of its program.
    """
    if state is None or len(state.attempts) != 1 or state.warnings or state.excluded:
        return False
    (only,) = state.attempts
    if only.ranks_at is None:
        return False
    if state.state in (State.COMPLETED, State.CANCELLED):
        return only.failure is None
    return state.state is State.FAILED and only.failure is not None and _own_mistake(only.failure)


def _own_mistake(failure: Failure) -> bool:
    """Return whether a rank ended by itself with exceptions that a fault of the program causes."""
    lines = (*failure.last_lines, *failure.traceback.splitlines())
    raised = {match[1] for line in lines if (match := _EXCEPTION.match(line.strip()))}
    ended_itself = failure.rank >= 0 and failure.code > 0 and not failure.noticed
    return ended_itself and bool(raised) and raised <= _OWN_MISTAKES


def without_own_check(plan: Plan, check: Report, environ: Mapping[str, str]) -> Plan:
    """Return ``plan`` without its own check.

    The ranks get the variables of the earlier check that are not set.
    """
    orders = plan.orders
    set_up = " ".join(plan.spec.setup)
    names = {*environ, *dict(orders.environment)}
    chosen = tuple(pair for pair in check.environment if pair[0] not in names and pair[0] not in set_up)
    environment = (*orders.environment, *chosen)
    return replace(plan, orders=replace(orders, preflight=Preflight(), environment=environment))


def recent_ids(ids: Iterable[str], now: float) -> Iterator[str]:
    """Yield the run ids, newest first, whose check may be young enough to count."""
    oldest = run_id("x", now - COUNTS_SECONDS - 600, b"\0\0")
    for run in ids:
        if run < oldest:
            return
        yield run

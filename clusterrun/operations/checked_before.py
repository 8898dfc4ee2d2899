"""Whether a run in an allocation may rely on a check that an earlier run of it made on the same nodes.

Nothing is kept for it but what a run asked for (``checked.json``): the earlier runs' own files tell the rest.
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

COUNTS_SECONDS = 3600.0
"""For how long a check counts: what breaks by itself does so in days, and a check takes seconds."""
_ORDER = (Level.OFF.value, Level.QUICK.value, Level.FULL.value)
_OF_THE_CHECK = re.compile(
    r"(NCCL|RCCL|GLOO|TORCH|CUDA|HIP|ROCR|HSA|ZE|UCX|FI|OFI|LD|PYTHON|CONDA|SLURM_RESTART)_"
    r"|(PATH|PYTHON[A-Z]+|VIRTUAL_ENV)$"
)
"""Variables that decide what a check finds."""
_OWN_MISTAKES = frozenset(
    ("SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError", "AttributeError")
    + ("TypeError", "KeyError", "IndexError", "ValueError", "NotImplementedError", "ZeroDivisionError")
)
"""Exceptions that a program raises for its own text, on whatever node it runs."""
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Warning))(?::|$)")


def key(plan: Plan, environ: Mapping[str, str]) -> str:
    """The same for runs whose checks would look at the same things in the same way, on whichever nodes."""
    spec, orders = plan.spec, plan.orders
    given = {**environ, **dict(spec.environment)}
    variables = sorted((name, value) for name, value in given.items() if _OF_THE_CHECK.match(name))
    prefix = os.path.dirname(os.path.dirname(orders.preflight.python))
    packages = sorted(glob.glob(os.path.join(glob.escape(prefix), "lib", "python*", "site-packages")))
    known = (
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
    return hashlib.sha256(json.dumps(known).encode("utf-8", "surrogatepass")).hexdigest()


def earlier(plan: Plan, own_key: str, records: Iterable[RunRecord], context: Context) -> Report | None:
    """What the newest check found that says of these nodes what ``plan``'s would; None: one is to be made.

    ``records`` are the other runs of the allocation, newest first. One that needed another start, or failed
    on one of the nodes other than by its program's own mistake, makes the check void.
    """
    nodes = set(expand(plan.spec.nodelist))
    for record in records:
        if not nodes.intersection(expand(record.spec.nodelist)):
            continue
        try:
            state, asked = context.store.state(record.run_id), context.store.checked_for(record.run_id)
            found = context.store.report(record.run_id, 0)
        except ClusterrunError:
            return None
        if not undisturbed(state):
            return None
        if found and asked and asked.key == own_key and _covers(found, plan, nodes):
            return found if context.clock.now() - found.at <= COUNTS_SECONDS else None
    return None


def _covers(found: Report, plan: Plan, nodes: set[str]) -> bool:
    enough = found.level in _ORDER and _ORDER.index(found.level) >= _ORDER.index(plan.orders.preflight.level)
    return enough and found.verdict in (Grade.PASS, Grade.WARN) and nodes <= set(found.world)


def undisturbed(state: RunState | None) -> bool:
    """A run gave no reason to doubt its nodes: it ended well, was ended, or failed by its program's text."""
    if state is None or len(state.attempts) != 1 or state.warnings or state.excluded:
        return False
    (only,) = state.attempts
    if only.ranks_at is None:
        return False
    if state.state in (State.COMPLETED, State.CANCELLED):
        return only.failure is None
    return state.state is State.FAILED and only.failure is not None and _own_mistake(only.failure)


def _own_mistake(failure: Failure) -> bool:
    words = (*failure.last_lines, *failure.traceback.splitlines())
    raised = {found[1] for line in words if (found := _EXCEPTION.match(line.strip()))}
    ended_itself = failure.rank >= 0 and failure.code > 0 and not failure.noticed
    return ended_itself and bool(raised) and raised <= _OWN_MISTAKES


def without_own_check(plan: Plan, check: Report, environ: Mapping[str, str]) -> Plan:
    """``plan`` without a check of its own; what the earlier one chose is for ranks whose user set nothing."""
    orders = plan.orders
    set_up = " ".join(plan.spec.setup)
    known = {*environ, *dict(orders.environment)}
    chosen = tuple(pair for pair in check.environment if pair[0] not in known and pair[0] not in set_up)
    environment = (*orders.environment, *chosen)
    return replace(plan, orders=replace(orders, preflight=Preflight(), environment=environment))


def recent_ids(ids: Iterable[str], now: float) -> Iterator[str]:
    """Those of ``ids``, newest first, that are young enough to have made a check that counts."""
    oldest = run_id("x", now - COUNTS_SECONDS - 600, b"\0\0")
    for one in ids:
        if one < oldest:
            return
        yield one

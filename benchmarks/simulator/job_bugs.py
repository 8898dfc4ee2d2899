"""Bugs to plant in the handling of job ends. Worlds with jobs must detect each of them."""

from __future__ import annotations

from .mutant import Mutant

JOB_BUGS = (
    Mutant(
        "a run that ends leaves the next job waiting",
        "coordinator/requeue",
        '            if self._continues_by != "chain":\n                self.drop()\n'
        "            elif excluded:",
        "            if excluded:",
    ),
    Mutant(
        "a cancel is not heard by a run that goes on",
        "coordinator/requeue",
        "        elif self._requested_end is not None:\n            return self._requested_end\n",
        "",
    ),
    Mutant(
        "the grace counts from the order, not from Slurm's TERM",
        "agent/ranks",
        "self.kill_at = (self._termed_at if termed else now.steady) + grace",
        "self.kill_at = now.steady + grace",
    ),
    Mutant(
        "nobody hands over",
        "coordinator/requeue",
        "            self._actions.append(Requeue(self._state_keeper.state.excluded))",
        "            self._end_handover(now, '')",
    ),
    Mutant(
        "a refusal ends in silence",
        "coordinator/requeue",
        "        if not why or self._end is None:",
        "        if True:",
    ),
    Mutant(
        "preemptions are never too many",
        "coordinator/requeue",
        "        return sum(attempt.cause == cause for attempt in self._state_keeper.state.attempts)",
        "        return 0",
    ),
    Mutant(
        "what was held back is never ruled",
        "coordinator/restart_policy",
        "if self.judged is not None and self._read_by is None else",
        "if False else",
    ),
    Mutant(
        "after a notice another attempt is made",
        "coordinator/restart_policy",
        "if self._termination.shutdown and decision.outcome not in (SUPERSEDED, self.requested_end):",
        "if False:",
    ),
    Mutant(
        "ranks that made room are done",
        "coordinator/termination",
        "return self.shutdown and (stopping if reported else bool(self._taken_signals))",
        "return False",
    ),
)

"""Bugs to plant in the coordinator's machine, each of which the simulator must notice."""

from __future__ import annotations

from .mutant import Mutant

COORDINATOR_BUGS = (
    Mutant(
        "a restart does not wait for all nodes",
        "tally",
        "return len(self._gone) + len(self._lost) == self._nodes",
        "return len(self._gone) + len(self._lost) > 0",
    ),
    Mutant("a lost node is taken for dead", "attempt", "if now.steady < self.tally.dead_by:", "if False:"),
    Mutant(
        "the time of the kill is forgotten",
        "attempt",
        "seat.acked + self._timings.lease + self._timings.kill",
        "seat.acked + self._timings.lease",
    ),
    Mutant(
        "restarts are never charged",
        "lineage",
        "return sum(attempt.cause in CHARGED",
        "return 0 * sum(attempt.cause in CHARGED",
    ),
    Mutant(
        "other ports are never charged",
        "lineage",
        'return sum(attempt.cause == "port"',
        'return 0 * sum(attempt.cause == "port"',
    ),
    Mutant("collisions are charged as failures", "judge", "mishap.kind is Kind.COLLISION and", "False and"),
    Mutant(
        "beats are acknowledged after a takeover",
        "coordinator",
        "if not self._course.superseded:",
        "if True:",
    ),
    Mutant(
        "a takeover is ignored",
        "course",
        "        if self.superseded:\n            return\n        self._judge",
        "        return\n        self._judge",
    ),
    Mutant(
        "the state is written after a takeover",
        "coordinator",
        "None if self._course.superseded else self._ledger.due(now)",
        "self._ledger.due(now)",
    ),
    Mutant("a takeover does not wait", "gathering", "elif not quiet:", "elif False:"),
    Mutant(
        "a takeover forgets that a coordinator may have been stopped",
        "gathering",
        "now.steady + lease + TAKEOVER_SECONDS + lease + kill",
        "now.steady + TAKEOVER_SECONDS + lease + kill",
    ),
    Mutant(
        "a restart takes any free number",
        "course",
        "self._say(ClaimEpoch(self.epoch))",
        "self._say(ClaimEpoch())",
    ),
    Mutant(
        "the first to arrive is blamed",
        "verdict",
        "return min(collisions or mishaps, key=lambda m: (m.noticed, m.failure.at))",
        "return mishaps[0]",
    ),
    Mutant("the last in time is blamed", "verdict", "return min(", "return max("),
    Mutant(
        "one rank's 0 is enough",
        "tally",
        "return self._well == self._nodes * self._processes",
        "return self._well > 0",
    ),
    Mutant(
        "a 0 after a TERM is success", "tally", "        if report.stopped:\n            return None\n", ""
    ),
    Mutant("ranks that vanish are not missed", "attempt", "if not well and", "if False and"),
    Mutant("silence is not looked for", "coordinator", "self._roster.silent(now, self._timings.lost)", "[]"),
    Mutant(
        "time in which a coordinator stood still counts",
        "coordinator",
        "self._standstills += event.seconds",
        "self._standstills += 0.0",
    ),
    Mutant(
        "the last agent of a node takes its seat",
        "roster",
        "if old is not None and (old.present or old.hello.pid != hello.pid):",
        "if False:",
    ),
    Mutant(
        "an agent that tries again is refused",
        "roster",
        "(old.present or old.hello.pid != hello.pid)",
        "True",
    ),
    Mutant(
        "the time limit is not kept",
        "course",
        "if self._orders.time_limit > 0 else None",
        "if False else None",
    ),
    Mutant(
        "a request to end is forgotten while ranks run",
        "course",
        "        if self.live is not None:\n            self.live.stop(now)\n"
        "        elif not self._sequel.weighs:\n            self.conclude(now, wish)",
        "        if self.live is None and not self._sequel.weighs:\n            self.conclude(now, wish)",
    ),
    Mutant(
        "nobody is told farewell",
        "parting",
        "            self._say(Send(seat.link, Farewell()))",
        "            pass",
    ),
    Mutant("the state is written at every change", "ledger", "GAP_SECONDS = 0.2", "GAP_SECONDS = 0.0"),
    Mutant(
        "the state is written only at changes",
        "ledger",
        "(GAP_SECONDS if self._changed else self._period)",
        "(GAP_SECONDS if self._changed else 1e9)",
    ),
    Mutant(
        "joining has no limit",
        "gathering",
        "self.wakes_at = now.steady + self._join_seconds",
        "self.wakes_at = None",
    ),
    Mutant(
        "ranks start everywhere as node 0",
        "attempt",
        "StartRanks(self.epoch, world, seat.place, meeting, self._environment, last)",
        "StartRanks(self.epoch, world, 0, meeting, self._environment, last)",
    ),
    Mutant(
        "every notice is passed on",
        "handover",
        "or self._until is not None or not fresh:",
        "or self._until is not None:",
    ),
    Mutant(
        "old reports are taken for new", "coordinator", "elif message.epoch == self._course.epoch:", "else:"
    ),
    Mutant(
        "a repeated exit counts twice",
        "tally",
        "        if report.rank in self._exited:\n            return None\n",
        "",
    ),
    Mutant(
        "the silent are waited for without end",
        "attempt",
        "self._overdue_at = now.steady + limit",
        "self._overdue_at = None",
    ),
    Mutant(
        "an early end of the launcher is ignored",
        "gathering",
        "            self._ended_early(now, event.code, words)",
        "            pass",
    ),
    Mutant(
        "the first nodes train, whatever was found",
        "selection",
        "self._chosen(now, outcome.world,",
        "self._chosen(now, range(self._orders.nodes),",
    ),
    Mutant("too few fit nodes train", "selection", "elif outcome.fit:", "elif True:"),
    Mutant(
        "ranks start on spares too",
        "attempt",
        "        for seat in self._roster.training():\n            order =",
        "        for seat in self._roster.linked():\n            order =",
    ),
    Mutant(
        "a number of the allocation is taken for a place",
        "attempt",
        "StartRanks(self.epoch, world, seat.place,",
        "StartRanks(self.epoch, world, seat.node,",
    ),
    Mutant(
        "ends of ranks are counted by the number of the node",
        "attempt",
        "self.tally.exited(seat.place,",
        "self.tally.exited(seat.node,",
    ),
    Mutant("the missing are not waited for", "gathering", "LEAST_PATIENCE = 15.0", "LEAST_PATIENCE = 0.1"),
    Mutant(
        "a launcher that may give everybody up is let go on",
        "gathering",
        "self._missing.here and not self._silent())",
        "self._missing.here)",
    ),
    Mutant(
        "a second launch knows the first one's agents",
        "gathering",
        "return self._roster.clear()",
        "return []",
    ),
    Mutant("a successor forgets who was unfit", "ledger", "        if excluded:", "        if False:"),
    Mutant(
        "ranks start before a pre-flight has ended",
        "muster",
        "if self._selection is None or",
        "if True or",
    ),
    Mutant("nobody ends the launcher", "parting", "            self._say(EndLauncher())", "            pass"),
    Mutant(
        "a lost link is ignored by the agent",
        "agent",
        "        if self._leaving is None:\n            self._leaving = 1\n        ends_at",
        "        return\n        ends_at",
    ),
)

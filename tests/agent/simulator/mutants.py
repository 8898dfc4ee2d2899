"""Planted bugs: small patches of the machines' source, each of which the simulator must notice."""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

AGENT = Path(__file__).resolve().parents[3] / "clusterrun" / "agent"
MACHINES = (
    "lease",
    "ranks",
    "agent",
    "verdict",
    "tally",
    "roster",
    "ledger",
    "judge",
    "parting",
    "attempt",
    "course",
    "coordinator",
)
"""In the order in which they import each other."""


class Mutant(NamedTuple):
    """``old`` becomes ``new`` in one file; ``old`` must stand there exactly once."""

    name: str
    module: str
    old: str
    new: str


def build(mutant: Mutant) -> tuple[Any, Any]:
    """The classes of coordinator and agent with the bug in them."""
    source = (AGENT / f"{mutant.module}.py").read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: the place to patch is not there exactly once")
    package = "mutant_" + re.sub(r"\W", "_", mutant.name)
    sys.modules[package] = types.ModuleType(package)
    try:
        for name in MACHINES:
            text = (AGENT / f"{name}.py").read_text()
            if name == mutant.module:
                text = text.replace(mutant.old, mutant.new)
            text = re.sub(rf"clusterrun\.agent\.({'|'.join(MACHINES)})\b", rf"{package}.\1", text)
            text = re.sub(r"from clusterrun\.agent import verdict", f"from {package} import verdict", text)
            module = types.ModuleType(f"{package}.{name}")
            sys.modules[module.__name__] = module
            setattr(sys.modules[package], name, module)
            exec(compile(text, f"{package}/{name}.py", "exec"), module.__dict__)
        machines = importlib.import_module(f"{package}.coordinator").Coordinator
        return machines, importlib.import_module(f"{package}.agent").Agent
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]


MUTANTS = (
    Mutant("the agent does not check the epoch", "ranks", "if order.epoch <= self.seen:", "if False:"),
    Mutant(
        "any message lengthens the lease",
        "agent",
        "        if self._linked:\n            self._messages[",
        "        self._lease.ends_at = now.steady + 20.0\n        self._say(RenewLease(now.steady + 20.0))\n"
        "        if self._linked:\n            self._messages[",
    ),
    Mutant(
        "the lease counts from the answer",
        "lease",
        "            self.ends_at = sent + self._length",
        "            self.ends_at = steady + self._length",
    ),
    Mutant(
        "the agent alone enforces the lease",
        "agent",
        "            self._say(RenewLease(self._lease.ends_at))",
        "            self._say(RenewLease(self._lease.ends_at + 1e6))",
    ),
    Mutant(
        "ranks start without a lease",
        "lease",
        "return self._granted and not self.over(steady)",
        "return True",
    ),
    Mutant(
        "what is stuck from an older attempt is not looked for",
        "ranks",
        "if order.epoch - 1 > self._swept:",
        "if False:",
    ),
    Mutant(
        "nothing is swept after the last rank",
        "ranks",
        "            self._sweep()\n\n    def signal",
        "            self._gone(())\n\n    def signal",
    ),
    Mutant(
        "a second TERM shortens the grace",
        "ranks",
        "        if self._ending or self.idle:\n            return\n        self._ending = True",
        "        if self.idle:\n            return\n"
        "        if self._ending:\n            self.hurry(now, now.steady)\n            return\n"
        "        self._ending = True",
    ),
    Mutant("a second TERM lengthens the grace", "ranks", "if self._ending or self.idle:", "if self.idle:"),
    Mutant("no grace at all", "ranks", "self.kill_at = now.steady + grace", "self.kill_at = now.steady"),
    Mutant("the grace never ends", "ranks", "self.kill_at = now.steady + grace", "self.kill_at = None"),
    Mutant(
        "the loss of the shim is ignored",
        "agent",
        "        self._leave_at_once(now, 1)\n\n    def _farewell",
        "\n    def _farewell",
    ),
    Mutant(
        "the port is given back when ranks start",
        "agent",
        "if self._ranks.idle and self._port_epoch is not None and",
        "if self._port_epoch is not None and",
    ),
    Mutant(
        "beats come too seldom",
        "agent",
        "self._beat_at = now.steady + self._timings.heartbeat",
        "self._beat_at = now.steady + 3 * self._timings.heartbeat",
    ),
    Mutant("a TERM while ranks are being started is forgotten", "ranks", "elif self._ending:", "elif False:"),
    Mutant(
        "consequences are reported as failures",
        "ranks",
        "now.wall, *words, self._ending)",
        "now.wall, *words, False)",
    ),
    Mutant(
        "an agent keeps its own signal to itself",
        "agent",
        "self._say(Tell(SignalSeen(event.number)))",
        "pass",
    ),
    Mutant(
        "the stuck are not told",
        "ranks",
        "self._say(Tell(RanksGone(self.epoch, stuck)))",
        "self._say(Tell(RanksGone(self.epoch)))",
    ),
    Mutant("a farewell is not heard", "agent", "        self._leave_at_once(now, 0)", "        pass"),
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
    Mutant("restarts are never charged", "judge", "self._restarts += 1", "self._restarts += 0"),
    Mutant("other ports are never charged", "judge", "self._port_retries += 1", "self._port_retries += 0"),
    Mutant("collisions are charged as failures", "judge", "self._port_retries < FREE_PORT_RETRIES", "False"),
    Mutant(
        "a stuck process does not rule a restart out",
        "judge",
        "if nodes_lost or tally.stuck else",
        "if nodes_lost else",
    ),
    Mutant(
        "a lost node does not rule a restart out",
        "judge",
        "if nodes_lost or tally.stuck else",
        "if tally.stuck else",
    ),
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
    Mutant("a takeover does not wait", "course", "if not event.quiet:", "if False:"),
    Mutant(
        "a takeover forgets that a coordinator may have been stopped",
        "course",
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
        "return min(collisions or mishaps, key=lambda m: m.failure.at)",
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
    Mutant("a coordinator that slept judges at once", "coordinator", "if overslept or", "if"),
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
    Mutant("the time limit is not kept", "course", "if self._orders.time_limit > 0:", "if False:"),
    Mutant(
        "a request to end is forgotten while ranks run",
        "course",
        "        if self.live is not None:\n            self.live.stop(now)\n        else:\n"
        "            self._conclude(now, wish)",
        "        if self.live is None:\n            self._conclude(now, wish)",
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
        "course",
        "self._overdue_at = now.steady + self._join_seconds",
        "self._overdue_at = None",
    ),
    Mutant(
        "ranks start everywhere as node 0",
        "attempt",
        "StartRanks(self.epoch, world, seat.node, meeting)",
        "StartRanks(self.epoch, world, 0, meeting)",
    ),
    Mutant(
        "every notice is passed on",
        "attempt",
        "if self.stage is Stage.TRAINING and fresh:",
        "if self.stage is Stage.TRAINING:",
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
        "course",
        "elif self.stage is Stage.JOINING and not self._roster.complete:",
        "elif False:",
    ),
    Mutant("nobody ends the launcher", "parting", "            self._say(EndLauncher())", "            pass"),
    Mutant(
        "a lost link is ignored by the agent",
        "agent",
        "        if self._leaving is None:\n            self._leaving = 1\n        ends_at",
        "        return\n        ends_at",
    ),
)

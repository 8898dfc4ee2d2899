"""Bugs to plant in the agent's state machine. The simulator must detect each of them."""

from __future__ import annotations

from .mutant import Mutant

AGENT_BUGS = (
    Mutant(
        "the agent does not check the epoch", "agent/ranks", "if message.epoch <= self.seen:", "if False:"
    ),
    Mutant(
        "any message lengthens the lease",
        "agent/agent",
        "        if self._linked:\n            _MESSAGES[",
        "        self._lease.ends_at = now.steady + 20.0\n"
        "        self._actions.append(RenewLease(now.steady + 20.0))\n"
        "        if self._linked:\n            _MESSAGES[",
    ),
    Mutant(
        "the lease counts from the answer",
        "agent/lease",
        "            self.ends_at = sent + self._length",
        "            self.ends_at = steady + self._length",
    ),
    Mutant(
        "the agent alone enforces the lease",
        "agent/agent",
        "            self._actions.append(RenewLease(self._lease.ends_at))",
        "            self._actions.append(RenewLease(self._lease.ends_at + 1e6))",
    ),
    Mutant(
        "ranks start without a lease",
        "agent/lease",
        "return self._granted and not self.over(steady)",
        "return True",
    ),
    Mutant(
        "what is stuck from an older attempt is not looked for",
        "agent/ranks",
        "if message.epoch - 1 > self._swept:",
        "if False:",
    ),
    Mutant(
        "nothing is swept after the last rank",
        "agent/ranks",
        "            self._sweep()\n\n    def pass_on",
        "            self._gone(messages.RanksGone(self.epoch))\n\n    def pass_on",
    ),
    Mutant(
        "leftover processes are killed at once",
        "agent/ranks",
        "        self._actions.append(AwaitLeftovers(self.epoch, filters_only))\n",
        "        self._sweep()\n",
    ),
    Mutant(
        "a second TERM shortens the grace",
        "agent/ranks",
        "        if self._ending or self.idle:\n            return\n        self._ending = True",
        "        if self.idle:\n            return\n"
        "        if self._ending:\n            self.shorten_grace(now, now.steady)\n            return\n"
        "        self._ending = True",
    ),
    Mutant(
        "a second TERM lengthens the grace", "agent/ranks", "if self._ending or self.idle:", "if self.idle:"
    ),
    Mutant(
        "no grace at all",
        "agent/ranks",
        "self.kill_at = (self._termed_at if termed else now.steady) + grace",
        "self.kill_at = now.steady",
    ),
    Mutant(
        "the grace never ends",
        "agent/ranks",
        "self.kill_at = (self._termed_at if termed else now.steady) + grace",
        "self.kill_at = None",
    ),
    Mutant(
        "Slurm's own TERM waits for the coordinator",
        "agent/agent",
        "            self._ranks.pass_on(now, event.number, ordered=False)",
        "            pass",
    ),
    Mutant(
        "the loss of the shim is ignored",
        "agent/agent",
        "        self._leave_at_once(now, 1)\n\n    def _leave_at_once",
        "\n    def _leave_at_once",
    ),
    Mutant(
        "the port is released when ranks start",
        "agent/ranks",
        "        self._start, self.epoch, self._ending =",
        "        self.port.release()\n        self._start, self.epoch, self._ending =",
    ),
    Mutant(
        "beats come too seldom",
        "agent/agent",
        "self._beat_at = now.steady + self._timeouts.heartbeat",
        "self._beat_at = now.steady + 3 * self._timeouts.heartbeat",
    ),
    Mutant(
        "a TERM while ranks are being started is forgotten",
        "agent/ranks",
        "elif self._ending:",
        "elif False:",
    ),
    Mutant(
        "consequences are reported as failures",
        "agent/ranks",
        "stopped=self._ending",
        "stopped=False",
    ),
    Mutant(
        "an agent keeps its own signal to itself",
        "agent/agent",
        "self._actions.append(Tell(messages.SignalSeen(event.number)))",
        "pass",
    ),
    Mutant(
        "the stuck are not told",
        "agent/ranks",
        "self._actions.append(Tell(self._last_gone))",
        "self._actions.append(Tell(messages.RanksGone(self.epoch)))",
    ),
    Mutant(
        "an examiner outlives the start of ranks",
        "agent/agent",
        "            self._sidecars.dismiss(contract.EXAMINER)",
        "            pass",
    ),
    Mutant(
        "an examiner is asked while ranks live",
        "agent/sidecars",
        'return "" if ranks.idle and message.epoch > ranks.seen else',
        'return "" if True else',
    ),
    Mutant(
        "a node that stood still asks nobody",
        "agent/agent",
        "if self._lease.over(now.steady + ASK_SECONDS):",
        "if False:",
    ),
    Mutant("a farewell is not heard", "agent/agent", "message: self._leave_at_once(now, 0)", "message: None"),
)

"""Agents on their way: how long they are waited for, who is done without; knows no rank and no test."""

from __future__ import annotations

from clusterrun.agent import verdict
from clusterrun.agent.attempt import START_SECONDS_PER_NODE
from clusterrun.model.states import Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterrun.agent.events import LauncherEnded, Now
    from clusterrun.agent.ledger import Ledger
    from clusterrun.agent.roster import Roster, Seat
    from clusterrun.agent.timings import Timings

TAKEOVER_SECONDS = 10.0
"""How long a running coordinator may take to see that it was superseded, and then some."""
PATIENCE_FACTOR = 3.0
LEAST_PATIENCE = 15.0
"""Once half the nodes are there, the others get three times as long as those took, and at least this (s)."""


class Gathering:
    """From the launch of the agents until ``complete(now)`` or ``fail(now, why)`` is called.

    ``do_without``: once half of them are there, those that are late are not waited for to the end.
    """

    def __init__(
        self,
        roster: Roster,
        ledger: Ledger,
        timings: Timings,
        do_without: bool,
        complete: Callable[[Now], None],
        fail: Callable[[Now, str], None],
    ) -> None:
        self.wakes_at: float | None = None
        self._roster, self._ledger, self._timings = roster, ledger, timings
        self._do_without, self._gathered, self._fail = do_without, complete, fail
        self._nodes = len(roster.seats)
        self._join_seconds = timings.join + START_SECONDS_PER_NODE * self._nodes
        self._began = self._quiet_until = 0.0
        self._half = False
        self._left: dict[int, str] = {}
        self._said: tuple[str, ...] = ()

    def begin(self, now: Now, quiet: bool) -> None:
        """Agents are launched; not ``quiet``: those of an older attempt may still live somewhere."""
        self._began = now.steady
        self.wakes_at = now.steady + self._join_seconds
        if not quiet:
            # An older coordinator may have been stopped for up to a lease and still find agents to answer.
            lease, kill = self._timings.lease, self._timings.kill
            self._quiet_until = now.steady + lease + TAKEOVER_SECONDS + lease + kill

    def present(self, now: Now) -> None:
        """One node more is present."""
        self._ledger.says(Phase.STARTING, f"{self._roster.present} of {self._nodes} nodes have joined")
        if self._do_without and not self._half and 2 * self._here >= self._nodes:
            self._half = True
            patience = max(PATIENCE_FACTOR * (now.steady - self._began), LEAST_PATIENCE)
            self.wakes_at = min(self._began + patience, self._began + self._join_seconds)
        if self._roster.complete:
            self._complete(now)

    @property
    def _here(self) -> int:
        return self._roster.present - len(self._left)

    def tick(self, now: Now) -> None:
        """The time for joining may be over."""
        if self.wakes_at is None or now.steady < self.wakes_at:
            return
        self.wakes_at = None
        if self._roster.complete or (self._do_without and self._here):
            self._complete(now)
            return
        words = f"{verdict.nodes_in_words(self._roster.missing())} of {self._nodes} did not join"
        self._fail(now, f"{words} within {self._join_seconds:g} s; what the launcher said is in job.out")

    def _complete(self, now: Now) -> None:
        """What an older coordinator left must be dead by its lease before anything starts."""
        if now.steady < self._quiet_until:
            self.wakes_at = self._quiet_until
            self._ledger.says(Phase.STARTING, "waiting until nothing of an older attempt can live any more")
            return
        self.wakes_at = None
        self._gathered(now)

    # --- those who do not come ---

    def left(self, seat: Seat, why: str) -> None:
        """An agent joined and was lost before the others were there."""
        self._left[seat.node] = why

    def launcher_ended(self, now: Now, event: LauncherEnded, words: str) -> None:
        """All agents ended, or one of them: nobody, or one less, is on the way. ``words`` say so."""
        self._said = event.said
        if self._roster.complete:
            return
        if event.whole:
            self._fail(now, f"{words} (before {verdict.nodes_in_words(self._roster.missing())} had joined)")
        elif not self._do_without:
            said = ": " + " / ".join(event.said) if event.said else ""
            self._fail(now, f"an agent ended with code {event.code} before it had joined{said}")

    def absent(self, now: Now) -> list[tuple[int, str, str]]:
        """The nodes that are not here: number, name, why."""
        nodes = sorted({*self._roster.missing(), *self._left})
        return [(node, self._roster.name_of(node), self._why(now, node)) for node in nodes]

    def _why(self, now: Now, node: int) -> str:
        if node in self._left:
            return f"its agent was lost before the others had joined: {self._left[node]}"
        name = self._roster.name_of(node)
        said = [line for line in self._said if name in line]
        words = f"its agent did not join within {now.steady - self._began:.0f} s"
        return words + (f" ({' / '.join(said)})" if said else "")

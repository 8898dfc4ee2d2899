"""The rendezvous of the agents: how long each is waited for, and which nodes are left out; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import EndLauncher, LaunchAgents, LookAtLauncher
from clusterrun.coordinator.attempt import START_SECONDS_PER_NODE
from clusterrun.coordinator.events import LauncherEnded
from clusterrun.coordinator.failures import FailureKind
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.run_part import Gathered, NoRanks, Outcome, RunPart, Shared, no_ranks
from clusterrun.model import contract
from clusterrun.model.states import Phase
from clusterrun.runtime.machine_events import Now, earliest
from clusterrun.slurm_text.controller_away import ControllerAway
from clusterrun.slurm_text.srun_messages import held, unreached, words_on

TAKEOVER_SECONDS = 10.0
"""How long a running coordinator may take to see that it was superseded, and then some."""
PATIENCE_FACTOR = 3.0
LEAST_PATIENCE = 15.0
"""Once half the nodes are there, the others get three times as long as those took, and at least this (s)."""
RELAUNCH_SECONDS = 20.0
"""For a launcher to end that was told to."""
MOST_RELAUNCHES = 5
NAMED_SECONDS = 2.0
"""For those of whom the launcher says that they will not come."""
LOOK_AFTER_SECONDS, LOOK_EVERY_SECONDS = 10.0, 5.0
"""While nobody has joined it is asked which nodes hold a connection to the launcher: srun hands its input,
without which no agent can join, to all tasks only when each node has one."""
LEAST_LINK_PATIENCE = 30.0
"""Once half the nodes have one, the others get three times as long as those took, and at least this (s)."""
LONELY_PATIENCE = 60.0
"""For the other nodes where only that of the launcher has one, though the launcher reached them all."""
_NOT_EXECUTED = (126, 127)


class Rendezvous(RunPart):
    """From a launch of the agents until a call returns ``Gathered`` or ``NoRanks``.

    ``does_without``: once half of them are there, those that are late are not waited for to the end.
    Nodes by number: ``without`` whom agents are launched, who ``left`` after joining, and why; those that are
    ``hoped`` for, whose loss is why agents are launched again. ``said`` are the launcher's lines.
    Where one program started them all, it ends them all where it cannot reach one of them.
    """

    def __init__(self, shared: Shared, does_without: bool) -> None:
        super().__init__(shared)
        self.quiet_until = 0.0
        self._timeouts, self._nodes = self._membership.timeouts, self._membership.size
        self._join_seconds = self._timeouts.join + START_SECONDS_PER_NODE * self._nodes
        self.does_without, self._relaunch = does_without, bool(self._orders.launch)
        self._least = 0
        self._began = self._overloaded = 0.0
        self._half = self._ending = False
        self._due_at: float | None = None
        self._look_at: float | None = None
        self._linked_after: float | None = None
        self._again_at: float | None = None
        self._away = ControllerAway()
        self._relaunches = 0
        self.ended_others = False
        self._without: dict[int, str] = {}
        self.left: dict[int, str] = {}
        self._hoped: tuple[int, ...] = ()
        self._said: tuple[str, ...] = ()

    def begin(self, now: Now, quiet: bool, dead_since: float | None, without: Mapping[int, str]) -> None:
        """Launch, but on the nodes ``without``; not ``quiet``: agents of an older attempt may still live.

        ``dead_since``: nobody has renewed a lease of theirs since.
        """
        self._without = dict(without)
        if dead_since is not None:
            self.quiet_until = dead_since + self._timeouts.lease + self._timeouts.kill
        elif not quiet:
            # An older coordinator may have been stopped for up to a lease and still find agents to answer.
            lease, kill = self._timeouts.lease, self._timeouts.kill
            self.quiet_until = now.steady + lease + TAKEOVER_SECONDS + lease + kill
        self._launch(now)

    def begin_again(self, now: Now, without: dict[int, str], hoped: tuple[int, ...]) -> Outcome | None:
        """Launch agents where there are none, but on the nodes ``without``, and why.

        Where enough come, the others are done without. Nothing but agents lives
        anywhere. ``hoped`` are those whose loss is why this is needed. Agents that are here stay, for
        only they can give back a job whose coordinator dies now. Where the program that started them all
        has ended, or there is one for each, all are ended and launched once more.
        """
        self._without, self._hoped = without, hoped
        self._least, self.does_without = self._orders.nodes, True
        self._relaunches = 0
        self.left.clear()
        beside = self._membership.launcher_lives and self._relaunch
        self._dismiss(self._membership.retain(without) if beside else self._membership.clear())
        if beside and self._membership.present:  # those that are here wait for the agents of other nodes
            self.ended_others = False
            self._began = now.steady
            if self._complete:
                return self._gathered(now)
            self._launch(now)
            self._shorten(now)
        elif self._membership.launcher_lives:
            self._end_launcher(now)
        else:
            self._launch(now)
        return None

    def _end_launcher(self, now: Now) -> None:
        self._ending = self.ended_others = True
        self._due_at = now.steady + RELAUNCH_SECONDS
        self._actions.append(EndLauncher())

    def _launch(self, now: Now) -> None:
        self._began = now.steady
        self._half = self._ending = False
        self._linked_after = None
        looks = self._relaunch and self.does_without and self._membership.names_known
        self._look_at = now.steady + LOOK_AFTER_SECONDS if looks else None
        self._again_at = None
        self.left.clear()
        self._said = ()
        self._due_at = now.steady + self._join_seconds
        here = [member.node for member in self._membership.linked() if member.present]
        nodes = sorted({*self._without, *here})
        names = tuple(self._membership.name_of(node) for node in nodes)
        self._membership.launcher_lives, self._membership.launcher_words = True, ""
        self._membership.launches += 1
        self._actions.append(LaunchAgents(names))

    def welcomes(self, node: int) -> bool:
        waits = not self._ending and self._again_at is None and not self._complete
        return waits and node not in self._without

    @property
    def _complete(self) -> bool:
        return self._membership.present + len(self._without) == self._nodes

    @property
    def _here(self) -> int:
        return self._membership.present - len(self.left)

    def present(self, now: Now) -> Outcome | None:
        self._away.reached()
        words = f"{self._membership.present} of {self._nodes} nodes have joined"
        self._state_keeper.says(Phase.STARTING, words)
        self._shorten(now)
        if self._complete:
            return self._gathered(now)
        self._hasten(now)
        return None

    def _shorten(self, now: Now) -> None:
        """Once half of the nodes are here, the others are waited for in proportion."""
        if self.does_without and not self._half and 2 * self._here >= self._nodes:
            self._half = True
            patience = max(PATIENCE_FACTOR * (now.steady - self._began), LEAST_PATIENCE)
            self._due_at = min(self._began + patience, self._began + self._join_seconds)

    def _hasten(self, now: Now) -> None:
        """Those who are missing are waited for no longer where the launcher has said what became of them."""
        if self._half and self._said and self._due_at is not None and not self._unnamed():
            self._due_at = min(self._due_at, now.steady + NAMED_SECONDS)

    def overloaded(self, seconds: float) -> None:
        """Do not count ``seconds`` in which this machine was overloaded, within ``OVERLOAD_FACTOR``.

        Nodes of which the launcher said that they will not come get no more time.
        """
        waits = self._due_at is not None and not self._ending and self._again_at is None
        seconds = min(seconds, contract.OVERLOAD_FACTOR * self._timeouts.join - self._overloaded)
        if seconds <= 0.0 or not waits or self._complete or (self._said and not self._unnamed()):
            return
        if not self._overloaded:
            self._note("this machine is overloaded: agents get more time to join")
        self._overloaded += seconds
        self._began += seconds
        self._due_at = (self._due_at or 0.0) + seconds

    def wakes_at(self) -> float | None:
        return None if self._due_at is None else earliest(self._look_at, self._due_at)

    def tick(self, now: Now) -> Outcome | None:
        if self._look_at is not None and now.steady >= self._look_at:
            self._look(now)
        if self._due_at is None or now.steady < self._due_at:
            return None
        self._due_at = None
        if self._again_at is not None:
            self._launch(now)
            return None
        if self._ending:
            words = f"the launcher did not end within {RELAUNCH_SECONDS:g} s"
            return no_ranks(now, FailureKind.LAUNCHER, "", words)
        if self._complete or (self.does_without and self._here and not self._silent()):
            return self._gathered(now)
        if self._least and not self._enough_without(self._membership.missing()):
            return self._too_few(now)
        if self.does_without and self._here:  # the launcher still tries to reach those who are missing
            self._dismiss(self._leave_out(now, self._membership.missing()))
            self._end_launcher(now)
            return None
        late = self._named(self._membership.missing())
        words = f"{late} of {self._nodes} did not join within {self._join_seconds:g} s"
        return no_ranks(now, FailureKind.LAUNCHER, "", f"{words}; what the launcher said is in job.out")

    def _gathered(self, now: Now) -> Outcome | None:
        """What an older coordinator left must be dead by its lease before anything starts."""
        if self._here < self._least:
            return self._too_few(now)
        if now.steady < self.quiet_until:
            self._due_at = self.quiet_until
            words = "waiting until nothing of an older attempt can live any more"
            self._state_keeper.says(Phase.STARTING, words)
            return None
        self._due_at = None
        return Gathered()

    # --- a node from which no connection comes ---

    def _look(self, now: Now) -> None:
        if self._membership.present or self._ending or self._again_at is not None:
            self._look_at = None
            return
        self._look_at = now.steady + LOOK_EVERY_SECONDS
        names = [self._membership.name_of(node) for node in self._membership.missing()]
        self._actions.append(LookAtLauncher(tuple(names)))

    def launcher_reached(self, now: Now, names: Sequence[str], settled: bool) -> None:
        """These nodes hold a connection to the launcher; one that has none long after most keeps all back.

        ``settled``: it waits for no answer of any node. If only its own node has a connection then, what
        others begin does not arrive there.
        """
        if self._look_at is None or self._membership.present or self._relaunches >= MOST_RELAUNCHES:
            return
        wanted = [node for node in self._membership.missing() if node not in self._without]
        without = [node for node in wanted if self._membership.name_of(node) not in names]
        took = now.steady - self._began
        lonely = settled and tuple(names) == (self._membership.name_of(0),) and len(without) > 1
        if not without or (2 * len(without) > len(wanted) and not lonely):
            return
        if self._linked_after is None:
            self._linked_after = took
        patience = max(PATIENCE_FACTOR * self._linked_after, LEAST_LINK_PATIENCE)
        if took >= (LONELY_PATIENCE if lonely else patience):
            others = f"as the {len(wanted) - len(without)} other nodes did"
            words = f"it {contract.NO_CONNECTION} to {self._membership.name_of(0)} within {took:.0f} s, "
            words += "and no other node did" if lonely else others
            self._without.update(dict.fromkeys(without, words))
            self._leave_out(now, without)
            self._end_launcher(now)

    # --- a launch that cannot reach all nodes ---

    @property
    def _may_launch_again(self) -> bool:
        again = self._relaunch and self._relaunches < MOST_RELAUNCHES
        return again and self._membership.names_known

    def _silent(self) -> list[int]:
        """Nodes of which the launcher may still try to reach them, and give all others up at last."""
        return self._unnamed() if self._may_launch_again else []

    def _unnamed(self) -> list[int]:
        missing = [node for node in self._membership.missing() if node not in self._without]
        return [node for node in missing if not words_on(self._membership.name_of(node), self._said)]

    def _leave_out(self, now: Now, nodes: Sequence[int]) -> list[Member]:
        """From now on these are done without, and all others are to join anew."""
        for node in nodes:
            self._without[node] = self._why(now, node)
        self._relaunches += 1
        names = ", ".join(self._membership.name_of(node) for node in nodes)
        self._note(f"agents are launched once more, without {names}")
        return self._membership.clear()

    def _unreached(self) -> list[int]:
        said = unreached(self._said) if self._may_launch_again else ()
        nodes = [node for node in range(self._nodes) if node not in self._without]
        return [node for node in nodes if self._membership.name_of(node) in said]

    # --- those who do not come ---

    def launcher_ended(self, now: Now, event: LauncherEnded, words: str) -> Outcome | None:
        """All agents ended, or one of them: nobody, or one less, is on the way. ``words`` say so."""
        self._said = event.said
        again_at = self._away.next_at(now.steady, event.said) if event.whole else None
        if self._ending and event.whole:
            if not event.others:
                self._launch(now)
        elif again_at is not None and not self._complete:
            self._launch_later(now, again_at, event.others)
        elif event.whole and event.others:
            return self._none_beside(now, event.code, words)
        elif self._complete and not event.whole:
            return None
        elif event.whole and self._least and not self._enough_without(self._unreached()):
            return self._too_few(now)
        elif event.whole and self.does_without and (unreached := self._unreached()):
            self._leave_out(now, unreached)
            self._launch(now)
        elif event.whole and not self._complete:
            return self._ended_early(now, event.code, words)
        elif event.whole:
            return None
        elif self.does_without:
            self._hasten(now)
        else:
            said = ": " + " / ".join(event.said) if event.said else ""
            words = f"an agent ended with code {event.code} before it had joined{said}"
            return no_ranks(now, _kind_of_end(event.code), "", words)
        return None

    def _named(self, nodes: Sequence[int]) -> str:
        return failures.nodes_in_words(self._membership.called(nodes))

    def _ended_early(self, now: Now, code: int, words: str) -> NoRanks:
        lost = self._unfulfilled()
        if not lost or held(self._said):
            late = self._named(self._membership.missing())
            return no_ranks(now, _kind_of_end(code), "", f"{words} (before {late} had joined)")
        if len(lost) > 1:  # what they share may be at fault
            name, words = "", f"{self._named(lost)} were lost and did not come back: {words}"
        else:
            name = self._membership.name_of(lost[0])
            words = f"{name} (node {lost[0]}) was lost and did not come back: {words}"
        return no_ranks(now, FailureKind.NODE, name, words)

    def _none_beside(self, now: Now, code: int, words: str) -> Outcome | None:
        """The launch for those that are missing came to its end: who is here is all there is.

        Where it began nothing since the launcher of those who are here holds all there is, both are ended.
        """
        if self._complete:
            return None
        if self._here >= self._least:
            return self._gathered(now)
        if not held(self._said) or self.ended_others:
            return self._ended_early(now, code, words)
        self._note("all agents are launched once more: no step starts beside them")
        self._dismiss(self._membership.clear())
        self._end_launcher(now)
        return None

    def _launch_later(self, now: Now, again_at: float, others: bool) -> None:
        """The controller is away: nothing was launched, or all of it has ended with the launcher."""
        if not others:
            self._membership.clear()
        self._again_at = self._due_at = again_at
        seconds = again_at - now.steady
        words = f"the scheduler's controller cannot be reached: agents are launched again in {seconds:g} s"
        self._note(words)
        self._state_keeper.says(Phase.STARTING, words)

    def _enough_without(self, nodes: Sequence[int]) -> bool:
        return self._nodes - len({*self._without, *nodes}) >= self._least

    def _too_few(self, now: Now) -> NoRanks:
        absent = self.absent(now)
        absent = [one for one in absent if one[0] not in self._without] or absent
        hoped = self._unfulfilled()
        node, name, why = next((one for one in absent if one[0] in hoped), absent[0])
        self._due_at = None
        if len(hoped) > 1:
            return no_ranks(now, FailureKind.NODE, "", f"{self._named(hoped)} did not come back: {why}")
        return no_ranks(now, FailureKind.NODE, name, f"{name} (node {node}) did not come back: {why}")

    def _unfulfilled(self) -> list[int]:
        missing = {*self._membership.missing(), *self.left}
        return [node for node in self._hoped if node in missing]

    def absent(self, now: Now) -> list[tuple[int, str, str]]:
        nodes = sorted({*self._membership.missing(), *self.left})
        return [(node, self._membership.name_of(node), self._why(now, node)) for node in nodes]

    def _why(self, now: Now, node: int) -> str:
        if node in self._without:
            return self._without[node]
        if node in self.left:
            return f"its agent was lost before the others had joined: {self.left[node]}"
        said, seconds = words_on(self._membership.name_of(node), self._said), now.steady - self._began
        return f"its agent did not join within {seconds:.0f} s" + (f" ({' / '.join(said)})" if said else "")


def _kind_of_end(code: int) -> FailureKind:
    """The kind of failure: only a program that cannot be executed is not worth another launch."""
    return FailureKind.START if code in _NOT_EXECUTED else FailureKind.LAUNCHER

"""The rendezvous of the agents: how long to wait for each, and which nodes to leave out; pure."""

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
from clusterrun.model.overloads import REPORT_SECONDS
from clusterrun.model.states import Phase
from clusterrun.runtime.machine_events import Now, earliest
from clusterrun.slurm_text.controller_away import ControllerAway
from clusterrun.slurm_text.srun_messages import held, unreached, words_on

# A running coordinator sees within this time that it was superseded; with a margin.
TAKEOVER_SECONDS = 10.0
PATIENCE_FACTOR = 3.0
# After half of the nodes joined, the others get three times the time that those took, and at least this (s).
LEAST_PATIENCE = 15.0
# A launcher gets this long to end after the order to end.
RELAUNCH_SECONDS = 20.0
MOST_RELAUNCHES = 5
# Further wait for nodes that will not come according to the launcher.
NAMED_SECONDS = 2.0
# While no agent has joined, check which nodes hold a connection to the launcher. srun hands its input to the
# tasks only if every node has a connection, and no agent can join without that input.
LOOK_AFTER_SECONDS, LOOK_EVERY_SECONDS = 10.0, 5.0
# After half of the nodes have a connection, the others get three times as long, and at least this (s).
LEAST_LINK_PATIENCE = 30.0
# Wait this long for the other nodes if only the launcher's node has a connection, though it reached all.
HOST_ALONE_PATIENCE = 60.0
_NOT_EXECUTED = (126, 127)


class Rendezvous(RunPart):
    """From a launch of the agents until a call returns ``Gathered`` or ``NoRanks``.

    A launcher that started all agents ends all of them if it cannot reach one node.
    """

    def __init__(self, shared: Shared, does_without: bool) -> None:
        super().__init__(shared)
        self.quiet_until = 0.0
        self._timeouts, self._nodes = self._membership.timeouts, self._membership.size
        self._join_seconds = self._timeouts.join + START_SECONDS_PER_NODE * self._nodes
        self.does_without = does_without  # shorten the wait for late nodes after half of the nodes joined
        self._relaunch = bool(self._orders.launch)
        self._fewest = 0  # nodes that must join, if others may be left out; 0: all must join
        self.began = self._ending_since = 0.0
        self._half_joined = self._ending = self._is_patient = False
        self._due_at: float | None = None  # end of the wait for agents, or for the end of the launcher
        self._look_at: float | None = None  # next look at the connections to the launcher
        self._linked_after: float | None = None  # seconds until most nodes had a connection
        self._again_at: float | None = None  # next launch, after the controller was away
        self._away = ControllerAway()
        self._relaunches = 0
        self.ended_others = False
        self._without: dict[int, str] = {}  # nodes that get no agent, and why
        self.left: dict[int, str] = {}  # nodes that left after joining, and why
        self._awaited: tuple[int, ...] = ()  # lost nodes for which agents are launched again
        self._launcher_output: tuple[str, ...] = ()

    def begin(
        self, now: Now, quiet: bool, dead_since: float | None, without: Mapping[int, str], lease: float = 0.0
    ) -> None:
        """Launch agents, but not on the nodes ``without``. Not ``quiet``: older agents may still live.

        No lease of theirs was renewed after ``dead_since``, if it is known. Their ``lease`` may be longer
        than that of this coordinator's agents.
        """
        self._without = dict(without)
        lease, kill = max(lease, self._timeouts.lease), self._timeouts.kill
        if dead_since is not None:
            self.quiet_until = dead_since + lease + kill
        elif not quiet:
            # An older coordinator may have been suspended for up to a lease, and then renew leases of agents.
            self.quiet_until = now.steady + lease + TAKEOVER_SECONDS + lease + kill
        self._launch(now)

    def begin_again(self, now: Now, without: dict[int, str], awaited: tuple[int, ...]) -> Outcome | None:
        """Launch agents on nodes that have none, but not on the nodes ``without``. No rank lives anywhere.

        The loss of the nodes ``awaited`` caused this launch. If enough agents come, the others are left out.
        Present agents stay, because only they can give the job back if its coordinator dies now. All agents
        are ended and launched again if their launcher has ended, or if each agent has its own launcher.
        """
        self._without, self._awaited = without, awaited
        self._fewest, self.does_without = self._orders.nodes, True
        self._relaunches = 0
        self.left.clear()
        beside = self._membership.launcher_lives and self._relaunch
        self._dismiss(self._membership.retain(without) if beside else self._membership.clear())
        if beside and self._membership.present:  # present agents wait for the agents of other nodes
            self.ended_others = False
            self.began = now.steady
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
        self._ending_since = now.steady
        self._due_at = now.steady + RELAUNCH_SECONDS
        self._actions.append(EndLauncher())

    def _launch(self, now: Now) -> None:
        self.began = now.steady
        self._half_joined = self._ending = False
        self._linked_after = None
        looks = self._relaunch and self.does_without and self._membership.names_known
        self._look_at = now.steady + LOOK_AFTER_SECONDS if looks else None
        self._again_at = None
        self.left.clear()
        self._launcher_output = ()
        self._due_at = now.steady + self._join_seconds
        present = [member.node for member in self._membership.linked() if member.present]
        nodes = sorted({*self._without, *present})
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
    def _joined(self) -> int:
        return self._membership.present - len(self.left)

    def present(self, now: Now) -> Outcome | None:
        self._away.reached()
        message = f"{self._membership.present} of {self._nodes} nodes have joined"
        self._state_keeper.says(Phase.STARTING, message)
        self._shorten(now)
        if self._complete:
            return self._gathered(now)
        self._hasten(now)
        return None

    def _shorten(self, now: Now) -> None:
        """Shorten the wait for the others after half of the nodes joined, in proportion to their time."""
        if self.does_without and not self._half_joined and 2 * self._joined >= self._nodes:
            self._half_joined = True
            patience = max(PATIENCE_FACTOR * (now.steady - self.began), LEAST_PATIENCE)
            self._due_at = min(self.began + patience, self.began + self._join_seconds)

    def _hasten(self, now: Now) -> None:
        """End the wait soon if the launcher has explained the absence of all missing nodes."""
        if self._half_joined and self._launcher_output and self._due_at is not None and not self._unnamed():
            self._due_at = min(self._due_at, now.steady + NAMED_SECONDS)

    def _extends(self, now: Now) -> bool:
        """Return whether the limit gets more time, because this machine is overloaded.

        Nodes that will not come according to the launcher get no more time.
        """
        if self._ending:
            return self._membership.extend((), self._ending_since, RELAUNCH_SECONDS, now)
        if self._complete or (self._launcher_output and not self._unnamed()):
            return False
        extends = self._membership.extend((), self.began, self._join_seconds, now)
        if extends and not self._is_patient:
            self._is_patient = True
            self._note("this machine is overloaded: agents get more time to join")
        return extends

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
        if self._extends(now):
            self._due_at = now.steady + REPORT_SECONDS
            return None
        if self._ending:
            message = f"the launcher did not end within {RELAUNCH_SECONDS:g} s"
            return no_ranks(now, FailureKind.LAUNCHER, "", message)
        if self._complete or (self.does_without and self._joined and not self._silent()):
            return self._gathered(now)
        if self._fewest and not self._enough_without(self._membership.missing()):
            return self._too_few(now)
        if self.does_without and self._joined:  # the launcher still tries to reach the missing nodes
            self._dismiss(self._leave_out(now, self._membership.missing()))
            self._end_launcher(now)
            return None
        late = self._named(self._membership.missing())
        message = f"{late} of {self._nodes} did not join within {now.steady - self.began:.0f} s"
        return no_ranks(now, FailureKind.LAUNCHER, "", f"{message}; what the launcher said is in job.out")

    def _gathered(self, now: Now) -> Outcome | None:
        """Return the outcome, but only after the leases of an older coordinator's ranks have ended."""
        if self._joined < self._fewest:
            return self._too_few(now)
        if now.steady < self.quiet_until:
            self._due_at = self.quiet_until
            message = "waiting until the leases of an older attempt have ended"
            self._state_keeper.says(Phase.STARTING, message)
            return None
        self._due_at = None
        return Gathered()

    # --- nodes without a connection to the launcher ---

    def _look(self, now: Now) -> None:
        if self._membership.present or self._ending or self._again_at is not None:
            self._look_at = None
            return
        self._look_at = now.steady + LOOK_EVERY_SECONDS
        names = [self._membership.name_of(node) for node in self._membership.missing()]
        self._actions.append(LookAtLauncher(tuple(names)))

    def launcher_reached(self, now: Now, names: Sequence[str], settled: bool) -> None:
        """Launch again without the nodes that still have no connection long after most others have.

        ``names`` hold a connection to the launcher. ``settled``: the launcher waits for no node. If only
        its own node is connected then, connections of other nodes do not reach it.
        """
        if self._look_at is None or self._membership.present or self._relaunches >= MOST_RELAUNCHES:
            return
        expected = [node for node in self._membership.missing() if node not in self._without]
        without = [node for node in expected if self._membership.name_of(node) not in names]
        took = now.steady - self.began
        is_host_alone = settled and tuple(names) == (self._membership.name_of(0),) and len(without) > 1
        if not without or (2 * len(without) > len(expected) and not is_host_alone):
            return
        if self._linked_after is None:
            self._linked_after = took
        patience = max(PATIENCE_FACTOR * self._linked_after, LEAST_LINK_PATIENCE)
        patience = HOST_ALONE_PATIENCE if is_host_alone else patience
        if took >= patience and not self._membership.extend((), self.began, patience, now):
            others = f"as the {len(expected) - len(without)} other nodes did"
            reason = f"it {contract.NO_CONNECTION} to {self._membership.name_of(0)} within {took:.0f} s, "
            reason += "and no other node did" if is_host_alone else others
            self._without.update(dict.fromkeys(without, reason))
            self._leave_out(now, without)
            self._end_launcher(now)

    # --- a launch that cannot reach all nodes ---

    @property
    def _may_launch_again(self) -> bool:
        again = self._relaunch and self._relaunches < MOST_RELAUNCHES
        return again and self._membership.names_known

    def _silent(self) -> list[int]:
        """Return the nodes that the launcher may still try to reach. If it fails, it ends all agents."""
        return self._unnamed() if self._may_launch_again else []

    def _unnamed(self) -> list[int]:
        missing = [node for node in self._membership.missing() if node not in self._without]
        return [
            node for node in missing if not words_on(self._membership.name_of(node), self._launcher_output)
        ]

    def _leave_out(self, now: Now, nodes: Sequence[int]) -> list[Member]:
        """Leave out ``nodes`` from now on. All other nodes must join again."""
        for node in nodes:
            self._without[node] = self._why(now, node)
        self._relaunches += 1
        names = ", ".join(self._membership.name_of(node) for node in nodes)
        self._note(f"agents are launched once more, without {names}")
        return self._membership.clear()

    def _unreached(self) -> list[int]:
        names = unreached(self._launcher_output) if self._may_launch_again else ()
        nodes = [node for node in range(self._nodes) if node not in self._without]
        return [node for node in nodes if self._membership.name_of(node) in names]

    # --- nodes that do not come ---

    def launcher_ended(self, now: Now, event: LauncherEnded, message: str) -> Outcome | None:
        """Handle the end of all agents, or of a single agent. ``message`` describes it."""
        self._launcher_output = event.output
        again_at = self._away.next_at(now.steady, event.output) if event.whole else None
        if self._ending and event.whole:
            if not event.others:
                self._launch(now)
        elif again_at is not None and not self._complete:
            self._launch_later(now, again_at, event.others)
        elif event.whole and event.others:
            return self._none_beside(now, event.code, message)
        elif self._complete and not event.whole:
            return None
        elif event.whole and self._fewest and not self._enough_without(self._unreached()):
            return self._too_few(now)
        elif event.whole and self.does_without and (unreached := self._unreached()):
            self._leave_out(now, unreached)
            self._launch(now)
        elif event.whole and not self._complete:
            return self._ended_early(now, event.code, message)
        elif event.whole:
            return None
        elif self.does_without:
            self._hasten(now)
        else:
            output = ": " + " / ".join(event.output) if event.output else ""
            message = f"an agent ended with code {event.code} before it had joined{output}"
            return no_ranks(now, _kind_of_end(event.code), "", message)
        return None

    def _named(self, nodes: Sequence[int]) -> str:
        return failures.nodes_in_words(self._membership.called(nodes))

    def _ended_early(self, now: Now, code: int, message: str) -> NoRanks:
        lost = self._unfulfilled()
        if not lost or held(self._launcher_output):
            late = self._named(self._membership.missing())
            return no_ranks(now, _kind_of_end(code), "", f"{message} (before {late} had joined)")
        if len(lost) > 1:  # something that they share may be at fault
            name, message = "", f"{self._named(lost)} were lost and did not come back: {message}"
        else:
            name = self._membership.name_of(lost[0])
            message = f"{name} (node {lost[0]}) was lost and did not come back: {message}"
        return no_ranks(now, self._unless_overloaded(now, FailureKind.NODE, self.began, lost), name, message)

    def _none_beside(self, now: Now, code: int, message: str) -> Outcome | None:
        """Handle the end of the launch for missing nodes: no further node will come.

        If that launch started nothing, because the launcher of the present nodes holds all resources,
        both launches are ended.
        """
        if self._complete:
            return None
        if self._joined >= self._fewest:
            return self._gathered(now)
        if not held(self._launcher_output) or self.ended_others:
            return self._ended_early(now, code, message)
        self._note("all agents are launched once more: no step starts beside them")
        self._dismiss(self._membership.clear())
        self._end_launcher(now)
        return None

    def _launch_later(self, now: Now, again_at: float, others: bool) -> None:
        """Launch again later, because the controller is unreachable. No agent of this launch runs."""
        if not others:
            self._membership.clear()
        self._again_at = self._due_at = again_at
        seconds = again_at - now.steady
        message = f"the scheduler's controller cannot be reached: agents are launched again in {seconds:g} s"
        self._note(message)
        self._state_keeper.says(Phase.STARTING, message)

    def _enough_without(self, nodes: Sequence[int]) -> bool:
        return self._nodes - len({*self._without, *nodes}) >= self._fewest

    def _too_few(self, now: Now) -> NoRanks:
        absent = self.absent(now)
        absent = [row for row in absent if row[0] not in self._without] or absent
        awaited = self._unfulfilled()
        node, name, why = next((row for row in absent if row[0] in awaited), absent[0])
        self._due_at = None
        kind = self._unless_overloaded(now, FailureKind.NODE, self.began, [node])
        if len(awaited) > 1:
            return no_ranks(now, kind, "", f"{self._named(awaited)} did not come back: {why}")
        return no_ranks(now, kind, name, f"{name} (node {node}) did not come back: {why}")

    def _unfulfilled(self) -> list[int]:
        missing = {*self._membership.missing(), *self.left}
        return [node for node in self._awaited if node in missing]

    def absent(self, now: Now) -> list[tuple[int, str, str]]:
        nodes = sorted({*self._membership.missing(), *self.left})
        return [(node, self._membership.name_of(node), self._why(now, node)) for node in nodes]

    def _why(self, now: Now, node: int) -> str:
        if node in self._without:
            return self._without[node]
        if node in self.left:
            return f"its agent was lost before the others had joined: {self.left[node]}"
        lines, seconds = (
            words_on(self._membership.name_of(node), self._launcher_output),
            now.steady - self.began,
        )
        reason = f" ({' / '.join(lines)})" if lines else ""
        return f"{contract.NOT_JOINED} {seconds:.0f} s{reason}"


def _kind_of_end(code: int) -> FailureKind:
    """Return the kind of failure. Another launch does not help a program that cannot be executed."""
    return FailureKind.START if code in _NOT_EXECUTED else FailureKind.LAUNCHER

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
from clusterrun.slurm_text.srun_messages import failed_nodes, held, lacks_nodes, unreached, words_on

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


class _Joining:
    """The wait for agents after a launch.

    ``until``: its end. ``look_at``: the next look at the connections to the launcher; None: none is due.
    ``linked_after``: seconds until most nodes had a connection; None: they have none yet.
    ``half_joined``: half of the nodes joined, so that the others get a shorter time.
    ``is_extended``: an overload of this machine prolonged the wait.
    """

    def __init__(self, until: float, look_at: float | None = None) -> None:
        self.until: float | None = until
        self.look_at = look_at
        self.linked_after: float | None = None
        self.half_joined = self.is_extended = False


class _Ending:
    """The wait for the end of the launcher, which got a signal at ``since``."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.until: float | None = since + RELAUNCH_SECONDS


class _Pause:
    """The pause before the next launch, because the controller was unreachable."""

    def __init__(self, until: float) -> None:
        self.until: float | None = until


class Rendezvous(RunPart):
    """From a launch of the agents until a call returns ``Gathered`` or ``NoRanks``.

    A launcher that started all agents ends all of them if it cannot reach one node.

    ``quiet_until``: ranks of an older attempt may live until then.
    ``does_without``: nodes may be left out, so the wait is shorter after half of the nodes joined.
    ``began``: the time of the last launch. ``ended_others``: agents were ended for this launch.
    ``departed``: nodes that left after joining, and why.
    """

    def __init__(self, shared: Shared, does_without: bool) -> None:
        super().__init__(shared)
        self.quiet_until = self.began = 0.0
        self.does_without = does_without
        self.ended_others = False
        self.departed: dict[int, str] = {}
        self._wait: _Joining | _Ending | _Pause = _Joining(0.0)
        self._fewest = 0  # nodes that must join, if others may be left out; 0: all must join
        self._without: dict[int, str] = {}  # nodes that get no agent, and why
        self._awaited: tuple[int, ...] = ()  # lost nodes for which agents are launched again
        self._relaunches = 0
        self._away = ControllerAway()
        self._launcher_output: tuple[str, ...] = ()

    def begin(
        self, now: Now, quiet: bool, dead_since: float | None, without: Mapping[int, str], lease: float = 0.0
    ) -> None:
        """Launch agents, but not on the nodes ``without``. Not ``quiet``: older agents may still live.

        No lease of theirs was renewed after ``dead_since``, if it is known. Their ``lease`` may be longer
        than that of this coordinator's agents.
        """
        self._without = dict(without)
        timeouts = self._membership.timeouts
        lease, kill = max(lease, timeouts.lease), timeouts.kill
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
        self.departed.clear()
        beside = self._membership.launcher_lives and bool(self._orders.launch)
        self._dismiss(self._membership.retain(without) if beside else self._membership.clear())
        if beside and self._membership.present:  # present agents wait for the agents of other nodes
            self.ended_others = False
            self.began = now.steady
            if self._complete:
                self._wait = _Joining(now.steady)
                return self._gathered(now)
            self._launch(now)
            self._shorten(now)
        elif self._membership.launcher_lives:
            self._end_launcher(now)
        else:
            self._launch(now)
        return None

    def _end_launcher(self, now: Now) -> None:
        self.ended_others = True
        self._wait = _Ending(now.steady)
        self._actions.append(EndLauncher())

    def _launch(self, now: Now) -> None:
        self.began = now.steady
        self.departed.clear()
        self._launcher_output = ()
        looks = bool(self._orders.launch) and self.does_without and self._membership.names_known
        look_at = now.steady + LOOK_AFTER_SECONDS if looks else None
        self._wait = _Joining(now.steady + self._join_seconds, look_at)
        present = [member.node for member in self._membership.linked() if member.present]
        nodes = sorted({*self._without, *present})
        names = tuple(self._membership.name_of(node) for node in nodes)
        self._membership.launcher_lives, self._membership.launcher_words = True, ""
        self._membership.launches += 1
        self._actions.append(LaunchAgents(names))

    def welcomes(self, node: int) -> bool:
        return isinstance(self._wait, _Joining) and not self._complete and node not in self._without

    @property
    def _join_seconds(self) -> float:
        return self._membership.timeouts.join + START_SECONDS_PER_NODE * self._membership.size

    @property
    def _complete(self) -> bool:
        return self._membership.present + len(self._without) == self._membership.size

    @property
    def _joined(self) -> int:
        return self._membership.present - len(self.departed)

    def joined(self, now: Now) -> Outcome | None:
        self._away.reset()
        message = f"{self._membership.present} of {self._membership.size} nodes have joined"
        self._state_keeper.says(Phase.STARTING, message)
        self._shorten(now)
        if self._complete:
            return self._gathered(now)
        self._hasten(now)
        return None

    def _shorten(self, now: Now) -> None:
        """Shorten the wait for the others after half of the nodes joined, in proportion to their time."""
        wait = self._wait
        if not isinstance(wait, _Joining) or wait.half_joined or not self.does_without:
            return
        if 2 * self._joined >= self._membership.size:
            wait.half_joined = True
            patience = max(PATIENCE_FACTOR * (now.steady - self.began), LEAST_PATIENCE)
            wait.until = self.began + min(patience, self._join_seconds)

    def _hasten(self, now: Now) -> None:
        """End the wait soon if the launcher has explained the absence of all missing nodes."""
        wait = self._wait
        if not isinstance(wait, _Joining) or not wait.half_joined or wait.until is None:
            return
        if self._launcher_output and not self._unexplained():
            wait.until = min(wait.until, now.steady + NAMED_SECONDS)

    def wakes_at(self) -> float | None:
        wait = self._wait
        if wait.until is None or not isinstance(wait, _Joining):
            return wait.until
        return earliest(wait.look_at, wait.until)

    def tick(self, now: Now) -> Outcome | None:
        wait = self._wait
        if isinstance(wait, _Joining) and wait.look_at is not None and now.steady >= wait.look_at:
            self._look(now, wait)
        if wait.until is None or now.steady < wait.until:
            return None
        if isinstance(wait, _Pause):
            self._launch(now)
            return None
        if self._extends(now):
            wait.until = now.steady + REPORT_SECONDS
            return None
        wait.until = None
        if isinstance(wait, _Ending):
            message = f"the launcher did not end within {RELAUNCH_SECONDS:g} s"
            return no_ranks(now, FailureKind.LAUNCHER, "", message)
        # A launcher that fails to reach a node ends all agents, so none may remain that it still tries.
        is_settled = not (self._may_launch_again and self._unexplained())
        if self._complete or (self.does_without and self._joined and is_settled):
            return self._gathered(now)
        if self._fewest and not self._enough_without(self._membership.missing()):
            return self._too_few(now)
        if self.does_without and self._joined:  # the launcher still tries to reach the missing nodes
            self._dismiss(self._leave_out(now, self._membership.missing()))
            self._end_launcher(now)
            return None
        late = self._called(self._membership.missing())
        seconds = now.steady - self.began
        message = f"{late} of {self._membership.size} did not join within {seconds:.0f} s"
        return no_ranks(now, FailureKind.LAUNCHER, "", f"{message}; what the launcher said is in job.out")

    def _extends(self, now: Now) -> bool:
        """Return whether the limit gets more time, because this machine is overloaded.

        Nodes that will not come according to the launcher get no more time.
        """
        wait = self._wait
        if isinstance(wait, _Ending):
            return self._membership.extend((), wait.since, RELAUNCH_SECONDS, now)
        if self._complete or (self._launcher_output and not self._unexplained()):
            return False
        extends = self._membership.extend((), self.began, self._join_seconds, now)
        if extends and isinstance(wait, _Joining) and not wait.is_extended:
            wait.is_extended = True
            self._note("this machine is overloaded: agents get more time to join")
        return extends

    def _gathered(self, now: Now) -> Outcome | None:
        """Return the outcome, but only after the leases of an older coordinator's ranks have ended."""
        if self._joined < self._fewest:
            return self._too_few(now)
        if now.steady < self.quiet_until:
            self._wait.until = self.quiet_until
            message = "waiting until the leases of an older attempt have ended"
            self._state_keeper.says(Phase.STARTING, message)
            return None
        self._wait.until = None
        return Gathered()

    # --- nodes without a connection to the launcher ---

    def _look(self, now: Now, wait: _Joining) -> None:
        if self._membership.present:
            wait.look_at = None
            return
        wait.look_at = now.steady + LOOK_EVERY_SECONDS
        names = [self._membership.name_of(node) for node in self._membership.missing()]
        self._actions.append(LookAtLauncher(tuple(names)))

    def launcher_reached(self, now: Now, names: Sequence[str], settled: bool) -> None:
        """Launch again without the nodes that still have no connection long after most others have.

        ``names`` hold a connection to the launcher. ``settled``: the launcher waits for no node. If only
        its own node is connected then, connections of other nodes do not reach it.
        """
        wait = self._wait
        if not isinstance(wait, _Joining) or wait.look_at is None:
            return
        if self._membership.present or self._relaunches >= MOST_RELAUNCHES:
            return
        expected = [node for node in self._membership.missing() if node not in self._without]
        without = [node for node in expected if self._membership.name_of(node) not in names]
        seconds = now.steady - self.began
        is_host_alone = settled and tuple(names) == (self._membership.name_of(0),) and len(without) > 1
        if not without or (2 * len(without) > len(expected) and not is_host_alone):
            return
        if wait.linked_after is None:
            wait.linked_after = seconds
        patience = max(PATIENCE_FACTOR * wait.linked_after, LEAST_LINK_PATIENCE)
        patience = HOST_ALONE_PATIENCE if is_host_alone else patience
        if seconds >= patience and not self._membership.extend((), self.began, patience, now):
            others = f"as the {len(expected) - len(without)} other nodes did"
            reason = f"it {contract.NO_CONNECTION} to {self._membership.name_of(0)} within {seconds:.0f} s, "
            reason += "and no other node did" if is_host_alone else others
            self._without.update(dict.fromkeys(without, reason))
            self._leave_out(now, without)
            self._end_launcher(now)

    # --- a launch that cannot reach all nodes ---

    @property
    def _may_launch_again(self) -> bool:
        is_possible = self._orders.launch and self._membership.names_known
        return bool(is_possible) and self._relaunches < MOST_RELAUNCHES

    def _unexplained(self) -> list[int]:
        """Return the missing nodes whose absence the launcher has not explained."""
        names = {node: self._membership.name_of(node) for node in self._membership.missing()}
        return [
            node
            for node, name in names.items()
            if node not in self._without and not words_on(name, self._launcher_output)
        ]

    def _leave_out(self, now: Now, nodes: Sequence[int]) -> list[Member]:
        """Leave out ``nodes`` from now on. All other nodes must join again."""
        for node in nodes:
            self._without[node] = self._why(now, node)
        self._relaunches += 1
        names = ", ".join(self._membership.name_of(node) for node in nodes)
        self._note(f"agents are launched once more, without {names}")
        return self._membership.clear()

    # --- nodes that do not come ---

    def launcher_ended(self, now: Now, event: LauncherEnded, message: str) -> Outcome | None:
        """Handle the end of all agents, or of a single agent. ``message`` describes it."""
        self._launcher_output = event.output
        if not event.whole:
            return self._agent_ended(now, event)
        if isinstance(self._wait, _Ending):
            if not event.others:
                self._launch(now)
            return None
        again_at = self._away.next_at(now.steady, event.output)
        if again_at is not None and not self._complete:
            # The controller is unreachable, and no agent of this launch runs.
            if not event.others:
                self._membership.clear()
            self._wait = _Pause(again_at)
            seconds = again_at - now.steady
            notice = (
                f"the scheduler's controller cannot be reached: agents are launched again in {seconds:g} s"
            )
            self._note(notice)
            self._state_keeper.says(Phase.STARTING, notice)
            return None
        if event.others:
            # The launch for missing nodes has ended: no further node will come. If it started nothing,
            # because the launcher of the present nodes holds all resources, both launches are ended.
            if self._complete:
                return None
            if self._joined >= self._fewest:
                return self._gathered(now)
            if not held(self._launcher_output) or self.ended_others:
                return self._ended_early(now, event.code, message)
            self._note("all agents are launched once more: no step starts beside them")
            self._dismiss(self._membership.clear())
            self._end_launcher(now)
            return None
        names = unreached(self._launcher_output) if self._may_launch_again else ()
        nodes = [node for node in range(self._membership.size) if node not in self._without]
        unreached_nodes = [node for node in nodes if self._membership.name_of(node) in names]
        if self._fewest and not self._enough_without(unreached_nodes):
            return self._too_few(now)
        if self.does_without and unreached_nodes:
            self._leave_out(now, unreached_nodes)
            self._launch(now)
            return None
        return None if self._complete else self._ended_early(now, event.code, message)

    def _agent_ended(self, now: Now, event: LauncherEnded) -> Outcome | None:
        if self._complete:
            return None
        if self.does_without:
            self._hasten(now)
            return None
        output = ": " + " / ".join(dict.fromkeys(event.output)) if event.output else ""
        message = f"an agent ended with code {event.code} before it had joined{output}"
        # Slurm 20.11 starts a job whose prolog failed on a node, and may refuse its steps there.
        message += f" ({contract.PROLOG_FAILS})" if "credential revoked" in output else ""
        failed = failed_nodes(event.output)
        kind = FailureKind.NODE if failed else _kind_of_end(event.code)
        return no_ranks(now, kind, failed[0] if len(failed) == 1 else "", message)

    def _called(self, nodes: Sequence[int]) -> str:
        return failures.nodes_in_words(self._membership.called(nodes))

    def _ended_early(self, now: Now, code: int, message: str) -> NoRanks:
        lost = self._lost()
        if not lost or held(self._launcher_output):
            late = self._called(self._membership.missing())
            return no_ranks(now, _kind_of_end(code), "", f"{message} (before {late} had joined)")
        kind = FailureKind.NODE
        if not lacks_nodes(self._launcher_output):
            kind = self._unless_overloaded(now, kind, self.began, lost)
        if len(lost) > 1:  # something that they share may be at fault
            name, message = "", f"{self._called(lost)} were lost and did not come back: {message}"
        else:
            name = self._membership.name_of(lost[0])
            message = f"{name} (node {lost[0]}) was lost and did not come back: {message}"
        return no_ranks(now, kind, name, message)

    def _enough_without(self, nodes: Sequence[int]) -> bool:
        return self._membership.size - len({*self._without, *nodes}) >= self._fewest

    def _too_few(self, now: Now) -> NoRanks:
        absent = self.absent(now)
        absent = [row for row in absent if row[0] not in self._without] or absent
        awaited = self._lost()
        node, name, why = next((row for row in absent if row[0] in awaited), absent[0])
        self._wait.until = None
        kind = self._unless_overloaded(now, FailureKind.NODE, self.began, [node])
        if len(awaited) > 1:
            return no_ranks(now, kind, "", f"{self._called(awaited)} did not come back: {why}")
        return no_ranks(now, kind, name, f"{name} (node {node}) did not come back: {why}")

    def _lost(self) -> list[int]:
        """Return the missing nodes that caused this launch, else those that the launcher did not reach."""
        missing = sorted({*self._membership.missing(), *self.departed})
        names = unreached(self._launcher_output)
        awaited = [node for node in self._awaited if node in missing]
        return awaited or [node for node in missing if self._membership.name_of(node) in names]

    def absent(self, now: Now) -> list[tuple[int, str, str]]:
        """Return number, name and reason of each node without an agent."""
        nodes = sorted({*self._membership.missing(), *self.departed})
        return [(node, self._membership.name_of(node), self._why(now, node)) for node in nodes]

    def _why(self, now: Now, node: int) -> str:
        if node in self._without:
            return self._without[node]
        if node in self.departed:
            return f"its agent was lost before the others had joined: {self.departed[node]}"
        lines = words_on(self._membership.name_of(node), self._launcher_output)
        reason = f" ({' / '.join(dict.fromkeys(lines))})" if lines else ""
        return f"{contract.NOT_JOINED} {now.steady - self.began:.0f} s{reason}"


def _kind_of_end(code: int) -> FailureKind:
    """Return the kind of failure. Another launch does not help a program that cannot be executed."""
    return FailureKind.START if code in _NOT_EXECUTED else FailureKind.LAUNCHER

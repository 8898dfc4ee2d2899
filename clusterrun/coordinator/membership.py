"""The members of a run: the agent of each node, its place, when it was last heard, its lease; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

from clusterrun.model.overloads import Overloads
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.protocol.messages import Hello
from clusterrun.runtime.machine_events import Now

# A heartbeat that is at most this late, in heartbeat intervals, may still be on its way.
LATE_BEATS = 1.2


class Member:
    """The agent of one node.

    ``node`` is its number in the allocation. ``place`` is its index among the nodes that train, -1 if it
    does not train. ``present``: a heartbeat showed that it knows that it is welcome. ``silent``: it was not
    heard any more, although its link did not end. ``is_excused``: an overload explains that it was lost.
    ``is_dropped``: the coordinator ended the link, because of a message.
    """

    def __init__(self, link: int, hello: Hello, now: Now) -> None:
        self.link, self.hello = link, hello
        self.node, self.name = hello.node, hello.name
        self.joined = self.heard = now.steady
        self.heard_wall = now.wall
        self.acked: float | None = None
        self.present = self.lost = self.silent = self.is_excused = self.is_dropped = False
        self.place = -1

    @property
    def here(self) -> bool:
        return self.present and not self.lost


class Membership:
    """All members of a run. A lookup by link or by node is one step, whatever the number of nodes.

    ``names`` are the nodes of the allocation in order, as far as they are known beforehand.
    """

    def __init__(self, nodes: int, timeouts: Timeouts, names: tuple[str, ...] = ()) -> None:
        self.timeouts = timeouts  # all members keep them
        self.size = nodes  # number of nodes in the allocation
        self.members: list[Member | None] = [None] * nodes  # by node; None: no agent yet
        self.world: tuple[Member, ...] = ()  # members that train, in rank order; empty until it is formed
        self.present = 0
        self._names = dict(enumerate(names)) if len(names) == nodes else {}
        self.names_known = bool(self._names)  # the scheduler named all nodes
        self.by_link: dict[int, Member] = {}  # members that are not lost, by link
        self.launcher_lives = False  # a launcher runs
        self.launches = 0
        # Overloads of each node. The key None is the coordinator's machine.
        self._overloads: dict[int | None, Overloads] = defaultdict(Overloads)
        self.launcher_words = ""  # how the launcher ended, for reports of agents that it took along

    def admit(self, link: int, hello: Hello, now: Now) -> int | None:
        """Accept an agent. Return the link to drop: its own, an older link of the same agent, or None.

        The first agent of a node keeps the node. Only the same agent (by pid) may replace itself: it tries
        again if it never learned that it was welcome.
        """
        if not 0 <= hello.node < len(self.members):
            return link
        earlier = self.members[hello.node]
        if earlier is not None and (earlier.present or earlier.hello.pid != hello.pid):
            return link
        member = self.members[hello.node] = self.by_link[link] = Member(link, hello, now)
        if earlier is None:
            return None
        del self.by_link[earlier.link]
        return earlier.link if earlier.link != member.link else None

    def linked(self) -> list[Member]:
        """Return the members with a link, in the order in which they joined."""
        return list(self.by_link.values())

    def taken(self) -> list[Member]:
        return [member for member in self.members if member is not None]

    def clear(self) -> list[Member]:
        """Remove all members. Return the members that had a link."""
        dismissed = self.linked()
        self._names.update((member.node, member.name) for member in self.taken())
        self.members = [None] * len(self.members)
        self.world = ()
        self.present = 0
        self.by_link.clear()
        return dismissed

    def retain(self, without: Container[int]) -> list[Member]:
        """Remove all members that are not here or are on the nodes ``without``.

        Return the removed members that had a link.
        """
        self._names.update((member.node, member.name) for member in self.taken())
        dismissed = []
        for member in self.taken():
            member.place = -1
            if member.here and member.node not in without:
                continue
            if self.by_link.pop(member.link, None) is not None:
                dismissed.append(member)
            self.members[member.node] = None
            self.present -= member.present
        self.world = ()
        return dismissed

    def training(self) -> list[Member]:
        return [member for member in self.world if not member.lost]

    def idle(self) -> list[Member]:
        return [member for member in self.by_link.values() if member.place < 0]

    def form(self, nodes: Sequence[int]) -> None:
        for member in self.world:
            member.place = -1
        members = [self.members[node] for node in nodes]
        self.world = tuple(member for member in members if member is not None)
        for index, member in enumerate(self.world):
            member.place = index

    def welcome(self, member: Member) -> None:
        member.present = True
        self.present += 1

    def lose(self, member: Member, now: Now) -> None:
        """Mark a member as lost, because its link ended. Its ranks may live until its lease ends."""
        del self.by_link[member.link]
        member.lost = True
        # The time before the member joined is unknown.
        since = max(member.joined, now.steady - self.timeouts.lease)
        member.is_excused = self.excuse([member.node], since, now)

    @property
    def complete(self) -> bool:
        return self.present == len(self.members)

    def missing(self) -> list[int]:
        return [node for node, member in enumerate(self.members) if member is None or not member.present]

    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.world)

    def name_of(self, node: int) -> str:
        member = self.members[node]
        return member.name if member else self._names.get(node, f"node {node}")

    def called(self, nodes: Sequence[int]) -> list[str]:
        return [self.name_of(node) if self.names_known else str(node) for node in nodes]

    def dead_by(self, member: Member) -> float:
        """Return when the lease of the last acknowledgement is over and the shim has killed all ranks."""
        return 0.0 if member.acked is None else member.acked + self.timeouts.lease + self.timeouts.kill

    def hears_none(self, now: Now, host: str) -> bool:
        """Return whether several nodes, and all except ``host``, missed heartbeats.

        ``host`` may be cut off.
        """
        beat = self.timeouts.heartbeat
        others = [s for s in self.taken() if s.name != host and (s.silent or not s.lost)]
        return len(others) > 1 and all(now.steady - member.heard > LATE_BEATS * beat for member in others)

    def silent(self, now: Now, limit: float, patient_limit: float) -> list[Member]:
        """Return the members that were not heard for ``limit`` seconds.

        An overload of their node or of this machine excuses up to ``patient_limit`` seconds.
        """
        silent = []
        for member in self.by_link.values():
            quiet = now.steady - member.heard
            is_excused = quiet <= patient_limit and self.excuse([member.node], member.heard, now)
            if quiet > limit and not is_excused:
                silent.append(member)
        return silent

    def overloaded(self, node: int | None, now: Now, seconds: float) -> None:
        """Record that ``node`` (None: this machine) was overloaded for the last ``seconds``."""
        self._overloads[node].add(now.steady, seconds)

    def excuse(self, nodes: Iterable[int], since: float, now: Now) -> bool:
        """Return whether an overload of this machine, or of one of ``nodes``, explains a wait."""
        return any(self._overloads[node].excuse(since, now.steady) for node in (None, *nodes))

    def extend(self, nodes: Iterable[int], since: float, limit: float, now: Now) -> bool:
        """Return whether a limit for ``nodes`` gets more time because of an overload."""
        return any(self._overloads[node].extend(since, limit, now.steady) for node in (None, *nodes))

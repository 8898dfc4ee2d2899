"""The members: which agent is on which node, who trains, when each was last heard, its lease; pure."""

from __future__ import annotations

from collections.abc import Container, Sequence

from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.protocol.messages import Hello
from clusterrun.runtime.machine_events import Now

LATE_BEATS = 1.2
"""A heartbeat that took no longer, counted in beats, was on its way."""


class Member:
    """One node's member, taken by an agent; ``present`` once a beat shows that it knows it is welcome.

    ``node`` is its number in the allocation, ``place`` its index among the nodes that train, -1 where it
    does not. ``silent``: nothing ended its link, it was just not heard any more.
    """

    def __init__(self, link: int, hello: Hello, now: Now) -> None:
        self.link, self.hello = link, hello
        self.node, self.name = hello.node, hello.name
        self.heard = now.steady
        self.heard_wall = now.wall
        self.acked: float | None = None
        self.present = self.lost = self.silent = False
        self.place = -1

    @property
    def here(self) -> bool:
        return self.present and not self.lost


class Membership:
    """All members of a run; every lookup by link or by node is one step, whatever the number of nodes.

    ``names`` are the nodes of the allocation in order, as far as they are known beforehand. ``world``
    are the members that train, in rank order; empty until it is formed. ``names_known``: the scheduler
    has told the names of all nodes. ``timeouts`` are those that all members keep; ``size`` counts the
    members, taken or not. ``by_link`` is who speaks over which link: no stranger, and nobody who is lost.
    ``launcher_lives``: a program that started agents runs; ``launcher_words`` say how it ended, for those
    whom it took along.
    """

    def __init__(self, nodes: int, timeouts: Timeouts, names: tuple[str, ...] = ()) -> None:
        self.timeouts, self.size = timeouts, nodes
        self.members: list[Member | None] = [None] * nodes
        self.world: tuple[Member, ...] = ()
        self.present = 0
        self._names = dict(enumerate(names)) if len(names) == nodes else {}
        self.names_known = bool(self._names)
        self.by_link: dict[int, Member] = {}
        self.launcher_lives = False
        self.launches = 0
        self.launcher_words = ""

    def take(self, link: int, hello: Hello, now: Now) -> int | None:
        """Seat an agent. Returns the link that is to be dropped: its own, an older one of its, or None.

        The first agent of a node keeps it. Only the same agent (by pid) that tries again, because it
        never learned that it was welcome, takes its own place over.
        """
        if not 0 <= hello.node < len(self.members):
            return link
        old = self.members[hello.node]
        if old is not None and (old.present or old.hello.pid != hello.pid):
            return link
        member = self.members[hello.node] = self.by_link[link] = Member(link, hello, now)
        if old is None:
            return None
        del self.by_link[old.link]
        return old.link if old.link != member.link else None

    def linked(self) -> list[Member]:
        """Those that can be spoken to, in the order in which they came."""
        return list(self.by_link.values())

    def taken(self) -> list[Member]:
        return [member for member in self.members if member is not None]

    def clear(self) -> list[Member]:
        """Everybody leaves, and every member is free again; those who could be spoken to."""
        left = self.linked()
        self._names.update((member.node, member.name) for member in self.taken())
        self.members = [None] * len(self.members)
        self.world = ()
        self.present = 0
        self.by_link.clear()
        return left

    def retain(self, without: Container[int]) -> list[Member]:
        """Free every member but of those who are here and not on the nodes ``without``.

        Returns those who could be spoken to and have no member any more.
        """
        self._names.update((member.node, member.name) for member in self.taken())
        left = []
        for member in self.taken():
            member.place = -1
            if member.here and member.node not in without:
                continue
            if self.by_link.pop(member.link, None) is not None:
                left.append(member)
            self.members[member.node] = None
            self.present -= member.present
        self.world = ()
        return left

    def training(self) -> list[Member]:
        return [member for member in self.world if not member.lost]

    def idle(self) -> list[Member]:
        return [member for member in self.by_link.values() if member.place < 0]

    def form(self, nodes: Sequence[int]) -> None:
        for member in self.world:
            member.place = -1
        members = [self.members[node] for node in nodes]
        self.world = tuple(member for member in members if member is not None)
        for place, member in enumerate(self.world):
            member.place = place

    def vacate(self, member: Member) -> None:
        del self.by_link[member.link]
        self.members[member.node] = None

    def welcome(self, member: Member) -> None:
        member.present = True
        self.present += 1

    def lose(self, member: Member) -> None:
        """Drop a member whose link is gone; its ranks may live until its lease ends."""
        del self.by_link[member.link]
        member.lost = True

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
        """When the lease that our last acknowledgement gave has run out and the shim has killed."""
        return 0.0 if member.acked is None else member.acked + self.timeouts.lease + self.timeouts.kill

    def hears_none(self, now: Now, host: str) -> bool:
        """Whether all of several nodes but ``host`` missed heartbeats: ``host`` may be cut off."""
        beat = self.timeouts.heartbeat
        others = [s for s in self.taken() if s.name != host and (s.silent or not s.lost)]
        return len(others) > 1 and all(now.steady - member.heard > LATE_BEATS * beat for member in others)

    def silent(self, now: Now, limit: float) -> list[Member]:
        return [member for member in self.by_link.values() if now.steady - member.heard > limit]

"""Which agent sits on which node, who of them trains, when it was last heard and how long it may live."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from clusterrun.protocol.messages import Hello
    from clusterrun.runtime.machine_events import Now

LATE_BEATS = 1.2
"""A heartbeat that took no longer, counted in beats, was on its way."""


class Member:
    """One node's seat, taken by an agent; ``present`` once a beat shows that it knows it is welcome.

    ``place`` is its index among the nodes that train, -1 where it does not. ``silent``: nothing ended
    its link, it was just not heard any more.
    """

    __slots__ = ("acked", "heard", "heard_wall", "hello", "link", "lost", "place", "present", "silent")

    def __init__(self, link: int, hello: Hello, now: Now) -> None:
        self.link = link
        self.hello = hello
        self.heard = now.steady
        self.heard_wall = now.wall
        self.acked: float | None = None
        self.present = False
        self.lost = False
        self.silent = False
        self.place = -1

    @property
    def node(self) -> int:
        """Its number within the allocation."""
        return self.hello.node

    @property
    def name(self) -> str:
        """Its name."""
        return self.hello.name

    def heard_now(self, now: Now) -> None:
        """A message came."""
        self.heard = now.steady
        self.heard_wall = now.wall


class Membership:
    """All seats of a run; every lookup by link or by node is one step, whatever the number of nodes.

    ``names`` are the nodes of the allocation in order, as far as they are known beforehand. ``world``
    are the seats that train, in rank order; empty until it is formed. ``names_known``: the scheduler
    has told the names of all nodes.
    """

    def __init__(self, nodes: int, names: tuple[str, ...] = ()) -> None:
        self.seats: list[Member | None] = [None] * nodes
        self.world: tuple[Member, ...] = ()
        self.present = 0
        self._names = dict(enumerate(names)) if len(names) == nodes else {}
        self.names_known = bool(self._names)
        self._by_link: dict[int, Member] = {}

    def take(self, link: int, hello: Hello, now: Now) -> int | None:
        """Seat an agent. Returns the link that is to be dropped: its own, an older one of its, or None.

        The first agent of a node keeps it. Only the same agent (by pid) that tries again, because it
        never learned that it was welcome, takes its own place over.
        """
        if not 0 <= hello.node < len(self.seats):
            return link
        old = self.seats[hello.node]
        if old is not None and (old.present or old.hello.pid != hello.pid):
            return link
        seat = self.seats[hello.node] = self._by_link[link] = Member(link, hello, now)
        if old is None:
            return None
        del self._by_link[old.link]
        return old.link if old.link != seat.link else None

    def by_link(self, link: int) -> Member | None:
        """Who speaks over ``link``; None for strangers and for those that are lost."""
        return self._by_link.get(link)

    def linked(self) -> list[Member]:
        """Those that can be spoken to, in the order in which they came."""
        return list(self._by_link.values())

    def taken(self) -> list[Member]:
        """All seats that somebody has taken, in order of the nodes."""
        return [seat for seat in self.seats if seat is not None]

    def clear(self) -> list[Member]:
        """Everybody leaves, and every seat is free again; those who could be spoken to."""
        left = self.linked()
        self._names.update((seat.node, seat.name) for seat in self.taken())
        self.seats = [None] * len(self.seats)
        self.world = ()
        self.present = 0
        self._by_link.clear()
        return left

    def retain(self, without: Container[int]) -> list[Member]:
        """Free every seat but of those who are here and not on the nodes ``without``.

        Returns those who could be spoken to and have no seat any more.
        """
        self._names.update((seat.node, seat.name) for seat in self.taken())
        left = []
        for seat in self.taken():
            seat.place = -1
            if seat.present and not seat.lost and seat.node not in without:
                continue
            if self._by_link.pop(seat.link, None) is not None:
                left.append(seat)
            self.seats[seat.node] = None
            self.present -= seat.present
        self.world = ()
        return left

    @property
    def size(self) -> int:
        """How many seats there are, taken or not."""
        return len(self.seats)

    def training(self) -> list[Member]:
        """Those of the world that can be spoken to."""
        return [seat for seat in self.world if not seat.lost]

    def idle(self) -> list[Member]:
        """Those that can be spoken to and do not train."""
        return [seat for seat in self._by_link.values() if seat.place < 0]

    def form(self, nodes: Sequence[int]) -> None:
        """Let the nodes with these numbers train, in this order."""
        for seat in self.world:
            seat.place = -1
        seats = [self.seats[node] for node in nodes]
        self.world = tuple(seat for seat in seats if seat is not None)
        for place, seat in enumerate(self.world):
            seat.place = place

    def vacate(self, seat: Member) -> None:
        """Its agent left before it was present: the place is free again."""
        del self._by_link[seat.link]
        self.seats[seat.node] = None

    def welcome(self, seat: Member) -> None:
        """Its first beat came."""
        if not seat.present:
            seat.present = True
            self.present += 1

    def lose(self, seat: Member) -> None:
        """Nothing is heard or said any more; what runs there lives until its lease is out."""
        del self._by_link[seat.link]
        seat.lost = True

    @property
    def complete(self) -> bool:
        """Every node is present."""
        return self.present == len(self.seats)

    def missing(self) -> list[int]:
        """The numbers of the nodes that are not present."""
        return [node for node, seat in enumerate(self.seats) if seat is None or not seat.present]

    def names(self) -> tuple[str, ...]:
        """The names of the nodes that train, in rank order."""
        return tuple(seat.name for seat in self.world)

    def numbers(self) -> list[tuple[int, str]]:
        """Number in the allocation and name of the nodes that train, in rank order."""
        return [(seat.node, seat.name) for seat in self.world]

    def name_of(self, node: int) -> str:
        """The name of node number ``node``, also where nobody has joined from there."""
        seat = self.seats[node]
        if seat is not None:
            return seat.name
        return self._names.get(node, f"node {node}")

    def called(self, nodes: Sequence[int]) -> list[str]:
        """Nodes by name where the names of all are known, else by number."""
        return [self.name_of(node) if self.names_known else str(node) for node in nodes]

    def hears_none(self, now: Now, host: str, beat: float) -> bool:
        """Of several nodes other than ``host`` none was heard when it should: the fault may be its own.

        ``beat``: seconds from one heartbeat of a node to the next.
        """
        others = [s for s in self.taken() if s.name != host and (s.silent or not s.lost)]
        return len(others) > 1 and all(now.steady - seat.heard > LATE_BEATS * beat for seat in others)

    def silent(self, now: Now, limit: float) -> list[Member]:
        """Those not heard for ``limit`` seconds."""
        return [seat for seat in self._by_link.values() if now.steady - seat.heard > limit]

"""Which agent sits on which node, when it was last heard and how long it may live; knows no ranks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.agent.events import Now
    from clusterrun.agent.messages import Hello


class Seat:
    """One node's place, taken by an agent; ``present`` once a beat shows that it knows it is welcome."""

    __slots__ = ("acked", "heard", "heard_wall", "hello", "link", "lost", "present")

    def __init__(self, link: int, hello: Hello, now: Now) -> None:
        self.link = link
        self.hello = hello
        self.heard = now.steady
        self.heard_wall = now.wall
        self.acked: float | None = None
        self.present = False
        self.lost = False

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


class Roster:
    """All seats of a run; every lookup by link or by node is one step, whatever the number of nodes."""

    def __init__(self, nodes: int) -> None:
        self.seats: list[Seat | None] = [None] * nodes
        self.present = 0
        self.lost = 0
        self._by_link: dict[int, Seat] = {}

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
        seat = self.seats[hello.node] = self._by_link[link] = Seat(link, hello, now)
        if old is None:
            return None
        del self._by_link[old.link]
        return old.link if old.link != seat.link else None

    def by_link(self, link: int) -> Seat | None:
        """Who speaks over ``link``; None for strangers and for those that are lost."""
        return self._by_link.get(link)

    def linked(self) -> list[Seat]:
        """Those that can be spoken to, in the order in which they came."""
        return list(self._by_link.values())

    def vacate(self, seat: Seat) -> None:
        """Its agent left before it was present: the place is free again."""
        del self._by_link[seat.link]
        self.seats[seat.node] = None

    def welcome(self, seat: Seat) -> None:
        """Its first beat came."""
        if not seat.present:
            seat.present = True
            self.present += 1

    def lose(self, seat: Seat) -> None:
        """Nothing is heard or said any more; what runs there lives until its lease is out."""
        del self._by_link[seat.link]
        seat.lost = True
        self.lost += 1

    @property
    def complete(self) -> bool:
        """Every node is present."""
        return self.present == len(self.seats)

    def missing(self) -> list[int]:
        """The numbers of the nodes that are not present."""
        return [node for node, seat in enumerate(self.seats) if seat is None or not seat.present]

    def names(self) -> tuple[str, ...]:
        """The names of all nodes, in order; only where it is complete."""
        return tuple(seat.name for seat in self.seats if seat is not None)

    def silent(self, now: Now, limit: float) -> list[Seat]:
        """Those not heard for ``limit`` seconds."""
        return [seat for seat in self._by_link.values() if now.steady - seat.heard > limit]

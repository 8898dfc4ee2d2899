"""The observations of a check. Phases append observations to the log; nobody changes or removes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, LinkReport
from clusterrun.preflight.tasks import DialAnswer, DialTask, ExchangeAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Type = TypeVar("Type")

# Phases of connections.
CONTROL, ABSENT, LOSS = "control", "absent", "loss"


@frozen
class GroupTest:
    """The outcome of one collective test of a group of nodes."""

    nodes: tuple[int, ...]
    passed: bool | None  # None: inconclusive, because a member was lost
    rate: float | None = None  # bus bandwidth in GB/s
    wrong: str = ""  # how a sum differed
    starved: bool = False  # its ranks waited for processors, so the network is at least this fast
    kind: str = ""
    seconds: float = 0.0
    ways: tuple[tuple[int, float], ...] = ()  # of a pair: GB/s of what each node sent
    why: str = ""  # another reason to fail
    transports: tuple[tuple[int, str], ...] = ()  # by node: the network that NCCL chose
    round: int = 0  # how many rounds of pair tests ended before it

    @property
    def is_good(self) -> bool:
        return bool(self.passed) and not self.wrong

    @property
    def failure(self) -> str:
        return (self.wrong or self.why) if self.passed is False else ""


@frozen
class NodeGone:
    """A node gets no more requests. ``findings`` are replaced if its absence has a better explanation."""

    node: int
    findings: tuple[Finding, ...]
    at: float  # steady clock
    is_lost: bool = False  # its agent was lost during the check


@frozen
class NodeDials:
    """One node dialled others."""

    task: DialTask
    answer: DialAnswer


@frozen
class InterfaceDials:
    """One node dialled others at the addresses of another interface than the one in use."""

    task: DialTask
    answer: DialAnswer


@frozen
class EarlierInterfaces:
    """The interfaces that an earlier check chose for NCCL."""

    names: tuple[str, ...]


@frozen
class PortSweep:
    """Nodes dialled a comb of closed ports, and held ``needed`` connections open at once, both twice."""

    silent: Mapping[tuple[int, int], frozenset[int]]  # by (dialling, dialled) node: ports without an answer
    unheld: Mapping[tuple[int, int], int] = MappingProxyType({})  # connections without an answer
    needed: int = 0  # 0: no connections were held


@frozen
class FailedRendezvous:
    """The ways, (dialling, dialled), on which torchrun's port failed, twice."""

    port: int
    silent: tuple[tuple[int, int], ...]
    refused: tuple[tuple[int, int], ...]  # although the examiner of the dialled node listens on it


@frozen
class NodeTraffic:
    """The traffic of one node since the exchange of messages began."""

    node: int
    answer: ExchangeAnswer


@frozen
class PhaseEnd:
    """A phase of connections ended. A node that was gone by then explains what failed with it."""

    phase: str  # CONTROL, ABSENT or LOSS
    present: tuple[int, ...]


@frozen
class SlowGroup:
    """Nodes that work together, but twice were slower than ``floor`` (GB/s)."""

    nodes: tuple[int, ...]
    floor: float


@frozen
class EarlierLink:
    """A bad link that an earlier check found."""

    link: LinkReport


@frozen
class Unanswered:
    """The budget ended before the node answered."""

    node: int
    title: str  # of the task


@frozen
class CheckFault:
    """The check itself failed."""

    error: Exception


class Log:
    """All observations of a check, in their order."""

    def __init__(self) -> None:
        self._by_type: dict[type, list[object]] = {}

    def append(self, observations: Iterable[object]) -> None:
        for observation in observations:
            self._by_type.setdefault(type(observation), []).append(observation)

    def of(self, observation_type: type[Type]) -> Sequence[Type]:
        """Return the observations of one type."""
        return self._by_type.get(observation_type, ())  # type: ignore[return-value]

    def last_end(self, phase: str) -> PhaseEnd | None:
        """Return the newest end of this phase; None if it did not end."""
        ends = [end for end in self.of(PhaseEnd) if end.phase == phase]
        return ends[-1] if ends else None

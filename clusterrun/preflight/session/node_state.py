"""One node under examination: all that it said and all that was found about it; asks and judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.preflight_report import Finding, Grade, worst
from clusterrun.preflight.search.bandwidth_blame import switches
from clusterrun.preflight.tasks import GroupResult, Interface, ListenAnswer, LocalAnswer, WarmUp


class NodeState:
    """``gone`` is why it is asked no more ('' while it is); ``ports`` are those it can lead a test on.

    ``absent`` is why it never joined, ``lost_at`` when it fell silent after that; ``excused``: by
    another's fault, it may be fit. ``ends`` are how its torch workers ended before their time.
    """

    def __init__(self, node: int, name: str, address: str) -> None:
        self.node, self.name, self.address = node, name, address
        self.gone = self.absent = ""
        self.excused = False
        self.lost_at: float | None = None
        self.local: LocalAnswer | None = None
        self.listening: ListenAnswer | None = None
        self.earliest, self.latest = float("-inf"), float("inf")
        self.resolved: dict[str, str] = {}
        self.naming = 0.0
        self.warm: WarmUp | None = None
        self.first_warm: WarmUp | None = None
        self.ports: list[int] = []
        self.product: GroupResult | None = None
        self.ends: list[str] = []
        self._found: dict[str, tuple[Finding, ...]] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for found in self._found.values() for finding in found)

    @property
    def verdict(self) -> Grade:
        return worst(tuple(finding.verdict for finding in self.findings))

    @property
    def unfit(self) -> bool:
        return bool(self.gone) or self.verdict is Grade.FAIL

    @property
    def is_warm(self) -> bool:
        """Tests can be made with it."""
        return self.warm is not None and self.warm.up and not self.unfit

    @property
    def interface(self) -> Interface | None:
        """The interface by which its agent reaches the coordinator: the one that ranks will use."""
        known = self.listening.interfaces if self.listening is not None else ()
        return next((one for one in known if one.address == self.address), None)

    @property
    def switches(self) -> tuple[str, ...]:
        """Those above it, the topmost first; () where the scheduler tells of none."""
        return switches(self.listening.topology) if self.listening is not None else ()

    @property
    def offset(self) -> float:
        """How far its clock is ahead of the coordinator's, in the middle of what is possible; seconds."""
        return (self.earliest + self.latest) / 2

    def told_time(self, wall: float, earliest: float, latest: float) -> None:
        """Its clock said ``wall`` at a moment when the coordinator's stood between these two."""
        self.earliest = max(self.earliest, wall - latest)
        self.latest = min(self.latest, wall - earliest)

    def warm_up(self, said: WarmUp) -> None:
        """Its torch worker is up, or cannot be."""
        self.warm = said
        self.first_warm = self.first_warm or said
        self.ports = list(said.ports)
        if not said.up and self.first_warm.up:
            self.leave(
                "torch", f"its torch worker cannot be started again: {said.why}", "see the examiner's log"
            )

    def grow_cold(self, why: str) -> None:
        """Its torch worker is gone; another one can be started."""
        self.ends.append(why)
        self.warm = None
        self.ports = []

    def multiplied(self, result: GroupResult) -> None:
        """Its matrix product: of several the fastest, but a wrong one stands."""
        best = self.product
        if best is None or (best.passed and (not result.passed or _speed(result) > _speed(best))):
            self.product = result

    def write(self, source: str, found: Iterable[Finding]) -> None:
        """What ``source`` says of it, instead of what it said before."""
        self._found[source] = tuple(found)

    def stay_out(self, findings: Iterable[Finding]) -> None:
        """It was found unfit before, and is not looked at again."""
        found = tuple(findings)
        self.gone = next(
            (one.said for one in found if one.verdict is Grade.FAIL), "it was found unfit before"
        )
        self.write("gone", found)

    def leave(self, check: str, why: str, remedy: str) -> None:
        """It will not be asked any more: it is lost, or says nothing."""
        if not self.gone:
            self.gone = why
            self.write("gone", [Finding(check, Grade.FAIL, why, remedy)])


def _speed(result: GroupResult) -> float:
    return dict(result.rates).get("product", 0.0)

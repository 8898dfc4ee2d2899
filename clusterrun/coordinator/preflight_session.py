"""The coordinator's side of a pre-flight: passes its questions to nodes and their answers back; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import Send
from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Report
from clusterrun.model.states import Phase
from clusterrun.protocol.messages import AskSidecar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Optional, Protocol

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.protocol.messages import SidecarSaid
    from clusterrun.runtime.machine_events import Now

    class Ask(Protocol):
        """A question to the examiner of a node."""

        @property
        def node(self) -> int: ...
        @property
        def number(self) -> int: ...
        @property
        def body(self) -> str: ...

    class Outcome(Protocol):
        """How an examination ended (see ``preflight/session/session.py``)."""

        @property
        def fit(self) -> bool: ...
        @property
        def report(self) -> Report: ...
        @property
        def world(self) -> tuple[int, ...]: ...
        @property
        def environment(self) -> tuple[tuple[str, str], ...]: ...
        @property
        def excluded(self) -> tuple[str, ...]: ...

    class Examination(Protocol):
        """What decides which questions are asked."""

        @property
        def progress(self) -> str: ...
        @property
        def outcome(self) -> Outcome | None: ...
        def begin(self) -> Sequence[Ask]: ...
        def answered(self, now: float, node: int, number: int, body: str) -> Sequence[Ask]: ...
        def lost(self, now: float, node: int, why: str) -> Sequence[Ask]: ...
        def tick(self, now: float) -> Sequence[Ask]: ...
        def wakes_at(self) -> float | None: ...

    Absent = tuple[int, str, str]
    """A node that has not joined: its number in the allocation, its name, why."""
    Examine = Callable[
        [Orders, Sequence["Examinee"], Sequence[Absent], float, float, Optional["Again"]], Examination
    ]

_LEAST_SLACK = 120.0
_SECONDS_PER_NODE_FOR_ALL_PAIRS = 60.0


@frozen
class Examinee:
    """A node whose agent has joined: its number in the allocation, its name, its address."""

    node: int
    name: str
    address: str


@frozen
class Again:
    """The short pre-flight before a later attempt: of whom something is feared, by number.

    ``network``: of their links too. ``after`` is what the last pre-flight found.
    """

    suspects: tuple[int, ...]
    network: bool
    after: Report


def longest(orders: Orders) -> float:
    """Seconds after which an examination without an outcome is given up: it keeps to its budget by itself."""
    budget = orders.preflight.budget
    pairs = _SECONDS_PER_NODE_FOR_ALL_PAIRS * orders.allocated if orders.preflight.all_pairs else 0.0
    return max(2 * budget, budget + _LEAST_SLACK) + pairs


class PreflightSession:
    """One examination; ``done`` is called once, with its outcome."""

    def __init__(
        self,
        epoch: int,
        examination: Examination,
        membership: Membership,
        state_keeper: RunStateKeeper,
        actions: list[CoordinatorAction],
        done: Callable[[Now, Outcome], None],
    ) -> None:
        self._epoch = epoch
        self._examination = examination
        self._membership, self._state_keeper, self._actions, self._done = (
            membership,
            state_keeper,
            actions,
            done,
        )
        self._over = False

    def begin(self, now: Now) -> None:
        """The first questions."""
        self._go_on(now, self._examination.begin())

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        return self._examination.wakes_at()

    def tick(self, now: Now) -> None:
        """Time passed."""
        self._go_on(now, self._examination.tick(now.steady))

    def said(self, now: Now, member: Member, message: SidecarSaid) -> None:
        """An examiner answered."""
        asks = self._examination.answered(now.steady, member.node, message.number, message.body)
        self._go_on(now, asks)

    def lost(self, now: Now, member: Member, why: str) -> None:
        """A node, or its examiner, will answer no more."""
        self._go_on(now, self._examination.lost(now.steady, member.node, why))

    def _go_on(self, now: Now, asks: Iterable[Ask]) -> None:
        if self._over:
            return
        for ask in asks:
            member = self._membership.members[ask.node]
            if member is not None and member.present and not member.lost:
                self._actions.append(Send(member.link, self._message(ask)))
        outcome = self._examination.outcome
        if outcome is None:
            self._state_keeper.says(Phase.PREFLIGHT, self._examination.progress)
            return
        self._over = True
        self._done(now, outcome)

    def _message(self, ask: Ask) -> AskSidecar:
        return AskSidecar(self._epoch, contract.EXAMINER, ask.number, ask.body)

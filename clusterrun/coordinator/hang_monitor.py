"""Passes what observers say to the hang detector, and does what it asks for; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import SaveBeside, Send
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.model import contract
from clusterrun.model.states import State
from clusterrun.protocol.messages import AskSidecar
from clusterrun.runtime.machine_events import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.attempt import LiveAttempt
    from clusterrun.coordinator.events import ClientAsked
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.protocol.messages import SidecarSaid
    from clusterrun.runtime.machine_events import Now

    class Detector(Protocol):
        """What judges whether ranks make progress: ``monitor/hang_detector.py``."""

        def said(self, now: float, wall: float, node: int, number: int, body: str) -> Sequence[Any]: ...
        def lost(self, now: float, wall: float, node: int, why: str) -> Sequence[Any]: ...
        def asked(self, now: float, wall: float, name: str, body: str) -> Sequence[Any]: ...
        def tick(self, now: float, wall: float) -> Sequence[Any]: ...
        def over(self, now: float, wall: float, completed: bool) -> Sequence[Any]: ...
        def wakes_at(self) -> float | None: ...

    Watch = Callable[[Orders, int, Sequence[tuple[int, str]], float, float], Detector]


class HangMonitor:
    """One attempt's detector and what its words bring about; ``ask`` takes a wish that the run should end."""

    def __init__(
        self,
        detector: Detector,
        live: LiveAttempt,
        membership: Membership,
        state_keeper: RunStateKeeper,
        actions: list[CoordinatorAction],
        ask: Callable[[Now, RunOutcome], None],
    ) -> None:
        self._detector, self._live = detector, live
        self._membership, self._state_keeper, self._actions, self._ask = (
            membership,
            state_keeper,
            actions,
            ask,
        )
        self._does: dict[str, Callable[[Now, Any], None]] = {
            "AskObserver": self._pass_on,
            "Warn": self._tell,
            "TakeBack": self._take_back,
            "Save": self._save,
            "EndAttempt": self._wish,
        }

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        return self._detector.wakes_at()

    def tick(self, now: Now) -> None:
        """Time passed."""
        self._carry_out(now, self._detector.tick(now.steady, now.wall))

    def said(self, now: Now, member: Member, message: SidecarSaid) -> None:
        """An observer said something."""
        said = self._detector.said(now.steady, now.wall, member.node, message.number, message.body)
        self._carry_out(now, said)

    def lost(self, now: Now, member: Member, why: str) -> None:
        """A node, or its observer, will say no more."""
        self._carry_out(now, self._detector.lost(now.steady, now.wall, member.node, why))

    def asked(self, now: Now, event: ClientAsked) -> None:
        """The client wants to know something."""
        self._carry_out(now, self._detector.asked(now.steady, now.wall, event.name, event.body))

    def over(self, now: Now, completed: bool) -> None:
        """No rank lives any more."""
        self._carry_out(now, self._detector.over(now.steady, now.wall, completed))

    def _carry_out(self, now: Now, said: Iterable[Any]) -> None:
        for one in said:
            self._does[type(one).__name__](now, one)

    def _pass_on(self, now: Now, ask: Any) -> None:
        member = self._membership.members[ask.node]
        if member is not None and not member.lost:
            order = AskSidecar(self._live.epoch, contract.OBSERVER, ask.number, ask.body)
            self._actions.append(Send(member.link, order))

    def _tell(self, now: Now, told: Any) -> None:
        self._actions.append(Note(told.text))
        self._state_keeper.warn(told.text)

    def _take_back(self, now: Now, taken: Any) -> None:
        if self._state_keeper.take_back(taken.beginning) and taken.text:
            self._actions.append(Note(taken.text))

    def _save(self, now: Now, save: Any) -> None:
        self._actions.append(SaveBeside(self._live.epoch, save.name, save.text))

    def _wish(self, now: Now, wish: Any) -> None:
        if wish.what == "restart":
            self._live.hangs(now, wish.why)
        else:
            self._ask(now, RunOutcome(State.FAILED, wish.why, contract.ExitCode.FAILED))

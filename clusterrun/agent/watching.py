"""The watch over one attempt's ranks as the coordinator drives it; knows not what a hang looks like."""

from __future__ import annotations

from clusterrun.agent.actions import Note, SaveBeside, Send
from clusterrun.agent.messages import AskCompanion
from clusterrun.agent.verdict import Verdict
from clusterrun.model import contract
from clusterrun.model.states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    from clusterrun.agent.actions import CoordinatorAction
    from clusterrun.agent.attempt import LiveAttempt
    from clusterrun.agent.events import DeskAsked, Now
    from clusterrun.agent.ledger import Ledger
    from clusterrun.agent.messages import CompanionSaid
    from clusterrun.agent.roster import Roster, Seat
    from clusterrun.model.orders import Orders

    class Vigil(Protocol):
        """What judges whether ranks make their way (see ``watch/vigil.py``); gives actions of its own."""

        def said(self, now: float, wall: float, node: int, number: int, body: str) -> Sequence[Any]: ...
        def lost(self, now: float, wall: float, node: int, why: str) -> Sequence[Any]: ...
        def asked(self, now: float, wall: float, name: str, body: str) -> Sequence[Any]: ...
        def tick(self, now: float, wall: float) -> Sequence[Any]: ...
        def over(self, now: float, wall: float, completed: bool) -> Sequence[Any]: ...
        def wakes_at(self) -> float | None: ...

    Watch = Callable[[Orders, int, Sequence[tuple[int, str]], float, float], Vigil]


class Watching:
    """One attempt's vigil and what its words bring about; ``ask`` takes a wish that the run should end."""

    def __init__(
        self,
        vigil: Vigil,
        live: LiveAttempt,
        roster: Roster,
        ledger: Ledger,
        say: Callable[[CoordinatorAction], None],
        ask: Callable[[Now, Verdict], None],
    ) -> None:
        self._vigil, self._live = vigil, live
        self._roster, self._ledger, self._say, self._ask = roster, ledger, say, ask
        self._does: dict[str, Callable[[Now, Any], None]] = {
            "Ask": self._pass_on,
            "Tell": self._tell,
            "TakeBack": self._take_back,
            "Save": self._save,
            "Wish": self._wish,
        }

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        return self._vigil.wakes_at()

    def tick(self, now: Now) -> None:
        """Time passed."""
        self._carry_out(now, self._vigil.tick(now.steady, now.wall))

    def said(self, now: Now, seat: Seat, message: CompanionSaid) -> None:
        """An observer said something."""
        said = self._vigil.said(now.steady, now.wall, seat.node, message.number, message.body)
        self._carry_out(now, said)

    def lost(self, now: Now, seat: Seat, why: str) -> None:
        """A node, or its observer, will say no more."""
        self._carry_out(now, self._vigil.lost(now.steady, now.wall, seat.node, why))

    def asked(self, now: Now, event: DeskAsked) -> None:
        """The desk wants to know something."""
        self._carry_out(now, self._vigil.asked(now.steady, now.wall, event.name, event.body))

    def over(self, now: Now, completed: bool) -> None:
        """No rank lives any more."""
        self._carry_out(now, self._vigil.over(now.steady, now.wall, completed))

    def _carry_out(self, now: Now, said: Iterable[Any]) -> None:
        for one in said:
            self._does[type(one).__name__](now, one)

    def _pass_on(self, now: Now, ask: Any) -> None:
        seat = self._roster.seats[ask.node]
        if seat is not None and not seat.lost:
            order = AskCompanion(self._live.epoch, contract.OBSERVER, ask.number, ask.body)
            self._say(Send(seat.link, order))

    def _tell(self, now: Now, told: Any) -> None:
        self._say(Note(told.text))
        self._ledger.warn(told.text)

    def _take_back(self, now: Now, taken: Any) -> None:
        if self._ledger.take_back(taken.beginning) and taken.text:
            self._say(Note(taken.text))

    def _save(self, now: Now, save: Any) -> None:
        self._say(SaveBeside(self._live.epoch, save.name, save.text))

    def _wish(self, now: Now, wish: Any) -> None:
        if wish.what == "restart":
            self._live.hangs(now, wish.why)
        else:
            self._ask(now, Verdict(State.FAILED, wish.why, contract.ExitCode.FAILED))

"""Pass the observers' messages to the hang detector and carry out its orders; pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.coordinator.actions import Announce, SaveBeside
from clusterrun.coordinator.attempt import LiveAttempt
from clusterrun.coordinator.events import ClientAsked
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.run_part import EndAsked, RunPart, Shared
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.states import State
from clusterrun.monitor.hang_detector import AskObserver, EndAttempt, HangDetector, Save, TakeBack, Warn
from clusterrun.notify.event_message import HUNG
from clusterrun.protocol.messages import AskSidecar, SidecarEnded, SidecarSaid
from clusterrun.runtime.machine_events import Now


class HangMonitor(RunPart):
    """One attempt's hang detector. A call may return the request to end the attempt."""

    def __init__(self, shared: Shared, live: LiveAttempt, now: Now) -> None:
        super().__init__(shared)
        self._live = live
        nodes = [(member.node, member.name) for member in self._membership.world]
        self._detector = HangDetector(self._orders, nodes, now.steady)

    def wakes_at(self) -> float | None:
        return self._detector.wakes_at()

    def tick(self, now: Now) -> EndAsked | None:
        return self._carry_out(now, self._detector.tick(now))

    def heard(self, now: Now, member: Member, message: SidecarSaid | SidecarEnded) -> EndAsked | None:
        if isinstance(message, SidecarEnded):
            return self.lost(now, member, message.why)
        orders = self._detector.on_answer(now, member.node, message.number, message.body)
        return self._carry_out(now, orders)

    def lost(self, now: Now, member: Member, why: str) -> EndAsked | None:
        return self._carry_out(now, self._detector.lost(now, member.node, why))

    def asked(self, now: Now, event: ClientAsked) -> EndAsked | None:
        return self._carry_out(now, self._detector.on_request(now, event.name, event.body))

    def explained(self, now: Now, end: RunOutcome) -> RunOutcome:
        """Return ``end``, with the time that no rank has made progress if a time limit ended such a run."""
        stalled = self._detector.stalled(now.steady) if end.state is State.TIMEOUT else 0.0
        if not stalled:
            return end
        from clusterrun.model.duration import spoken  # at the end of a run, not before

        reason = f"{end.reason}{contract.STALLED}{spoken(stalled)}: a shorter --hang-after finds out why"
        return replace(end, reason=reason)

    def over(self, now: Now, completed: bool) -> None:
        self._carry_out(now, self._detector.over(now.steady, completed))

    def _carry_out(self, now: Now, orders: Iterable[object]) -> EndAsked | None:
        end = None
        for action in orders:
            if isinstance(action, AskObserver):
                member = self._membership.members[action.node]
                if member is not None and not member.lost:
                    message = AskSidecar(self._live.epoch, contract.OBSERVER, action.number, action.body)
                    self._send(member, message)
            elif isinstance(action, Warn):
                self._note(action.text)
                self._state_keeper.warn(action.text)
                if action.hangs and self._orders.survival.announces:
                    self._actions.append(Announce(HUNG, self._state_keeper.state, now.wall, action.text))
            elif isinstance(action, TakeBack):
                if self._state_keeper.take_back(action.beginning) and action.text:
                    self._note(action.text)
            elif isinstance(action, Save):
                self._actions.append(SaveBeside(self._live.epoch, action.name, action.text))
            elif isinstance(action, EndAttempt) and action.what == "restart":
                self._live.hangs(now, action.why, now.wall - action.stalled, action.error)
            elif isinstance(action, EndAttempt):
                end = EndAsked(RunOutcome(State.FAILED, action.why, contract.ExitCode.FAILED))
        return end

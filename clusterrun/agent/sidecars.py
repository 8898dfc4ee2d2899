"""Which companions stand beside a node's ranks and when they must go; knows no process and no body's meaning.

An examiner and ranks never live at once: both use the GPUs, and what is measured must not disturb.
"""

from __future__ import annotations

from clusterrun.agent.actions import Accompany, Dismiss, PassOn, Tell
from clusterrun.agent.ranks import RankStage
from clusterrun.model import contract
from clusterrun.protocol.messages import SidecarEnded, SidecarSaid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from clusterrun.agent.actions import AgentAction
    from clusterrun.agent.events import SidecarGone, SidecarSpoke
    from clusterrun.agent.ranks import Ranks
    from clusterrun.protocol.messages import AskSidecar, EndSidecar
    from clusterrun.runtime.machine_events import Now


class Sidecars:
    """The companions of one node, each of one epoch; ``say`` takes actions."""

    def __init__(self, ranks: Ranks, say: Callable[[AgentAction], None]) -> None:
        self._ranks = ranks
        self._say = say
        self._epochs: dict[str, int] = {}

    def ask(self, order: AskSidecar, leaving: bool) -> None:
        """Pass a question on; where it may not be asked now, that is the answer."""
        why = "this node has been told to end" if leaving else self._objection(order)
        if why:
            self._say(Tell(SidecarEnded(order.epoch, order.companion, why)))
            return
        known = self._epochs.get(order.companion)
        if known is not None and known < order.epoch:
            self.dismiss(order.companion)
        self._epochs[order.companion] = order.epoch
        self._say(PassOn(order.epoch, order.companion, order.number, order.body))

    def _objection(self, order: AskSidecar) -> str:
        ranks = self._ranks
        if order.epoch < self._epochs.get(order.companion, -1):
            return f"a companion of epoch {self._epochs[order.companion]} is here"
        if order.companion == contract.EXAMINER:
            return "" if ranks.idle and order.epoch > ranks.seen else "ranks were started on this node"
        return "" if ranks.stage is RankStage.RUNNING and order.epoch == ranks.epoch else "no ranks live here"

    def observe(self, epoch: int) -> None:
        """From now on the ranks are observed, where a question has not brought the observer already."""
        if self._epochs.get(contract.OBSERVER) == epoch:
            return
        self._epochs[contract.OBSERVER] = epoch
        self._say(Accompany(epoch, contract.OBSERVER))

    def end(self, order: EndSidecar) -> None:
        """It is wanted no more."""
        if self._epochs.get(order.companion) == order.epoch:
            self.dismiss(order.companion)

    def dismiss(self, companion: str) -> None:
        """Kill it, where it lives."""
        if self._epochs.pop(companion, None) is not None:
            self._say(Dismiss(companion))

    def spoke(self, now: Now, event: SidecarSpoke) -> None:
        """Pass an answer on."""
        if self._epochs.get(event.companion) == event.epoch:
            self._say(Tell(SidecarSaid(event.epoch, event.companion, event.number, event.body)))

    def gone(self, now: Now, event: SidecarGone) -> None:
        """It ended by itself."""
        if self._epochs.get(event.companion) == event.epoch:
            del self._epochs[event.companion]
            self._say(Tell(SidecarEnded(event.epoch, event.companion, event.why)))

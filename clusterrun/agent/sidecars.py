"""Which sidecars run beside a node's ranks, and when each must end; pure.

A pre-flight worker and ranks never live at once: both use the GPUs, and what is measured must not disturb.
"""

from __future__ import annotations

from clusterrun.agent.actions import StartSidecar, Tell
from clusterrun.agent.ranks import Ranks, RankStage
from clusterrun.model import contract
from clusterrun.protocol.messages import AskSidecar, EndSidecar, SidecarEnded, SidecarSaid, ToAgent
from clusterrun.runtime.machine_events import Action


class Sidecars:
    """The sidecars of one node, each of one epoch."""

    def __init__(self, ranks: Ranks, actions: list[Action | ToAgent]) -> None:
        self._ranks, self._actions = ranks, actions
        self._epochs: dict[str, int] = {}

    def ask(self, order: AskSidecar, leaving: bool) -> None:
        """Pass a question on; where it may not be asked now, that is the answer."""
        why = "this node has been told to end" if leaving else self._objection(order)
        if why:
            self._actions.append(Tell(SidecarEnded(order.epoch, order.sidecar, why)))
            return
        known = self._epochs.get(order.sidecar)
        if known is not None and known < order.epoch:
            self.dismiss(order.sidecar)
        self._epochs[order.sidecar] = order.epoch
        self._actions.append(order)

    def _objection(self, order: AskSidecar) -> str:
        ranks = self._ranks
        if order.epoch < self._epochs.get(order.sidecar, -1):
            return f"a sidecar of epoch {self._epochs[order.sidecar]} is here"
        if order.sidecar == contract.EXAMINER:
            return "" if ranks.idle and order.epoch > ranks.seen else "ranks were started on this node"
        return "" if ranks.stage is RankStage.RUNNING and order.epoch == ranks.epoch else "no ranks live here"

    def observe(self, epoch: int) -> None:
        """From now on the ranks are observed, where a question has not brought the observer already."""
        if self._epochs.get(contract.OBSERVER) == epoch:
            return
        self._epochs[contract.OBSERVER] = epoch
        self._actions.append(StartSidecar(epoch, contract.OBSERVER))

    def end(self, order: EndSidecar) -> None:
        if self._epochs.get(order.sidecar) == order.epoch:
            self.dismiss(order.sidecar)

    def dismiss(self, sidecar: str) -> None:
        epoch = self._epochs.pop(sidecar, None)
        if epoch is not None:
            self._actions.append(EndSidecar(epoch, sidecar))

    def spoke(self, event: SidecarSaid) -> None:
        if self._epochs.get(event.sidecar) == event.epoch:
            self._actions.append(Tell(event))

    def gone(self, event: SidecarEnded) -> None:
        if self._epochs.get(event.sidecar) == event.epoch:
            del self._epochs[event.sidecar]
            self._actions.append(Tell(event))

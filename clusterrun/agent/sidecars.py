"""Decide which sidecars run on a node, and when each must end. Pure.

An examiner and ranks never live at the same time: both use the GPUs, and a measurement must not
disturb training.
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

    def ask(self, message: AskSidecar, leaving: bool) -> None:
        """Pass a request on, or answer with the reason if it is not allowed now."""
        why = "this node was ordered to end" if leaving else self._objection(message)
        if why:
            self._actions.append(Tell(SidecarEnded(message.epoch, message.sidecar, why)))
            return
        epoch = self._epochs.get(message.sidecar)
        if epoch is not None and epoch < message.epoch:
            self.dismiss(message.sidecar)
        self._epochs[message.sidecar] = message.epoch
        self._actions.append(message)

    def _objection(self, message: AskSidecar) -> str:
        ranks = self._ranks
        if message.epoch < self._epochs.get(message.sidecar, -1):
            return f"a sidecar of epoch {self._epochs[message.sidecar]} runs on this node"
        if message.sidecar == contract.EXAMINER:
            return "" if ranks.idle and message.epoch > ranks.seen else "ranks were started on this node"
        is_running = ranks.stage is RankStage.RUNNING and message.epoch == ranks.epoch
        return "" if is_running else contract.NO_RANKS

    def observe(self, epoch: int) -> None:
        """Start the observer, unless a request has already started it."""
        if self._epochs.get(contract.OBSERVER) == epoch:
            return
        self._epochs[contract.OBSERVER] = epoch
        self._actions.append(StartSidecar(epoch, contract.OBSERVER))

    def end(self, message: EndSidecar) -> None:
        if self._epochs.get(message.sidecar) == message.epoch:
            self.dismiss(message.sidecar)

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

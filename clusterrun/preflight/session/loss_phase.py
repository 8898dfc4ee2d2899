"""Run the loss round: nodes exchange messages during the whole check and count retransmitted segments."""

from __future__ import annotations

from clusterrun.model.limits import chosen
from clusterrun.preflight.causes.cover import RARE_LINK
from clusterrun.preflight.causes.losses import loss_nats, lossy_ways
from clusterrun.preflight.observations import LOSS
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import ExchangeTask, Target
from clusterrun.preflight.thresholds import ANSWER_SECONDS, DIAL_SECONDS, FEW_NODES


def begin(state: SessionState) -> Waits:
    """Start the exchange of ten messages per second: between all pairs of few nodes.

    Larger sets exchange them between neighbours in the ring, opposite nodes, and the ends of slow dials.
    """
    listeners = state.listeners()
    partners: dict[int, dict[int, None]] = {node.node: {} for node in listeners}
    for index, node in enumerate(listeners if len(listeners) > 1 else ()):
        half = len(listeners) // 2
        for step in range(1, half + 1) if len(listeners) <= FEW_NODES else (1, half):
            partner = listeners[(index + step) % len(listeners)].node
            if node.node not in partners[partner]:
                partners[node.node][partner] = None
    for (a, b), way in state.dials.ways.items():
        hinted = (way.slow or way.missed) and {a, b} <= partners.keys()
        if hinted and a not in partners[b] and len(partners[a]) < FEW_NODES:
            partners[a][b] = None
    bad_links = explain(state).bad_links
    for node in listeners:
        others = [state.nodes[number] for number in partners[node.node]]
        targets = tuple(
            Target(other.node, other.name, other.address, other.listening.ports[:1], 0)
            for other in others
            if frozenset((node.node, other.node)) not in bad_links
        )
        if targets:
            task = ExchangeTask(state.nonce, node.node, targets, 0.0)
            state.ask(node.node, task, ANSWER_SECONDS)
            state.exchanging.append(node.node)
    yield (ExchangeTask,)


def read_counts(state: SessionState) -> Waits:
    """Read the counts. Read them again some seconds later if they hint at loss without proof."""
    yield from _ask_traffic(state, 0.0)
    least = chosen(state.needs.limits)["loss_warn"]
    ways = lossy_ways(state.log, (node.node for node in state.present()))
    is_odd = any(way.stalls or loss_nats(way.sent, way.resent, least) >= RARE_LINK for way in ways)
    if is_odd and state.clock.seconds_left > DIAL_SECONDS + ANSWER_SECONDS:
        state.label = "a longer look at messages that had to be sent again"
        yield from _ask_traffic(state, DIAL_SECONDS)
    state.end_phase(LOSS)


def _ask_traffic(state: SessionState, seconds: float) -> Waits:
    for node in state.present():
        if node.node in state.exchanging:
            task = ExchangeTask(state.nonce, node.node, (), seconds)
            state.ask(node.node, task, seconds + ANSWER_SECONDS)
    yield (ExchangeTask,)

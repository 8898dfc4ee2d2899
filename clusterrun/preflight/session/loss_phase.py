"""Run the loss round: nodes exchange messages during the whole check and count retransmitted segments."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes import losses
from clusterrun.preflight.causes.losses import LossTrouble, LossyWay
from clusterrun.preflight.session import partition_findings
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import ExchangeTask, Target
from clusterrun.preflight.thresholds import limit

# Every pair of up to 16 nodes exchanges ten messages per second, on at most 15 connections per node.
MESH = 16
# Larger sets test ring neighbours, opposite nodes, and at most this many slow dials per node.
_MOST_HINTS = 8
# The exchange lasts this much longer if some packets were lost, but too few to report.
MORE_SECONDS = 6.0
# Half of the segments that a warning requires justify a longer exchange.
_FEW_RESENT = 4
_ANSWER_SECONDS = 10.0
_REMEDY = "look at cable, switch port and duplex of {}: ethtool -S, ip -s link, nstat -az TcpRetransSegs"
_ALL = "look at the switches between the nodes: dropped packets, buffers, flow control"


def begin(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Start the exchange: between neighbours in the ring, opposite nodes, and ends of slow dials."""
    listeners = state.listeners()
    partners: dict[int, dict[int, None]] = {node.node: {} for node in listeners}
    for place, node in enumerate(listeners if len(listeners) > 1 else ()):
        half = len(listeners) // 2
        for step in range(1, half + 1) if len(listeners) <= MESH else (1, half):
            partner = listeners[(place + step) % len(listeners)].node
            if node.node not in partners[partner]:
                partners[node.node][partner] = None
    for (a, b), way in state.dials.ways.items():
        hinted = (way.slow or way.missed) and {a, b} <= partners.keys()
        if hinted and a not in partners[b] and len(partners[a]) < _MOST_HINTS:
            partners[a][b] = None
    for node in listeners:
        others = [state.nodes[number] for number in partners[node.node]]
        targets = tuple(
            Target(other.node, other.name, other.address, other.listening.ports[:1], 0)
            for other in others
            if not state.is_cut(node.node, other.node)
        )
        if targets:
            task = ExchangeTask(state.nonce, node.node, targets, 0.0)
            state.ask(node.node, task, _ANSWER_SECONDS)
            state.watched.append(node.node)
    yield (ExchangeTask,)


def read(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Read the counts. Read them again some seconds later if they hint at loss without proof."""
    yield from _ask(state, 0.0)
    least = limit(state.needs.limits, "loss_warn")
    is_odd = any(way.stalls or (way.share >= least and way.resent >= _FEW_RESENT) for way in _ways(state))
    if is_odd and state.seconds_left > MORE_SECONDS + _ANSWER_SECONDS:
        state.label = "a longer look at messages that had to be sent again"
        yield from _ask(state, MORE_SECONDS)
    write(state)


def _ask(state: SessionState, seconds: float) -> Iterator[tuple[type, ...]]:
    for node in state.present():
        if node.node in state.watched:
            task = ExchangeTask(state.nonce, node.node, (), seconds)
            state.ask(node.node, task, seconds + _ANSWER_SECONDS)
    yield (ExchangeTask,)


def _ways(state: SessionState) -> list[LossyWay]:
    return state.losses.ways(node.node for node in state.present())


def write(state: SessionState) -> None:
    ways, least = _ways(state), limit(state.needs.limits, "loss_warn")
    troubles, parts = losses.explain_losses(ways, least)
    nodes = [NodeFinding(trouble.nodes[0], _of_node(state, trouble)) for trouble in troubles if trouble.side]
    links = [_of_link(state, trouble) for trouble in troubles if len(trouble.nodes) == 2]
    usual = losses.usual_share(ways)
    if usual >= least:
        message = f"{usual:.1%} or more of what most nodes send each other has to be sent again"
        nodes.append(NodeFinding(None, Finding("loss", Grade.WARN, message, _ALL)))
    crossing = [way for trouble in troubles if not trouble.nodes for way in trouble.ways]
    across = LossTrouble((), tuple(dict.fromkeys(crossing)))
    partition_findings.write_lossy(state, parts, _counts(across), _grade(state, across, stalls=2))
    state.write("loss", nodes, links)


def _of_node(state: SessionState, trouble: LossTrouble) -> Finding:
    node = trouble.nodes[0]
    others = state.names(dict.fromkeys(way.b if way.a == node else way.a for way in trouble.ways))
    sent, received = f"what it sends to {others}", f"what it gets from {others}"
    traffic = {"out": sent, "in": received}.get(trouble.side, f"{sent} and gets from them")
    message = f"packets of {traffic} get lost: {_counts(trouble)}"
    return Finding("loss", _grade(state, trouble, stalls=1), message, _REMEDY.format(state.names([node])))


def _of_link(state: SessionState, trouble: LossTrouble) -> LinkReport:
    a, b = (state.nodes[node].name for node in trouble.nodes)
    traffic = f"{a} and {b} send each other" if trouble.both else f"{a} sends to {b}"
    message = f"packets of what {traffic} get lost: {_counts(trouble)}"
    direction, grade = "both" if trouble.both else "a->b", _grade(state, trouble, stalls=2)
    return LinkReport(a, b, direction, grade, message, _REMEDY.format(f"{a} and {b}"))


def _counts(trouble: LossTrouble) -> str:
    sent, resent = sum(way.sent for way in trouble.ways), sum(way.resent for way in trouble.ways)
    message = f"{resent} of {sent} segments were sent again ({trouble.share:.1%})"
    if trouble.stalls:
        longest = max(way.longest for way in trouble.ways)
        message += f"; {trouble.stalls} messages stalled, for up to {longest:.1f} s"
    return message


def _grade(state: SessionState, trouble: LossTrouble, stalls: int) -> Grade:
    """FAIL if much is lost, or if messages stalled more often than one event explains."""
    lossy = trouble.share >= limit(state.needs.limits, "loss_fail")
    return Grade.FAIL if lossy or trouble.stalls >= stalls else Grade.WARN

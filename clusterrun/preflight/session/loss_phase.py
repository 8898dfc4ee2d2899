"""The loss round: nodes exchange messages all the time, and what the kernel sent again is judged; pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.search import retransmissions
from clusterrun.preflight.session import partition_findings
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import ExchangeTask, Target
from clusterrun.preflight.thresholds import limit

MORE_SECONDS = 6.0
"""Where something was seen, but not enough to blame anybody, it is looked at for so much longer."""
_ANSWER_SECONDS = 10.0
_REMEDY = "look at cable, switch port and duplex of {}: ethtool -S, ip -s link, nstat -az TcpRetransSegs"
_ALL = "look at the switches between the nodes: dropped packets, buffers, flow control"


def begin(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Let every node exchange messages with the next in the ring, and with one on its other side."""
    there = state.listeners()
    steps = (1, len(there) // 2) if len(there) > retransmissions.ENOUGH + 1 else (1,)
    for place, one in enumerate(there if len(there) > 1 else ()):
        others = [there[(place + step) % len(there)] for step in steps]
        targets = tuple(
            Target(other.node, other.name, other.address, other.listening.ports[:1], 0)
            for other in others
            if not state.is_cut(one.node, other.node)
        )
        if targets:
            state.ask(one.node, ExchangeTask(state.nonce, one.node, targets, 0.0), _ANSWER_SECONDS)
            state.watched.append(one.node)
    yield (ExchangeTask,)


def read(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Hear what was seen; for some more seconds where that is needed to tell who is to blame."""
    yield from _ask(state, 0.0)
    least, half = limit(state.asked.limits, "loss_warn"), retransmissions.LEAST_RESENT // 2
    odd = any(way.stalls or (way.share >= least and way.resent >= half) for way in _ways(state))
    if odd and state.left > MORE_SECONDS + _ANSWER_SECONDS:
        state.label = "a longer look at messages that had to be sent again"
        yield from _ask(state, MORE_SECONDS)
    write(state)


def _ask(state: SessionState, seconds: float) -> Iterator[tuple[type, ...]]:
    for one in state.present():
        if one.node in state.watched:
            state.ask(one.node, ExchangeTask(state.nonce, one.node, (), seconds), seconds + _ANSWER_SECONDS)
    yield (ExchangeTask,)


def _ways(state: SessionState) -> list[retransmissions.LossyWay]:
    return state.losses.ways(one.node for one in state.present())


def write(state: SessionState) -> None:
    ways, least = _ways(state), limit(state.asked.limits, "loss_warn")
    found = retransmissions.troubles(ways, least)
    said = [NodeFinding(one.nodes[0], _of_node(state, one)) for one in found if len(one.nodes) == 1]
    usual = retransmissions.usual_share(ways)
    if usual >= least:
        words = f"{usual:.1%} or more of what most nodes send each other has to be sent again"
        said.append(NodeFinding(None, Finding("loss", Grade.WARN, words, _ALL)))
    links = [one for one in found if len(one.nodes) == 2]
    groups = retransmissions.parts(ways, links)
    place = {node: at for at, group in enumerate(groups) for node in group}
    across = [one for one in links if len({place.get(node, -1) for node in one.nodes}) > 1 and groups]
    lost = retransmissions.LossTrouble((), tuple(way for one in across for way in one.ways))
    partition_findings.write_lossy(state, groups, _counts(lost), _grade(state, lost, stalls=2))
    state.write("loss", said, [_of_link(state, one) for one in links if one not in across])


def _of_node(state: SessionState, trouble: retransmissions.LossTrouble) -> Finding:
    node = trouble.nodes[0]
    others = state.names(dict.fromkeys(way.b if way.a == node else way.a for way in trouble.ways))
    out, into = f"what it sends to {others}", f"what it gets from {others}"
    what = {"out": out, "in": into}.get(trouble.side, f"{out} and gets from them")
    said = f"packets of {what} get lost: {_counts(trouble)}"
    return Finding("loss", _grade(state, trouble, stalls=1), said, _REMEDY.format(state.names([node])))


def _of_link(state: SessionState, trouble: retransmissions.LossTrouble) -> LinkReport:
    a, b = (state.subjects[node].name for node in trouble.nodes)
    between = f"{a} and {b} send each other" if trouble.both else f"{a} sends to {b}"
    said = f"packets of what {between} get lost: {_counts(trouble)}"
    direction, grade = "both" if trouble.both else "a->b", _grade(state, trouble, stalls=2)
    return LinkReport(a, b, direction, grade, said, _REMEDY.format(f"{a} and {b}"))


def _counts(trouble: retransmissions.LossTrouble) -> str:
    sent, resent = sum(way.sent for way in trouble.ways), sum(way.resent for way in trouble.ways)
    said = f"{resent} of {sent} segments were sent again ({trouble.share:.1%})"
    longest = max((way.longest for way in trouble.ways), default=0.0)
    return said + (
        f"; {trouble.stalls} messages stalled, for up to {longest:.1f} s" if trouble.stalls else ""
    )


def _grade(state: SessionState, trouble: retransmissions.LossTrouble, stalls: int) -> Grade:
    """Unfit where much is lost, or messages stalled so often that it is no single event."""
    lossy = trouble.share >= limit(state.asked.limits, "loss_fail")
    return Grade.FAIL if lossy or trouble.stalls >= stalls else Grade.WARN

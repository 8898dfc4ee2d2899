"""Describe what dials, sweeps of ports and counts of packets show about nodes and links."""

from __future__ import annotations

from clusterrun.model.limits import chosen
from clusterrun.model.phrases import count_of, some_of
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes import losses
from clusterrun.preflight.causes.dials import ConnectTrouble
from clusterrun.preflight.causes.losses import LossTrouble
from clusterrun.preflight.causes.ports import Blocked, blocked
from clusterrun.preflight.checks import controller_clock
from clusterrun.preflight.observations import CONTROL, LOSS, EarlierLink, FailedRendezvous, PortSweep
from clusterrun.preflight.session import consistency, partition_findings
from clusterrun.preflight.session.explanation import Explanation
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.state import HOST, SessionState

_FIREWALL = (
    "open the ephemeral ports between the nodes of a job, or lift a limit of new connections "
    "(iptables -L -n, nft list ruleset, nf_conntrack_max)"
)
_BETWEEN = "a firewall on one of the two, or between them, has a {} rule: iptables -S, nft list ruleset"
_NO_PORT = "look at ss -s and sysctl net.ipv4.ip_local_port_range there: are all local ports in use?"
_CABLE = "look at switch port, cable and route of {}: ip -s link, ethtool"
_PATH = "let the MTU of {} be what the switches carry: ping -M do -s 8972 from the one to the other"
_OPEN = "open the ephemeral ports between the nodes of a job (iptables -S, nft list ruleset): on {}"
_LIMIT = (
    "allow the connections of a job, which opens hundreds within a second (iptables -S | grep -E "
    "'limit|connlimit|recent', nft list ruleset, nf_conntrack_max, net.ipv4.tcp_max_syn_backlog): on {}"
)
_RENDEZVOUS = (
    "open it between the nodes of a job (iptables -S, nft list ruleset), or give torchrun an open one: "
    "--master-port, --rdzv-endpoint HOST:PORT"
)
_LIMITED = "something limits how many are open or begin at a time"
_LOSSY = (
    "look at cable, switch port and duplex of {}: ethtool -S, ip -s link, nstat -az TcpRetransSegs; and for "
    "a limit of packets: ethtool -S (…_allowance_exceeded in a cloud), tc -s qdisc, iptables -nvL"
)
_ALL_LOSSY = "look at the switches between the nodes: dropped packets, buffers, flow control"


# --- an earlier check, and sweeps of ports ---


def of_earlier_check(state: SessionState, explanation: Explanation) -> None:
    explanation.add_links(earlier.link for earlier in state.log.of(EarlierLink))


def of_sweep(state: SessionState, explanation: Explanation) -> None:
    """Report blocked ports, or limits on connections, by the newest sweep, and torchrun's port."""
    for dials in state.log.of(FailedRendezvous):
        for failed, fails in (
            (dials.silent, "does not answer"),
            (dials.refused, "is rejected by a firewall"),
        ):
            if failed:
                named = some_of([f"{state.nodes[a].name} -> {state.nodes[b].name}" for a, b in failed], 4)
                message = f"TCP port {dials.port}, on which torchrun meets, {fails}: {named}"
                explanation.network.append(Finding("ports", Grade.WARN, message, _RENDEZVOUS))
    for sweep in state.log.of(PortSweep)[-1:]:
        for cause in blocked(sweep.silent, state.thresholds, sweep.unheld):
            ports = f"TCP ports from about {cause.first} to {cause.last}"
            if len(cause.nodes) == 2:
                a, b = (state.nodes[node].name for node in cause.nodes)
                message = f"TCP ports of {b} from about {cause.first} to {cause.last} do not answer {a}"
                remedy = (_OPEN if cause.first else _LIMIT).format(f"{a} and {b}")
                if not cause.first:
                    message = _limited(cause, f"from {a} to {b}", sweep.needed)
                explanation.add_links([LinkReport(a, b, "a->b", Grade.FAIL, message, remedy)])
                continue
            others, name = state.names(cause.others), state.names(cause.nodes)
            if not cause.first:
                ways = f"that {others} begin to it" if cause.inward else f"that it begins to {others}"
                message = _limited(cause, ways, sweep.needed)
            elif cause.inward:
                message = f"its {ports} answer nobody ({others})"
            else:
                message = f"it reaches {ports} nowhere ({others})"
            remedy = (_OPEN if cause.first else _LIMIT).format(name)
            explanation.blocked.add(cause.nodes[0])
            explanation.add(cause.nodes[0], Finding("ports", Grade.FAIL, message, remedy))


def _limited(cause: Blocked, ways: str, needed: int) -> str:
    if cause.unheld:
        answered = needed - cause.unheld
        return f"of {needed} TCP connections at a time {ways}, {answered} get an answer: {_LIMITED}"
    return f"{cause.share:.0%} of the TCP connections {ways} get no answer, whichever port: {_LIMITED}"


# --- lost packets ---


def of_losses(state: SessionState, explanation: Explanation) -> None:
    end = state.log.last_end(LOSS)
    if end is None:
        return
    ways, least = losses.lossy_ways(state.log, end.present), chosen(state.needs.limits)["loss_warn"]
    troubles, parts = losses.explain_losses(ways, least, state.thresholds)
    for trouble in troubles:
        counts = _counts(trouble)
        if trouble.side:
            node = trouble.nodes[0]
            others = state.names(dict.fromkeys(way.b if way.a == node else way.a for way in trouble.ways))
            sent, received = f"what it sends to {others}", f"what it gets from {others}"
            traffic = {"out": sent, "in": received}.get(trouble.side, f"{sent} and gets from them")
            grade, remedy = _grade(state, trouble, stalls=1), _LOSSY.format(state.names([node]))
            explanation.add(node, Finding("loss", grade, f"packets of {traffic} get lost: {counts}", remedy))
            if grade is Grade.FAIL:
                explanation.lossy.add(node)
        elif len(trouble.nodes) == 2:
            a, b = (state.nodes[node].name for node in trouble.nodes)
            traffic = f"{a} and {b} send each other" if trouble.both else f"{a} sends to {b}"
            message = f"packets of what {traffic} get lost: {counts}"
            direction, grade = "both" if trouble.both else "a->b", _grade(state, trouble, stalls=2)
            remedy = _LOSSY.format(f"{a} and {b}")
            explanation.add_links([LinkReport(a, b, direction, grade, message, remedy)])
    usual_share = losses.usual_share(ways)
    if usual_share >= least:
        message = f"{usual_share:.1%} or more of what most nodes send each other has to be sent again"
        explanation.network.append(Finding("loss", Grade.WARN, message, _ALL_LOSSY))
    if parts:
        crossing = [way for trouble in troubles if not trouble.nodes for way in trouble.ways]
        across = LossTrouble((), tuple(dict.fromkeys(crossing)))
        grade = _grade(state, across, stalls=2)
        explanation.network.append(partition_findings.of_lossy(state, parts, _counts(across), grade))


def _counts(trouble: LossTrouble) -> str:
    sent, resent = sum(way.sent for way in trouble.ways), sum(way.resent for way in trouble.ways)
    message = f"{resent} of {sent} segments were sent again ({trouble.share:.1%})"
    if trouble.stalls:
        longest = max(way.longest for way in trouble.ways)
        message += f"; {trouble.stalls} messages stalled, for up to {longest:.1f} s"
    return message


def _grade(state: SessionState, trouble: LossTrouble, stalls: int) -> Grade:
    """FAIL if much is lost, or if messages stalled more often than one event explains."""
    lossy = trouble.share >= chosen(state.needs.limits)["loss_fail"]
    return Grade.FAIL if lossy or trouble.stalls >= stalls else Grade.WARN


# --- dials ---


def of_dials(state: SessionState, explanation: Explanation) -> None:
    """Report which connections fail, and nodes whose clocks or interfaces differ."""
    end = state.log.last_end(CONTROL)
    if end is None:
        return
    troubles, parts = state.dials.troubles_among(end.present)
    if parts:
        explanation.dial_parts = parts
        part_of = {node: number for number, part in enumerate(parts) for node in part}
        ways = [way for way in state.dials.ways.values() if {way.a, way.b} <= part_of.keys()]
        across = [way for way in ways if part_of[way.a] != part_of[way.b]]
        partly_good = [way for way in across if way.good]
        if not partly_good:
            symptom = "no connection"
        elif any(way.bad for way in partly_good):
            symptom = "some TCP ports do not answer"
        else:
            symptom = "large packets get lost"
        observed = f"{symptom} between them ({len(across)} ways tried), all pass inside each part"
        explanation.network.append(partition_findings.of_parts(state, parts, observed))
    for node, reasons in state.dials.unsent.items():
        message = f"it cannot begin connections to {state.names(reasons)}: {next(iter(reasons.values()))}"
        explanation.add(node, Finding("connections", Grade.FAIL, message, _NO_PORT))
    for trouble in troubles:
        if trouble.symptom == "ports" and trouble.nodes[0] in explanation.blocked:
            continue  # The sweep measured the same symptom more exactly.
        if len(trouble.nodes) == 1:
            explanation.add(trouble.nodes[0], of_trouble(state, trouble))
            explanation.host_fails = explanation.host_fails or trouble.nodes == (HOST,)
        else:
            explanation.add_links([link_of(state, trouble)])
            explanation.bad_links.add(frozenset(trouble.nodes))
    listeners = [node for node in state.nodes.values() if node.listens and not node.absent]
    limits = chosen(state.needs.limits)
    clock_limits = (limits["clock_warn"], limits["clock_fail"])
    controller = NodeState(-1, "Slurm's controller", "")
    # The first node's clock is that of the coordinator.
    controller.earliest, controller.latest = controller_clock.bounds(state.nodes[HOST].local)
    explanation.add_all(consistency.clocks([*listeners, controller], *clock_limits))
    explanation.add_all(consistency.interfaces(listeners))


def _tries(trouble: ConnectTrouble) -> str:
    count = f"in {count_of(trouble.rounds, 'round')} of dials"
    return f"{count}; {trouble.why}" if trouble.why else count


def of_trouble(state: SessionState, trouble: ConnectTrouble) -> Finding:
    name = state.nodes[trouble.nodes[0]].name
    others = some_of([state.nodes[node].name for node in trouble.others], 4)
    tries = _tries(trouble)
    if trouble.symptom == "ports":
        ports = ", ".join(map(str, trouble.ports))
        message = f"TCP ports {ports} answer nobody ({others}; {tries})"
        if not ports:
            message = (
                f"some TCP connections between it and {others} get no answer, each on other ports ({tries})"
            )
        return Finding("ports", Grade.FAIL, message, _FIREWALL)
    if trouble.symptom == "large":
        message = f"large packets do not get through from and to {others} ({tries}); small ones do"
        return Finding("large-packets", Grade.FAIL, message, _PATH.format(name))
    messages = {
        "all": f"no connection from or to {others}",
        "in": f"no port of it answers {others}",
        "out": f"it reaches none of {others}",
    }
    remedy = _CABLE.format(name) if trouble.side == "all" else _FIREWALL
    remedy = _BETWEEN.format("REJECT") if trouble.is_refused else remedy
    return Finding("connections", Grade.FAIL, f"{messages[trouble.side]} ({tries})", remedy)


def link_of(state: SessionState, trouble: ConnectTrouble) -> LinkReport:
    a, b = (state.nodes[node].name for node in trouble.nodes)
    tries = _tries(trouble)
    if trouble.symptom == "ports":
        message = f"TCP ports {', '.join(map(str, trouble.ports))} of {b} do not answer {a} ({tries})"
        remedy = _FIREWALL
    elif trouble.symptom == "large":
        message, remedy = f"large packets get lost ({tries}); small ones pass", _PATH.format(f"{a} and {b}")
    else:
        message, remedy = f"no connection either way ({tries})", _CABLE.format(f"{a} and {b}")
        if trouble.is_refused:
            message = f"connections from {a} to {b} are rejected, packets pass ({tries})"
            remedy = _BETWEEN.format("REJECT")
        elif trouble.is_one_sided:
            message = f"connections that {a} begins to {b} get no answer, those that {b} begins do ({tries})"
            remedy = _BETWEEN.format("DROP")
        elif not trouble.both:
            message = f"packets from {a} do not reach {b}, those back do ({tries})"
    direction = "both" if trouble.both else "a->b"
    return LinkReport(a, b, direction, Grade.FAIL, message, remedy)

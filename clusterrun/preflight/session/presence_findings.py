"""Explain why nodes are absent or fell silent: the node, a link, the network, or the coordinator's node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.model import contract
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes.dials import ConnectTrouble
from clusterrun.preflight.observations import ABSENT, NodeGone
from clusterrun.preflight.session import connection_findings, partition_findings
from clusterrun.preflight.session.explanation import Explanation, NetworkFinding
from clusterrun.preflight.session.state import HOST, NodeState, SessionState
from clusterrun.preflight.thresholds import WITNESSES

_OUTGOING = (
    "a firewall on it drops the connections that it begins, or its slurmd hangs: "
    "iptables -S OUTPUT, nft list ruleset, and the log of slurmd there"
)
_INCOMING = (
    "its slurmd does not answer there, or a firewall on it drops the connections that others begin: "
    "systemctl status slurmd, iptables -S INPUT, nft list ruleset"
)
_HOST_INCOMING = (
    "a firewall on it drops connections that come in: iptables -S INPUT, nft list ruleset; "
    "open the ephemeral ports, and SrunPortRange of slurm.conf where it is set, to the other nodes"
)
_HOST_OUTGOING = "a firewall on it drops connections that go out: iptables -S OUTPUT, nft list ruleset"
_PROLOG = (
    "does its Prolog take so long, which Slurm runs before the first step there: "
    "scontrol show config | grep Prolog (PrologFlags=Alloc runs it before the job)"
)
_HANGS = (
    "its slurmd hangs, or only small packets get there: the log of slurmd, dmesg, and the MTU of its network "
    f"(ping -M do -s 1472); or {_PROLOG}"
)
_MTU = "let the MTU of {} be what the switches carry: ping -M do -s 1472 to it"
_NO_NAME = "its name does not resolve on the first node: getent hosts; add it to DNS or /etc/hosts"
_NO_PYTHON = f"see job.out: was there a Python to start it? {_PROLOG}"
_NO_ANSWER = "look at the node: sinfo -N -l, and job.out in the run directory"
_CLOCK = "its clock may be wrong, compare it with the others': timedatectl, chronyc tracking"
# (text of the launcher, whether it also explains a machine that answers no node, remedy)
_REMEDIES = (
    (contract.NO_CONNECTION, True, _OUTGOING),
    ("credential", True, _CLOCK),  # Slurm's hold for two minutes
    ("find an address", True, _NO_NAME),
    ("zero bytes", False, _HANGS),
    ("timed out", False, _HANGS),
    ("connection failure", False, _INCOMING),
    ("connection refused", False, _INCOMING),
    ("node failure", False, _INCOMING),
)
_AND_NAME = "; is that its address? getent hosts {0}, scontrol show node {0}"
_SHARED = "look at their load, and at the file systems of the run directory and of Python"
_UNSAID = "did not join though their machines answer, and nothing says why"
_CUT_OFF = "look at its link: ip -s link, ethtool"
_REMEDY = "look at switch port, cable and route of {} and {}: ip -s link, ethtool"


def of_gone(explanation: Explanation) -> None:
    """Report every node that gets no more requests, by the reason that it gave."""
    for observation in explanation.state.log.of(NodeGone):
        explanation.presence[observation.node] = observation.findings
        has_failed = any(finding.verdict is Grade.FAIL for finding in observation.findings)
        if observation.findings and not has_failed:
            explanation.excused.add(observation.node)


# --- nodes whose agents did not join ---


def of_absent(explanation: Explanation) -> None:
    """Report a cause that several absent nodes share once, and every other absent node by itself."""
    state = explanation.state
    end = state.log.last_end(ABSENT)
    if end is None:
        return
    absent = [node for node in state.nodes.values() if node.absent]
    _of_host(explanation, absent, end.present)
    host_is_suspect = len(absent) > 1 if end.present == (HOST,) else explanation.host_fails
    shared_causes: tuple[tuple[Callable[..., object], Callable[..., NetworkFinding], str], ...] = (
        (_is_silent, partition_findings.of_silent, "answer none of those that joined"),
        (_small_only, partition_findings.of_small, "get only small packets from those that joined"),
        (is_kept_away, partition_findings.of_kept_away, _UNSAID),
    )
    for fits, describe, why in shared_causes:
        several = [] if host_is_suspect else [node.node for node in absent if fits(state, node)]
        if len(several) >= WITNESSES:
            explanation.network.append(describe(state, end.present, several))
            explanation.unreached += several if fits is not is_kept_away else []
            explanation.excuse(several, f"{len(several)} nodes {why}")
            absent = [node for node in absent if node.node not in several]
    for node in absent:
        explanation.add_links(_of_absent(explanation, node, end.present, host_is_suspect))


def _of_host(explanation: Explanation, missing: list[NodeState], present: tuple[int, ...]) -> None:
    """Blame the firewall of the coordinator's node if only this node is present and all its dials agree."""
    state = explanation.state
    keys = [(HOST, node.node) for node in missing]
    ways = [state.knocks.ways[key] for key in keys if key in state.knocks.ways]
    if present != (HOST,) or len(ways) < max(WITNESSES, len(keys)):
        return
    others = state.names(node.node for node in missing)
    message, remedy = "", ""
    if all(contract.NO_CONNECTION in node.absent for node in missing) and all(way.refused for way in ways):
        message = f"no connection that {others} begin reaches it, though those that it begins reach them"
        remedy = _HOST_INCOMING
    elif all(way.dropped and way.is_dead and not way.refused for way in ways):
        message = f"it drops the connections itself that it begins to {others}"
        remedy = _HOST_OUTGOING
    if message:
        explanation.add(HOST, Finding("connections", Grade.FAIL, message, remedy))


def _of_absent(
    explanation: Explanation, node: NodeState, present: Sequence[int], host_is_suspect: bool
) -> list[LinkReport]:
    """Explain why the agent of a node is missing. Return the link to blame, if any."""
    state = explanation.state
    answered, unanswered = answers(state, node)
    if not answered and len(present) > 1:
        addresses = ", ".join(sorted({*state.addresses_of(node.name)}))
        if addresses and len(unanswered) >= WITNESSES:
            message = f"{node.absent}; nothing answers at {addresses}, to which its name leads"
            explanation.explain_gone(node.node, Grade.FAIL, message, _NO_ANSWER + _AND_NAME.format(node.name))
        return []
    message = node.absent + (f"; the machine itself answers {state.names(answered)}" if answered else "")
    message += f", but not {state.names(unanswered)}" if answered and unanswered else ""
    if host_is_suspect:
        explanation.excused.add(node.node)
        message += f"; it should have joined at {state.nodes[HOST].name}, which may be at fault"
        remedy = f"let another node be the first; or {look_at(node.absent, lives=bool(answered))}"
        explanation.explain_gone(node.node, Grade.UNDETERMINED, message, remedy)
        return []
    if not answered:
        return []
    trouble = state.dials.between(HOST, node.node) if node.listens else None
    # An agent joins over its link to the coordinator's node. Several broken links are less likely.
    if unanswered != [HOST] or (node.listens and trouble is None):
        small = _small_only(state, node)
        message += "; large packets to it get lost" if small else ""
        remedy = _MTU.format(node.name) if small else look_at(node.absent, lives=True)
        grade = Grade.UNDETERMINED if node.is_excused else Grade.FAIL
        explanation.explain_gone(node.node, grade, message, remedy)
        return []
    if trouble is None:
        message += ": it was not examined"
        explanation.explain_gone(node.node, Grade.UNDETERMINED, message, "mend the link, then check again")
        a, b = state.nodes[HOST].name, node.name
        message = (
            "no answer, though others get one; no agent could join over it, so the direction is not known"
        )
        return [LinkReport(a, b, "both", Grade.FAIL, message, _REMEDY.format(a, b))]
    message += ": it is left out for this link alone"
    explanation.explain_gone(node.node, Grade.PASS, message, "mend the link")
    return [connection_findings.link_of(state, trouble)]


def look_at(why: str, lives: bool) -> str:
    """Return the remedy for a missing agent by the launcher's reason. ``lives``: the machine answers."""
    reason = why.lower()
    remedies = (remedy for text, of_all, remedy in _REMEDIES if text in reason and (lives or of_all))
    return next(remedies, _NO_PYTHON if lives else _NO_ANSWER)


def answers(state: SessionState, node: NodeState) -> tuple[list[int], list[int]]:
    """Return the nodes that it answered, and the nodes that dialled it without an answer."""
    ways = state.ways_into(node.node)
    answered = dict.fromkeys(way.a for way in ways if way.is_answered)
    unanswered = dict.fromkeys(way.a for way in ways if way.a not in answered)
    return list(answered), list(unanswered)


def is_kept_away(state: SessionState, node: NodeState) -> bool:
    """Return whether the machine answers several nodes and the launcher gave no reason."""
    reasons = (contract.NOT_JOINED, contract.AGENT_LOST, contract.NOT_BACK)
    has_message = node.absent.endswith(")") or not node.absent.startswith(reasons)
    return len(answers(state, node)[0]) >= WITNESSES and not has_message


def _is_silent(state: SessionState, node: NodeState) -> bool:
    """Return whether several nodes dialled it and none got an answer."""
    answered, unanswered = answers(state, node)
    return len(unanswered) >= WITNESSES and not answered


def _small_only(state: SessionState, node: NodeState) -> list[int]:
    """Return the nodes whose small packets it answered, if they are several and no large packet arrived."""
    ways = [way for way in state.ways_into(node.node) if way.is_answered]
    return [way.a for way in ways] if len(ways) >= WITNESSES and not any(way.large for way in ways) else []


# --- nodes that fell silent during the check ---


def of_silent(explanation: Explanation) -> None:
    """Report at the end nodes that fell silent. The coordinator's node may be cut off instead."""
    state = explanation.state
    lost = lost_nodes(state) if state.has_ended else {}
    present = [node.node for node in state.present()]
    troubles = large_packet_troubles(state) if lost else {}
    if len(troubles) >= WITNESSES:
        small = list(troubles)
        explanation.network.append(partition_findings.of_small(state, present, small, "between {} and {}"))
        explanation.unreached += small
        explanation.excuse(small, f"large packets of {len(small)} nodes get lost")
        lost = {node: at for node, at in lost.items() if node not in troubles}
    else:
        for node, trouble in troubles.items():
            explanation.add(node, connection_findings.of_trouble(state, trouble))
    host = state.nodes.get(HOST)
    lost.pop(HOST, None)
    if host is None or host.gone or not lost:
        return
    at_once = len(lost) > 1 and max(lost.values()) - min(lost.values()) <= contract.LOST_SECONDS
    others = [node for node in present if node != HOST]
    is_cut_off = at_once and not any(state.dials.between(HOST, node) is None for node in others)
    if is_cut_off:
        message = f"{len(lost)} nodes fell silent at the same time, and it reaches no other: it is cut off"
        explanation.presence[HOST] = (Finding("agent", Grade.FAIL, message, _CUT_OFF),)
        explanation.cut_off.add(HOST)
    if is_cut_off or explanation.host_fails:
        reason = f"its connection ends at {host.name}, which is unfit"
        explanation.excuse(lost, reason, "let another node be the first")
        return
    together = lost_together(state, {node: at for node, at in lost.items() if node not in troubles})
    silent = [node for node in together if not any(way.refused for way in state.knocks.into(node))]
    if len(silent) >= WITNESSES:
        explanation.network.append(partition_findings.of_silent(state, present, silent))
        explanation.unreached += silent
        explanation.excuse(silent, f"{len(silent)} nodes fell silent at the same time, and answer nobody")


def lost_nodes(state: SessionState) -> dict[int, float]:
    """Return the nodes whose agents were lost during the check, with the time; steady clock.

    Nodes that an overload excuses are not among them.
    """
    lost = {observation.node: observation.at for observation in state.log.of(NodeGone) if observation.is_lost}
    return {
        number: lost[number] for number, node in state.nodes.items() if number in lost and not node.is_excused
    }


def large_packet_troubles(state: SessionState) -> dict[int, ConnectTrouble]:
    """Return the nodes that fell silent because their large packets get lost, with the trouble."""
    lost = [node for node in lost_nodes(state) if state.nodes[node].listens]
    present = [node.node for node in state.present()]
    return {
        trouble.nodes[0]: trouble
        for trouble in state.dials.explain([*present, *lost])[0]
        if len(trouble.nodes) == 1 and trouble.symptom == "large" and trouble.nodes[0] in lost
    }


def lost_together(state: SessionState, lost: dict[int, float]) -> list[int]:
    """Return the nodes that fell silent at the same time.

    A node whose connection was closed is not cut off.
    """
    times = {node: at for node, at in lost.items() if contract.NO_HEARTBEAT in state.nodes[node].gone}
    together = []
    for node, at in times.items():
        count = sum(abs(at - other_at) <= contract.LOST_SECONDS for other_at in times.values())
        if count >= WITNESSES:
            together.append(node)
    return together


# --- what most nodes share ---


def of_late(explanation: Explanation) -> None:
    """Report at the end a shared cause instead of each node if most nodes did not answer in time."""
    state = explanation.state
    findings = {observation.node: observation.findings for observation in state.log.of(NodeGone)}
    late = [node for node in findings if findings[node] and findings[node][0].check == "examiner"]
    if state.has_ended and len(late) >= WITNESSES and 2 * len(late) > len(state.nodes):
        explanation.excuse(late, "so did most nodes")
        message = f"{len(late)} of {len(state.nodes)} nodes did not answer in time: they are overloaded, or"
        message += f" share something slow; {_SHARED}"
        explanation.network.append(NetworkFinding("nodes", message, _SHARED))


def of_kept_away(explanation: Explanation) -> None:
    """Blame no absent node whose machine answers if the network is partitioned."""
    state = explanation.state
    if explanation.parts():
        absent = (
            node for node in state.nodes.values() if node.absent and node.node not in explanation.excused
        )
        kept_away = [node.node for node in absent if is_kept_away(state, node)]
        explanation.excuse(kept_away, "the network is partitioned, which may be why")

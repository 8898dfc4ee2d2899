"""Explain why agents did not join: their nodes, a link, the network, or the coordinator's node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.checks import names
from clusterrun.preflight.observations import ABSENT
from clusterrun.preflight.session import connection_findings, partition_findings
from clusterrun.preflight.session.explanation import Explanation, NetworkFinding
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.state import HOST, SessionState
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
_NO_FILE = (
    "is the file system of that file mounted on the node? findmnt -T FILE there; CLUSTERRUN_HOME and Python "
    "must be on file systems that all nodes share"
)
_NO_ANSWER = "look at the node: sinfo -N -l, and job.out in the run directory"
_CLOCK = "its clock may be wrong, compare it with the others': timedatectl, chronyc tracking"
# (text of the launcher, whether it also explains a machine that answers no node, remedy)
_REMEDIES = (
    (contract.NO_CONNECTION, True, _OUTGOING),
    ("credential", True, _CLOCK),  # Slurm's hold for two minutes
    ("find an address", True, _NO_NAME),
    ("no such file or directory", False, _NO_FILE),
    ("zero bytes", False, _HANGS),
    ("timed out", False, _HANGS),
    ("connection failure", False, _INCOMING),
    ("connection refused", False, _INCOMING),
    ("node failure", False, _INCOMING),
)
_ONE_WITNESS = "is {0} up? sinfo -N -l -n {0}; {1}; a third node can decide: --spares 1"
_AND_NAME = "; is that its address? getent hosts {0}, scontrol show node {0}"
_PARTLY = (
    "do its routes or a firewall keep it from {}? ip route get ADDRESS there, iptables -S, nft list ruleset"
)
_NAME = "mend /etc/hosts or the resolver of this node"
_REMEDY = "look at switch port, cable and route of {} and {}: ip -s link, ethtool"


def remedy_of_absence(reason: str, is_alive: bool) -> str:
    """Return the remedy for a missing agent by the launcher's reason. ``is_alive``: the machine answers."""
    for text, explains_dead, remedy in _REMEDIES:
        if text in reason.lower() and (is_alive or explains_dead):
            return remedy
    return _NO_PYTHON if is_alive else _NO_ANSWER


@frozen
class Replies:
    """How the machine of a node without an agent answered the nodes that dialled it."""

    answered: tuple[int, ...]  # nodes that got an answer
    unanswered: tuple[int, ...]  # nodes that got none
    large_arrive: bool  # a large packet of one of them arrived
    has_reason: bool  # the launcher said why there is no agent

    @property
    def is_silent(self) -> bool:
        """Several nodes dialled it, and none got an answer."""
        return len(self.unanswered) >= WITNESSES and not self.answered

    @property
    def only_small_arrive(self) -> bool:
        return len(self.answered) >= WITNESSES and not self.large_arrive

    @property
    def is_kept_away(self) -> bool:
        """The machine answers several nodes, and the launcher gave no reason."""
        return len(self.answered) >= WITNESSES and not self.has_reason


def replies_of(state: SessionState, node: NodeState) -> Replies:
    ways = [*state.dials.into(node.node), *state.knocks.into(node.node)]
    answered = dict.fromkeys(way.a for way in ways if way.is_answered)
    unanswered = dict.fromkeys(way.a for way in ways if way.a not in answered)
    large_arrive = any(way.is_answered and way.large for way in ways)
    own_reasons = (contract.NOT_JOINED, contract.AGENT_LOST, contract.NOT_BACK)
    has_reason = node.absent.endswith(")") or not node.absent.startswith(own_reasons)
    return Replies(tuple(answered), tuple(unanswered), large_arrive, has_reason)


def of_absent(state: SessionState, explanation: Explanation) -> None:
    """Report a cause that several absent nodes share once, and every other absent node by itself."""
    end = state.log.last_end(ABSENT)
    if end is None:
        return
    replies = {node.node: replies_of(state, node) for node in state.nodes.values() if node.absent}
    if end.present == (HOST,):
        _of_host(state, explanation, list(replies))
    host_is_suspect = len(replies) > 1 if end.present == (HOST,) else explanation.host_fails
    silent = [node for node in replies if replies[node].is_silent]
    small = [node for node in replies if replies[node].only_small_arrive]
    kept_away = [node for node in replies if replies[node].is_kept_away]
    unsaid = "did not join though their machines answer, and nothing says why"
    shared_causes: tuple[tuple[list[int], Callable[..., NetworkFinding], str], ...] = (
        (silent, partition_findings.of_silent, "answer none of those that joined"),
        (small, partition_findings.of_small, "get only small packets from those that joined"),
        (kept_away, partition_findings.of_kept_away, unsaid),
    )
    single = dict.fromkeys(replies)
    for affected, describe, reason in () if host_is_suspect else shared_causes:
        several = [node for node in affected if node in single]
        if len(several) >= WITNESSES:
            finding = describe(state, end.present, several)
            explanation.network.append(finding)
            explanation.unreached += several if finding.parts else []
            explanation.excuse(several, f"{len(several)} nodes {reason}")
            for node in several:
                del single[node]
    for node in single:
        _of_single(state, explanation, state.nodes[node], replies[node], end.present, host_is_suspect)


def _of_host(state: SessionState, explanation: Explanation, absent: Sequence[int]) -> None:
    """Blame the firewall of the coordinator's node, the only one that is present, if all its dials agree."""
    ways = [state.knocks.ways[HOST, node] for node in absent if (HOST, node) in state.knocks.ways]
    if len(ways) < max(WITNESSES, len(absent)):
        return
    others = state.names(absent)
    no_connection = all(contract.NO_CONNECTION in state.nodes[node].absent for node in absent)
    if no_connection and all(way.refused for way in ways):
        message = f"no connection that {others} begin reaches it, though those that it begins reach them"
        explanation.add(HOST, Finding("connections", Grade.FAIL, message, _HOST_INCOMING))
    elif all(way.dropped and way.is_dead and not way.refused for way in ways):
        message = f"it drops the connections itself that it begins to {others}"
        explanation.add(HOST, Finding("connections", Grade.FAIL, message, _HOST_OUTGOING))


def _of_single(
    state: SessionState,
    explanation: Explanation,
    node: NodeState,
    replies: Replies,
    present: Sequence[int],
    host_is_suspect: bool,
) -> None:
    """Report why the agent of a node is missing, or the link that is to blame.

    The launcher's reason remains the finding of a node that answered nobody.
    """
    answered, unanswered = replies.answered, replies.unanswered
    if not answered and len(present) > 1:
        addresses = ", ".join(sorted({*state.addresses_of(node.name)}))
        if addresses and replies.is_silent:
            message = f"{node.absent}; nothing answers at {addresses}, to which its name leads"
            explanation.explain_gone(node.node, Grade.FAIL, message, _NO_ANSWER + _AND_NAME.format(node.name))
        return
    message = node.absent + (f"; the machine itself answers {state.names(answered)}" if answered else "")
    message += f", but not {state.names(unanswered)}" if answered and unanswered else ""
    host = state.nodes[HOST].name
    if host_is_suspect:
        explanation.excused.add(node.node)
        message += f"; it should have joined at {host}, which may be at fault"
        remedy = f"let another node be the first; or {remedy_of_absence(node.absent, bool(answered))}"
        explanation.explain_gone(node.node, Grade.UNDETERMINED, message, remedy)
        return
    if not answered and (unanswered != (HOST,) or node.is_excused):
        return
    if wrong_name := _wrong_name(state, node, replies, present):
        explanation.add(HOST, Finding(names.NAME, Grade.FAIL, wrong_name, _NAME))
        message += f": {host} {wrong_name}"
        explanation.explain_gone(node.node, Grade.PASS, message, "mend the name")
    elif unanswered == (HOST,):
        _of_link_to_host(state, explanation, node, replies, message)
    else:
        remedy = remedy_of_absence(node.absent, is_alive=True)
        if unanswered:
            remedy = _PARTLY.format(state.names(unanswered))
        if replies.only_small_arrive:
            message, remedy = f"{message}; large packets to it get lost", _MTU.format(node.name)
        grade = Grade.UNDETERMINED if node.is_excused else Grade.FAIL
        explanation.explain_gone(node.node, grade, message, remedy)


def _wrong_name(state: SessionState, node: NodeState, replies: Replies, present: Sequence[int]) -> str:
    """Return how the coordinator's node alone resolves a node's name wrongly; '' if it does not.

    srun looks the name up there too, and then launches nothing at a wrong address.
    """
    address_by_viewer = {
        viewer: state.nodes[viewer].resolved.get(node.name, "").partition(" ")[0] for viewer in present
    }
    own_address = address_by_viewer[HOST]
    elsewhere = {address_by_viewer[viewer] for viewer in replies.answered if address_by_viewer.get(viewer)}
    if replies.unanswered != (HOST,) or not elsewhere or not own_address or own_address in elsewhere:
        return ""
    wrong = f"resolves {node.name} as {own_address}, where nothing answers"
    addresses = ", ".join(sorted(elsewhere))
    return f"{wrong}; on {state.names(replies.answered)} it is {addresses}, where it answers"


def _of_link_to_host(
    state: SessionState, explanation: Explanation, node: NodeState, replies: Replies, message: str
) -> None:
    """Blame the link between the coordinator's node and a node that answers all others but that.

    An agent joins over this link. Several broken links are less likely.
    """
    host = state.nodes[HOST].name
    both_tried = {(HOST, node.node), (node.node, HOST)} <= state.dials.ways.keys()
    trouble = state.dials.between(HOST, node.node) if both_tried else None
    if trouble is not None:
        message += ": it is left out for this link alone"
        explanation.explain_gone(node.node, Grade.PASS, message, "mend the link")
        explanation.add_links([connection_findings.link_of(state, trouble)])
        return
    if not node.listens:
        message += ": it was not examined"
    explanation.explain_gone(node.node, Grade.UNDETERMINED, message, "mend the link, then check again")
    why = "no answer, though others get one; no agent could join over it, so the direction is not known"
    remedy = _REMEDY.format(host, node.name)
    if not replies.answered:
        why = f"{node.name} does not answer {host}, and no other node tried: either may be at fault"
        remedy = _ONE_WITNESS.format(node.name, remedy)
    explanation.add_links([LinkReport(host, node.name, "both", Grade.FAIL, why, remedy)])


def of_kept_away(state: SessionState, explanation: Explanation) -> None:
    """Blame no absent node whose machine answers if the network is partitioned."""
    if explanation.parts():
        absent = (
            node for node in state.nodes.values() if node.absent and node.node not in explanation.excused
        )
        kept_away = [node.node for node in absent if replies_of(state, node).is_kept_away]
        explanation.excuse(kept_away, "the network is partitioned, which may be why")

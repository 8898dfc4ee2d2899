"""Find out whether a node without an agent is dead, or only unreachable from the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterrun.model import contract
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight import registry, tasks
from clusterrun.preflight.session import network_phase, partition_findings
from clusterrun.preflight.session.state import NodeState, SessionState
from clusterrun.preflight.tasks import DialTask, ListenTask, LocalTask, Target, Task, ThroughTask
from clusterrun.slurm_text.srun_messages import BESIDE_SECONDS, step_on

# The batch script, and with it the coordinator, runs on the first node of the allocation.
HOST = 0
# Few services listen on these ports. A live machine refuses the connection, which proves both directions.
# Each port is dialled from another source port, so that some dials pass if a range of ports is blocked.
_PORTS = tuple(range(1, 25))
_SECONDS = 4.0
_SLACK_SECONDS = 10.0
_MOST_WITNESSES = 16
_MOST_THROUGH = 4
_START_SECONDS = 20.0
_LOCAL_SECONDS = 18.0
_DIAL_SECONDS = 5.0
_THROUGH_SLACK_SECONDS = 6.0
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
_GROUP = 2
_REMEDY = "look at switch port, cable and route of {} and {}: ip -s link, ethtool"


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Let the present nodes dial the missing nodes, at the addresses to which their names resolve.

    A missing node that answers all nodes except the coordinator's is examined through another node.
    """
    missing = [node for node in state.nodes.values() if node.absent]
    yield from _names(state, missing)
    if _knock(state, missing):
        state.label = "a look at the nodes whose agents did not join"
        yield (DialTask,)
        yield from rounds_through(state, [node for node in missing if _answers(state, node)[1] == [HOST]])
    if missing:
        write(state)


def rounds_at_lost(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Dial nodes that fell silent together during the check. The kernel of a live machine still answers."""
    _lost_by_size(state)  # before the dials, which would hide the size
    if _knock(state, _lost_together(state)):
        state.label = "a look at the nodes that fell silent"
        yield (DialTask,)


def _knock(state: SessionState, nodes: list[NodeState]) -> bool:
    """Let witnesses dial these nodes. Return whether any witness has an address of one."""
    has_requests = False
    for witness in state.present()[:_MOST_WITNESSES]:
        addresses = (
            (node, node.address or witness.resolved.get(node.name, "").split(" ")[0]) for node in nodes
        )
        targets = tuple(
            Target(node.node, node.name, address, _PORTS, _PORTS[0]) for node, address in addresses if address
        )
        if targets:
            has_requests = True
            task = DialTask(state.nonce, witness.node, targets, (), _SECONDS, sizes=True)
            state.ask(witness.node, task, _SECONDS + _SLACK_SECONDS)
    return has_requests


def _names(state: SessionState, missing: list[NodeState]) -> Iterator[tuple[type, ...]]:
    """Look up the names of missing nodes on nodes that did not do so in the control round."""
    names = tuple(node.name for node in missing)
    if not names or not state.orders.launch:
        return
    witnesses = [node for node in state.present()[:_MOST_WITNESSES] if not node.resolved.keys() & {*names}]
    for witness in witnesses:
        task = DialTask(state.nonce, witness.node, (), names, _SECONDS)
        state.ask(witness.node, task, _SECONDS + _SLACK_SECONDS)
    if witnesses:
        yield (DialTask,)


def write(state: SessionState) -> None:
    """Report a cause that several absent nodes share once, and every other absent node by itself."""
    rest = [node for node in state.nodes.values() if node.absent]
    _of_host(state, rest)
    host_is_suspect = _coordinators_node_may_be_to_blame(state, len(rest))
    present = [node.node for node in state.present()]
    for fits, write_finding, why in (
        (_is_silent, partition_findings.write_silent, "answer none of those that joined"),
        (_small_only, partition_findings.write_small, "get only small packets from those that joined"),
        (_kept_away, partition_findings.write_kept_away, _UNSAID),
    ):
        several = [] if host_is_suspect else _several(node for node in rest if fits(state, node))
        write_finding(state, present, [node.node for node in several])
        _excuse(several, f"{len(several)} nodes {why}")
        rest = [node for node in rest if node not in several]
    state.write("absent", (), [link for node in rest for link in _judged(state, node, host_is_suspect)])


def _of_host(state: SessionState, missing: list[NodeState]) -> None:
    """Blame the firewall of the coordinator's node if only this node is present and all its dials agree."""
    host = state.nodes.get(HOST)
    keys = [(HOST, node.node) for node in missing]
    ways = [state.dials.ways[key] for key in keys if key in state.dials.ways]
    if (
        host is None
        or [node.node for node in state.present()] != [HOST]
        or len(ways) < max(_GROUP, len(keys))
    ):
        return
    others = state.names(node.node for node in missing)
    message, remedy = "", ""
    if all(contract.NO_CONNECTION in node.absent for node in missing) and all(way.refused for way in ways):
        message = f"no connection that {others} begin reaches it, though those that it begins reach them"
        remedy = _HOST_INCOMING
    elif all(way.dropped and way.is_dead and not way.refused for way in ways):
        message = f"it drops the connections itself that it begins to {others}"
        remedy = _HOST_OUTGOING
    host.write("firewall", [Finding("connections", Grade.FAIL, message, remedy)] if message else [])


def _excuse(several: list[NodeState], why: str) -> None:
    """Blame none of several nodes that may share a cause."""
    for node in several:
        node.excused = True
        message = f"{node.absent or node.gone}; {why}"
        node.explain_gone(Grade.UNDETERMINED, message, "see what is said of the network")


def _several(nodes: Iterable[NodeState]) -> list[NodeState]:
    """Return the nodes if they are at least ``_GROUP``; otherwise none."""
    several = list(nodes)
    return several if len(several) >= _GROUP else []


def _kept_away(state: SessionState, node: NodeState) -> bool:
    """Return whether the machine answers several nodes and the launcher gave no reason."""
    unsaid = node.absent.endswith(" s") or node.absent in (contract.AGENT_LOST, contract.NOT_BACK)
    return len(_answers(state, node)[0]) >= _GROUP and unsaid


def _is_silent(state: SessionState, node: NodeState) -> bool:
    """Return whether several nodes dialled it and none got an answer."""
    heard, deaf = _answers(state, node)
    return len(deaf) >= _GROUP and not heard


def _small_only(state: SessionState, node: NodeState) -> list[int]:
    """Return the nodes whose small packets it answered, if they are several and no large packet arrived."""
    ways = [way for way in state.dials.into(node.node) if way.is_answered]
    return [way.a for way in ways] if len(ways) >= _GROUP and not any(way.large for way in ways) else []


def review(state: SessionState) -> None:
    """Judge the nodes that fell silent once more: the coordinator's node may be cut off instead."""
    host = state.nodes.get(HOST)
    _late_alike(state)
    _lost_by_size(state)
    if any(state.parts.values()):
        absent = (node for node in state.nodes.values() if node.absent and not node.excused)
        kept_away = [node for node in absent if _kept_away(state, node)]
        _excuse(kept_away, "the network is partitioned, which may be why")
    lost = [node for node in _fell_silent(state) if not node.excused]
    if host is None or host.gone or not lost:
        return
    times = [node.lost_at or 0.0 for node in lost]
    others = [node.node for node in state.present() if node.node != HOST]
    at_once = len(times) > 1 and max(times) - min(times) <= contract.LOST_SECONDS
    if at_once and not any(state.dials.between(HOST, node) is None for node in others):
        message = f"{len(lost)} nodes fell silent at the same time, and it reaches no other: it is cut off"
        host.write(
            "cut off", [Finding("agent", Grade.FAIL, message, "look at its link: ip -s link, ethtool")]
        )
    elif not _coordinators_node_may_be_to_blame(state, 0):
        _tell_of_lost(state)
        return
    for node in lost:
        node.excused = True
        message = f"{node.gone}; over {host.name}, which is unfit, it should have been heard"
        node.explain_gone(Grade.UNDETERMINED, message, "let another node be the first")


def _fell_silent(state: SessionState) -> list[NodeState]:
    return [node for node in state.nodes.values() if node.lost_at is not None and node.node != HOST]


def _late_alike(state: SessionState) -> None:
    """Report a shared cause instead of each node if most nodes did not answer in time."""
    late = [
        node for node in state.nodes.values() if any(finding.check == "examiner" for finding in node.findings)
    ]
    if len(late) < _GROUP or 2 * len(late) <= len(state.nodes):
        return
    _excuse(late, "so did most nodes")
    message = f"{len(late)} of {len(state.nodes)} nodes did not answer in time: they are overloaded, or"
    message += f" share something slow; {_SHARED}"
    grade = Grade.WARN if state.choice().whole else Grade.FAIL
    state.write_of_all("late", "nodes", grade, message, _SHARED)


def _lost_by_size(state: SessionState) -> None:
    """Report nodes that fell silent because their large packets get lost."""
    lost = [node for node in state.nodes.values() if node.lost_at is not None and node.listens]
    present = [node.node for node in state.present()]
    troubles = state.dials.explain([*present, *(node.node for node in lost)])[0]
    trouble_by_node = {
        trouble.nodes[0]: trouble
        for trouble in troubles
        if len(trouble.nodes) == 1 and trouble.kind == "large"
    }
    troubled = [node for node in lost if node.node in trouble_by_node]
    several = _several(troubled)
    if several:
        partition_findings.write_small(state, present, [node.node for node in several], "between {} and {}")
        _excuse(several, f"large packets of {len(several)} nodes get lost")
        return
    for node in troubled:
        node.write("sizes", [network_phase.of_node(state, trouble_by_node[node.node])])


def _lost_together(state: SessionState) -> list[NodeState]:
    """Return the nodes that fell silent together without another reason.

    A node whose connection was closed is not cut off.
    """
    lost = [node for node in _fell_silent(state) if contract.NO_HEARTBEAT in node.gone and not node.excused]
    times = [node.lost_at or 0.0 for node in lost]
    counts = (sum(abs(at - other_at) <= contract.LOST_SECONDS for other_at in times) for at in times)
    return [node for node, count in zip(lost, counts) if count >= _GROUP]


def _tell_of_lost(state: SessionState) -> None:
    """Report nodes that fell silent together and whose machines do not answer: down, or cut off."""
    dialled = ((node, state.dials.into(node.node)) for node in _lost_together(state))
    silent = _several(node for node, ways in dialled if not any(way.refused for way in ways))
    if silent:
        before = (state.parts.get("joining") or ((), ()))[1]
        present = [node.node for node in state.present()]
        partition_findings.write_silent(state, present, [*before, *(node.node for node in silent)])
        _excuse(silent, f"{len(silent)} nodes fell silent at the same time, and answer nobody")


def _coordinators_node_may_be_to_blame(state: SessionState, missing: int) -> bool:
    """Return whether the coordinator's node has trouble with all others, or is the only witness."""
    present = [node.node for node in state.present()]
    if present == [HOST]:
        return missing > 1
    return any(trouble.nodes == (HOST,) for trouble in state.dials.explain(present)[0])


def _answers(state: SessionState, node: NodeState) -> tuple[list[int], list[int]]:
    """Return the nodes that it answered, and the nodes that dialled it without an answer."""
    ways = state.dials.into(node.node)
    return [way.a for way in ways if way.is_answered], [way.a for way in ways if not way.is_answered]


def _judged(state: SessionState, node: NodeState, host_is_suspect: bool) -> list[LinkReport]:
    """Explain why the agent of a node is missing. Return the link to blame, if any."""
    heard, deaf = _answers(state, node)
    if not heard and len(state.present()) > 1:
        addresses = ", ".join(sorted({*state.addresses_of(node.name)}))
        if addresses and len(deaf) >= _GROUP:
            message = f"{node.absent}; nothing answers at {addresses}, to which its name leads"
            node.explain_gone(Grade.FAIL, message, _NO_ANSWER + _AND_NAME.format(node.name))
        return []
    message = node.absent + (f"; the machine itself answers {state.names(heard)}" if heard else "")
    message += f", but not {state.names(deaf)}" if heard and deaf else ""
    if host_is_suspect:
        node.excused = True
        message += f"; over {state.nodes[HOST].name}, which may be to blame, it should have joined"
        remedy = f"let another node be the first; or {look_at(node.absent, lives=bool(heard))}"
        node.explain_gone(Grade.UNDETERMINED, message, remedy)
        return []
    if not heard:
        return []
    trouble = state.dials.between(HOST, node.node) if node.listens else None
    # An agent joins over its link to the coordinator's node. Several broken links are less likely.
    if deaf != [HOST] or (node.listens and trouble is None):
        small = _small_only(state, node)
        message += "; large packets to it get lost" if small else ""
        remedy = _MTU.format(node.name) if small else look_at(node.absent, lives=True)
        node.explain_gone(Grade.FAIL, message, remedy)
        return []
    if trouble is None:
        message += ": it was not examined"
        node.explain_gone(Grade.UNDETERMINED, message, "mend the link, then check again")
        a, b = state.nodes[HOST].name, node.name
        message = (
            "no answer, though others get one; no agent could join over it, so the direction is not known"
        )
        return [LinkReport(a, b, "both", Grade.FAIL, message, _REMEDY.format(a, b))]
    message += ": it is left out for this link alone"
    node.explain_gone(Grade.PASS, message, "mend the link")
    return [network_phase.link(state, trouble)]


def look_at(why: str, lives: bool) -> str:
    """Return the remedy for a missing agent by the launcher's reason. ``lives``: the machine answers."""
    reason = why.lower()
    remedies = (remedy for text, of_all, remedy in _REMEDIES if text in reason and (lives or of_all))
    return next(remedies, _NO_PYTHON if lives else _NO_ANSWER)


# --- examine nodes that the coordinator's node does not reach, through a node that reaches them ---


def rounds_through(state: SessionState, nodes: Sequence[NodeState]) -> Iterator[tuple[type, ...]]:
    """Start an examiner on each node, run its local checks, and let it and the coordinator's node dial."""
    reachable = (node for node in nodes[:_MOST_THROUGH] if _relay(state, node) is not None)
    examined = [node for node in reachable if examiner_on(state.orders.launch, node.name)]
    if not examined or HOST not in [node.node for node in state.present()]:
        return
    state.label = "a look through others at nodes whose agents did not join"
    for node in examined:
        _through(state, node, ListenTask(state.nonce), _START_SECONDS)
    yield (ThroughTask,)
    for node in examined:
        if node.listens:
            _ask(state, node)
    yield (ThroughTask, DialTask)
    for node in examined:
        _through(state, node, None, 0.0)
    yield (ThroughTask,)


def _ask(state: SessionState, node: NodeState) -> None:
    host = state.nodes[HOST]
    _through(state, node, LocalTask(state.needs, registry.names(state.needs)), _LOCAL_SECONDS)
    task = DialTask(state.nonce, node.node, (host.target(host.listening.ports),), (), _DIAL_SECONDS)
    _through(state, node, task, _DIAL_SECONDS + _THROUGH_SLACK_SECONDS)
    address = next(iter(state.addresses_of(node.name)), "")
    task = DialTask(state.nonce, host.node, (node.target(node.listening.ports, address),), (), _DIAL_SECONDS)
    state.ask(host.node, task, _DIAL_SECONDS + _THROUGH_SLACK_SECONDS)


def _through(state: SessionState, node: NodeState, task: Task | None, seconds: float) -> None:
    relay = _relay(state, node)
    if relay is not None:
        body = tasks.message_text(task) if task is not None else ""
        request = ThroughTask(node.name, examiner_on(state.orders.launch, node.name), body, seconds)
        state.ask(relay, request, seconds + _THROUGH_SLACK_SECONDS)


def _relay(state: SessionState, node: NodeState) -> int | None:
    """Return a present node that reaches this node; None if there is none."""
    heard, _ = _answers(state, node)
    relays = (other.node for other in state.present() if other.node in heard and other.node != HOST)
    return next(relays, None)


def examiner_on(launch: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the command that starts an examiner on a node; () if agents are not started by srun."""
    if len(launch) < 3 or launch[-2] != "agent":
        return ()
    program, *arguments = launch[:-2]
    kept_arguments = [argument for argument in arguments if not argument.startswith("--immediate=")]
    return (program, *step_on(kept_arguments, [name], BESIDE_SECONDS), "examine", launch[-1], name)

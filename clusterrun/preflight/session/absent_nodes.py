"""Whether a node whose agent never joined is dead, or only out of the coordinator's reach; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterrun.model import contract
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight import registry, tasks
from clusterrun.preflight.session import network_phase, partition_findings
from clusterrun.preflight.session.state import NodeState, SessionState
from clusterrun.preflight.tasks import DialTask, ListenTask, LocalTask, Target, Task, ThroughTask
from clusterrun.slurm_text.srun_messages import BESIDE_SECONDS, step_on

HOST = 0
"""The batch script, and with it the coordinator, runs on the first node of the allocation."""
_PORTS = tuple(range(1, 25))
"""Nothing much listens there: a machine that lives refuses, and whoever hears that has a way to and fro.

Many, for each is dialled from another port of ours: where a range is blocked, some get through.
"""
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
"""Words of the launcher, whether they say as much of a machine that answers nobody, and what to do."""
_AND_NAME = "; is that its address? getent hosts {0}, scontrol show node {0}"
_SHARED = "look at their load, and at the file systems of the run directory and of Python"
_UNSAID = "did not join though their machines answer, and nothing says why"
_GROUP = 2
_REMEDY = "look at switch port, cable and route of {} and {}: ip -s link, ethtool"


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Let those that are there knock at those that are not, by the addresses to which names lead them.

    One that answers all but the coordinator's node is looked at through another.
    """
    missing = [one for one in state.subjects.values() if one.absent]
    yield from _names(state, missing)
    if _knock(state, missing):
        state.label = "a look at the nodes whose agents did not join"
        yield (DialTask,)
        yield from rounds_through(state, [one for one in missing if _answers(state, one)[1] == [HOST]])
    if missing:
        write(state)


def rounds_at_lost(state: SessionState) -> Iterator[tuple[type, ...]]:
    """The same of several that fell silent in the check: the kernel of a machine that lives still answers."""
    _lost_by_size(state)  # what knocking tells would hide it
    if _knock(state, _lost_together(state)):
        state.label = "a look at the nodes that fell silent"
        yield (DialTask,)


def _knock(state: SessionState, nodes: list[NodeState]) -> bool:
    asked = False
    for one in state.present()[:_MOST_WITNESSES]:
        known = ((other, other.address or one.resolved.get(other.name, "").split(" ")[0]) for other in nodes)
        targets = tuple(Target(to.node, to.name, found, _PORTS, _PORTS[0]) for to, found in known if found)
        if targets:
            asked = True
            task = DialTask(state.nonce, one.node, targets, (), _SECONDS, sizes=True)
            state.ask(one.node, task, _SECONDS + _SLACK_SECONDS)
    return asked


def _names(state: SessionState, missing: list[NodeState]) -> Iterator[tuple[type, ...]]:
    """Where one node is alone, or the check is a short one, these names were not looked up yet."""
    names = tuple(one.name for one in missing)
    if not names or not state.orders.launch:
        return
    unasked = [one for one in state.present()[:_MOST_WITNESSES] if not one.resolved.keys() & {*names}]
    for one in unasked:
        task = DialTask(state.nonce, one.node, (), names, _SECONDS)
        state.ask(one.node, task, _SECONDS + _SLACK_SECONDS)
    if unasked:
        yield (DialTask,)


def write(state: SessionState) -> None:
    """What keeps several away may be what they share: it is told once; of each other one by itself."""
    rest = [one for one in state.subjects.values() if one.absent]
    _of_host(state, rest)
    ill = _coordinators_node_may_be_to_blame(state, len(rest))
    here = [one.node for one in state.present()]
    for fits, tell, why in (
        (_is_silent, partition_findings.write_silent, "answer none of those that joined"),
        (_small_only, partition_findings.write_small, "get only small packets from those that joined"),
        (_kept_away, partition_findings.write_kept_away, _UNSAID),
    ):
        several = [] if ill else _several(one for one in rest if fits(state, one))
        tell(state, here, [one.node for one in several])
        _excuse(several, f"{len(several)} nodes {why}")
        rest = [one for one in rest if one not in several]
    state.write("absent", (), [link for one in rest for link in _judged(state, one, ill)])


def _of_host(state: SessionState, missing: list[NodeState]) -> None:
    """It alone is here: what several others met, and it with all of them, is its own firewall."""
    host = state.subjects.get(HOST)
    keys = [(HOST, one.node) for one in missing]
    known = [state.dials.ways[key] for key in keys if key in state.dials.ways]
    if host is None or [one.node for one in state.present()] != [HOST] or len(known) < max(_GROUP, len(keys)):
        return
    others = state.names(one.node for one in missing)
    said, remedy = "", ""
    if all(contract.NO_CONNECTION in one.absent for one in missing) and all(way.refused for way in known):
        said = f"no connection that {others} begin reaches it, though those that it begins reach them"
        remedy = _HOST_INCOMING
    elif all(way.dropped and way.is_dead and not way.refused for way in known):
        said = f"it drops the connections itself that it begins to {others}"
        remedy = _HOST_OUTGOING
    host.write("firewall", [Finding("connections", Grade.FAIL, said, remedy)] if said else [])


def _excuse(several: list[NodeState], why: str) -> None:
    """What keeps several away may be what they share: it is told once, and held against none of them."""
    for one in several:
        one.excused = True
        said = f"{one.absent or one.gone}; {why}"
        one.explain_gone(Grade.UNDETERMINED, said, "see what is said of the network")


def _several(found: Iterable[NodeState]) -> list[NodeState]:
    several = list(found)
    return several if len(several) >= _GROUP else []


def _kept_away(state: SessionState, node: NodeState) -> bool:
    """Whether its machine answers several, and the launcher said nothing of it."""
    unsaid = node.absent.endswith(" s") or node.absent in (contract.AGENT_LOST, contract.NOT_BACK)
    return len(_answers(state, node)[0]) >= _GROUP and unsaid


def _is_silent(state: SessionState, node: NodeState) -> bool:
    """Whether several knocked at it, and nobody heard anything of it."""
    heard, deaf = _answers(state, node)
    return len(deaf) >= _GROUP and not heard


def _small_only(state: SessionState, node: NodeState) -> list[int]:
    """All whose small packets it answered, where these are several and none of their large ones arrived."""
    ways = [way for way in state.dials.into(node.node) if way.is_answered]
    return [way.a for way in ways] if len(ways) >= _GROUP and not any(way.large for way in ways) else []


def review(state: SessionState) -> None:
    """Judge nodes that fell silent in the check anew: the coordinator's may be the one that hears nobody."""
    host = state.subjects.get(HOST)
    _late_alike(state)
    _lost_by_size(state)
    if any(state.parts.values()):
        away = (one for one in state.subjects.values() if one.absent and not one.excused)
        kept_away = [one for one in away if _kept_away(state, one)]
        _excuse(kept_away, "the network is partitioned, which may be why")
    lost = [one for one in _fell_silent(state) if not one.excused]
    if host is None or host.gone or not lost:
        return
    times = [one.lost_at or 0.0 for one in lost]
    others = [one.node for one in state.present() if one.node != HOST]
    at_once = len(times) > 1 and max(times) - min(times) <= contract.LOST_SECONDS
    if at_once and not any(state.dials.between(HOST, node) is None for node in others):
        said = f"{len(lost)} nodes fell silent at the same time, and it reaches no other: it is cut off"
        host.write("cut off", [Finding("agent", Grade.FAIL, said, "look at its link: ip -s link, ethtool")])
    elif not _coordinators_node_may_be_to_blame(state, 0):
        _tell_of_lost(state)
        return
    for one in lost:
        one.excused = True
        said = f"{one.gone}; over {host.name}, which is unfit, it should have been heard"
        one.explain_gone(Grade.UNDETERMINED, said, "let another node be the first")


def _fell_silent(state: SessionState) -> list[NodeState]:
    return [one for one in state.subjects.values() if one.lost_at is not None and one.node != HOST]


def _late_alike(state: SessionState) -> None:
    """Where most nodes did not answer in time, that is what they share, and no fault of each."""
    late = [one for one in state.subjects.values() if any(f.check == "examiner" for f in one.findings)]
    if len(late) < _GROUP or 2 * len(late) <= len(state.subjects):
        return
    _excuse(late, "so did most nodes")
    said = f"{len(late)} of {len(state.subjects)} nodes did not answer in time: they are overloaded, or"
    said += f" share something slow; {_SHARED}"
    grade = Grade.WARN if state.choice().whole else Grade.FAIL
    state.write_of_all("late", "nodes", grade, said, _SHARED)


def _lost_by_size(state: SessionState) -> None:
    """Tell why nodes fell silent that others could dial, with small packets only."""
    lost = [one for one in state.subjects.values() if one.lost_at is not None and one.listens]
    here = [one.node for one in state.present()]
    found = state.dials.explain([*here, *(one.node for one in lost)])[0]
    known = {one.nodes[0]: one for one in found if len(one.nodes) == 1 and one.kind == "large"}
    troubled = [one for one in lost if one.node in known]
    several = _several(troubled)
    if several:
        partition_findings.write_small(state, here, [one.node for one in several], "between {} and {}")
        _excuse(several, f"large packets of {len(several)} nodes get lost")
        return
    for one in troubled:
        one.write("sizes", [network_phase.of_node(state, known[one.node])])


def _lost_together(state: SessionState) -> list[NodeState]:
    """Nodes that fell silent while another one did, but for those for which there is another reason.

    One whose connection was closed is not cut off: it was heard.
    """
    lost = [one for one in _fell_silent(state) if contract.NO_HEARTBEAT in one.gone and not one.excused]
    times = [one.lost_at or 0.0 for one in lost]
    near = (sum(abs(at - it) <= contract.LOST_SECONDS for it in times) for at in times)
    return [one for one, count in zip(lost, near) if count >= _GROUP]


def _tell_of_lost(state: SessionState) -> None:
    """Several fell silent in one moment, and no machine of theirs answers: they are down, or cut off."""
    known = ((one, state.dials.into(one.node)) for one in _lost_together(state))
    silent = _several(one for one, ways in known if not any(way.refused for way in ways))
    if silent:
        before = (state.parts.get("joining") or ((), ()))[1]
        here = [one.node for one in state.present()]
        partition_findings.write_silent(state, here, [*before, *(one.node for one in silent)])
        _excuse(silent, f"{len(silent)} nodes fell silent at the same time, and answer nobody")


def _coordinators_node_may_be_to_blame(state: SessionState, missing: int) -> bool:
    """It has trouble with all others, or nobody but it is here to say who has."""
    there = [one.node for one in state.present()]
    if there == [HOST]:
        return missing > 1
    return any(one.nodes == (HOST,) for one in state.dials.explain(there)[0])


def _answers(state: SessionState, node: NodeState) -> tuple[list[int], list[int]]:
    ways = state.dials.into(node.node)
    return [way.a for way in ways if way.is_answered], [way.a for way in ways if not way.is_answered]


def _judged(state: SessionState, node: NodeState, host_is_ill: bool) -> list[LinkReport]:
    heard, deaf = _answers(state, node)
    if not heard and len(state.present()) > 1:
        led = ", ".join(sorted({*state.led_to(node.name)}))
        if led and len(deaf) >= _GROUP:
            said = f"{node.absent}; nothing answers at {led}, to which its name leads"
            node.explain_gone(Grade.FAIL, said, _NO_ANSWER + _AND_NAME.format(node.name))
        return []
    said = node.absent + (f"; the machine itself answers {state.names(heard)}" if heard else "")
    said += f", but not {state.names(deaf)}" if heard and deaf else ""
    if host_is_ill:
        node.excused = True
        said += f"; over {state.subjects[HOST].name}, which may be to blame, it should have joined"
        remedy = f"let another node be the first; or {look_at(node.absent, lives=bool(heard))}"
        node.explain_gone(Grade.UNDETERMINED, said, remedy)
        return []
    if not heard:
        return []
    trouble = state.dials.between(HOST, node.node) if node.listens else None
    # Only over its link to the coordinator's node an agent joins; that several broke is less likely.
    if deaf != [HOST] or (node.listens and trouble is None):
        small = _small_only(state, node)
        said += "; large packets to it get lost" if small else ""
        remedy = _MTU.format(node.name) if small else look_at(node.absent, lives=True)
        node.explain_gone(Grade.FAIL, said, remedy)
        return []
    if trouble is None:
        said += ": it was not examined"
        node.explain_gone(Grade.UNDETERMINED, said, "mend the link, then check again")
        a, b = state.subjects[HOST].name, node.name
        said = "no answer, though others get one; no agent could join over it, so the direction is not known"
        return [LinkReport(a, b, "both", Grade.FAIL, said, _REMEDY.format(a, b))]
    said += ": it is left out for this link alone"
    node.explain_gone(Grade.PASS, said, "mend the link")
    return [network_phase.link(state, trouble)]


def look_at(why: str, lives: bool) -> str:
    """What to do about a machine without an agent, by what the launcher said; ``lives``: it answers."""
    said = why.lower()
    found = (remedy for words, of_all, remedy in _REMEDIES if words in said and (lives or of_all))
    return next(found, _NO_PYTHON if lives else _NO_ANSWER)


# --- a look at nodes that the coordinator's own does not reach, through one that reaches them ---


def rounds_through(state: SessionState, nodes: Sequence[NodeState]) -> Iterator[tuple[type, ...]]:
    """Start an examiner on each, ask for its own checks, and let it and the coordinator's node dial."""
    able = (one for one in nodes[:_MOST_THROUGH] if _relay(state, one) is not None)
    sent = [one for one in able if examiner_on(state.orders.launch, one.name)]
    if not sent or HOST not in [one.node for one in state.present()]:
        return
    state.label = "a look through others at nodes whose agents did not join"
    for one in sent:
        _through(state, one, ListenTask(state.nonce), _START_SECONDS)
    yield (ThroughTask,)
    for one in sent:
        if one.listens:
            _ask(state, one)
    yield (ThroughTask, DialTask)
    for one in sent:
        _through(state, one, None, 0.0)
    yield (ThroughTask,)


def _ask(state: SessionState, node: NodeState) -> None:
    host = state.subjects[HOST]
    _through(state, node, LocalTask(state.asked, registry.names(state.asked)), _LOCAL_SECONDS)
    task = DialTask(state.nonce, node.node, (host.target(host.listening.ports),), (), _DIAL_SECONDS)
    _through(state, node, task, _DIAL_SECONDS + _THROUGH_SLACK_SECONDS)
    led_to = next(iter(state.led_to(node.name)), "")
    task = DialTask(state.nonce, host.node, (node.target(node.listening.ports, led_to),), (), _DIAL_SECONDS)
    state.ask(host.node, task, _DIAL_SECONDS + _THROUGH_SLACK_SECONDS)


def _through(state: SessionState, node: NodeState, task: Task | None, seconds: float) -> None:
    relay = _relay(state, node)
    if relay is not None:
        body = tasks.message_text(task) if task is not None else ""
        asked = ThroughTask(node.name, examiner_on(state.orders.launch, node.name), body, seconds)
        state.ask(relay, asked, seconds + _THROUGH_SLACK_SECONDS)


def _relay(state: SessionState, one: NodeState) -> int | None:
    heard, _ = _answers(state, one)
    return next((node.node for node in state.present() if node.node in heard and node.node != HOST), None)


def examiner_on(launch: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The program that starts agents, turned to start an examiner on one node; () where that is no srun."""
    if len(launch) < 3 or launch[-2] != "agent":
        return ()
    program, *words = launch[:-2]
    own = [word for word in words if not word.startswith("--immediate=")]
    return (program, *step_on(own, [name], BESIDE_SECONDS), "examine", launch[-1], name)
